//! Notes what the JSON parser reads: a record is kept as it stands, and an error names its position.

use std::cell::RefCell;
use std::io::{self, BufRead, Read};
use std::rc::Rc;

/// Line and column, both from 1; columns are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Default for Place {
    fn default() -> Self {
        Self { line: 1, column: 1 }
    }
}

/// The bytes read of the current value, and their position.
#[derive(Default)]
pub(super) struct Tape {
    /// The bytes of a value that may be a record; empty once it is known to be none.
    pub(super) bytes: Vec<u8>,
    is_recording: bool,
    /// The lines that ended, and the bytes since.
    lines: usize,
    columns: usize,
    pub(super) started: Place,
    /// The place at which the record of an event begins; `None`: the parser is about to read it.
    pub(super) record: Option<Place>,
}

impl Tape {
    /// Notes that the parser has read the first byte of a value.
    pub(super) fn start(&mut self) {
        let first = self.bytes.last().copied();
        self.bytes.clear();
        self.bytes.extend(first);
        self.is_recording = true;
        self.started = Place { line: self.lines + 1, column: self.columns.max(1) };
    }

    pub(super) fn stop(&mut self) {
        self.is_recording = false;
        self.bytes = Vec::new();
    }

    fn read(&mut self, byte: u8) {
        if self.is_recording {
            self.bytes.push(byte);
        } else {
            // The byte that a value may begin with.
            self.bytes.clear();
            self.bytes.push(byte);
        }
        if byte == b'\n' {
            self.lines += 1;
            self.columns = 0;
        } else {
            self.columns += 1;
        }
        // Between two records there are only white space and a comma.
        if self.record.is_none() && !byte.is_ascii_whitespace() && byte != b',' {
            self.record = Some(Place { line: self.lines + 1, column: self.columns });
        }
    }
}

/// A reader that records on a tape the bytes that the parser reads, one at a time.
pub(super) struct Taped<R> {
    pub(super) text: R,
    pub(super) tape: Rc<RefCell<Tape>>,
}

impl<R: BufRead> Read for Taped<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let Some(to) = to.first_mut() else { return Ok(0) };
        let Some(&byte) = self.text.fill_buf()?.first() else { return Ok(0) };
        self.text.consume(1);
        self.tape.borrow_mut().read(byte);
        *to = byte;
        Ok(1)
    }
}
