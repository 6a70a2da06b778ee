//! The records of all files in one temporary file, each with its length in front.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};

use serde_json::value::RawValue;

const BUFFER_BYTES: usize = 1 << 16;
/// The size of the length before a record.
const LENGTH_BYTES: u64 = 4;

/// Records on disk. Written once, then read as often as needed.
pub(super) struct Spool {
    writer: BufWriter<File>,
    reader: BufReader<File>,
    /// The place of the next record.
    at: u64,
    records: u64,
}

impl Spool {
    pub(super) fn new() -> io::Result<Self> {
        let file = tempfile::tempfile()?;
        let reader = BufReader::with_capacity(BUFFER_BYTES, file.try_clone()?);
        let writer = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(Self { writer, reader, at: 0, records: 0 })
    }

    /// The number of records.
    pub(super) const fn len(&self) -> u64 {
        self.records
    }

    pub(super) fn push(&mut self, record: &str) -> io::Result<()> {
        let length = u32::try_from(record.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        self.writer.write_all(&length.to_le_bytes())?;
        self.writer.write_all(record.as_bytes())?;
        self.records += 1;
        Ok(())
    }

    /// Goes back to the first record.
    pub(super) fn rewind(&mut self) -> io::Result<()> {
        self.writer.flush()?;
        self.at = 0;
        self.reader.seek(SeekFrom::Start(0)).map(drop)
    }

    /// The next record and its place; `None` after the last.
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, Box<RawValue>)>> {
        let mut length = [0; 4];
        match self.reader.read_exact(&mut length) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let at = self.at;
        let length = u32::from_le_bytes(length);
        self.at += LENGTH_BYTES + u64::from(length);
        let mut record = String::new();
        (&mut self.reader).take(length.into()).read_to_string(&mut record)?;
        Ok(Some((at, RawValue::from_string(record)?)))
    }

    /// The record at place `at`; the next record to be read stays the same.
    pub(super) fn record(&mut self, at: u64) -> io::Result<Box<RawValue>> {
        let next = self.at;
        self.seek(at)?;
        let record = self.next()?.ok_or(io::ErrorKind::UnexpectedEof)?.1;
        self.seek(next)?;
        Ok(record)
    }

    fn seek(&mut self, to: u64) -> io::Result<()> {
        let by = i128::from(to) - i128::from(self.at);
        self.at = to;
        // Within the buffer nothing is read again.
        self.reader.seek_relative(i64::try_from(by).map_err(|_| io::ErrorKind::InvalidInput)?)
    }
}
