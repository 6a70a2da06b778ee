//! Allows one engine for a file at a time, and none for the file of another program.
//!
//! Two engines on one file would each trim stream records that the other has yet to count, and each
//! would take its own part of the stream for the whole. The lock is on a separate file beside it,
//! which stays: opening and closing the file itself would release the locks that SQLite holds on
//! it. Symbolic links lead to the same lock; a file with hard links is refused. However a process
//! ends, its lock ends with it.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use crate::Error;

/// Holds a file's lock until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
    /// True if the lock's own file is new.
    is_new: bool,
}

impl Lock {
    /// Locks `file`, which need not exist yet; also returns its name without symbolic links.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Foreign`] and [`Error::HardLinked`] leave no trace on disk;
    /// [`Error::Engine`] if the file or its folder cannot be used.
    pub(crate) fn of(file: &Path) -> Result<(Self, PathBuf), Error> {
        let file = resolved(file).map_err(Error::engine("open its storage"))?;
        if file.metadata().is_ok_and(|about| about.is_file() && has_other_names(&about)) {
            return Err(Error::HardLinked { file });
        }
        let path = path_of(&file);
        let is_new = !path.exists();
        let beside = File::options().create(true).append(true).open(&path);
        let beside = beside.map_err(Error::engine("lock its storage"))?;
        let lock = Self { file: beside, path, is_new };
        match lock.file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::InUse { file }),
            Err(TryLockError::Error(error)) => {
                lock.undo();
                return Err(Error::engine("lock its storage")(error));
            }
        }
        // Only now: no engine of this process has it open.
        match check(&file) {
            Ok(()) => Ok((lock, file)),
            Err(error) => {
                lock.undo();
                Err(error)
            }
        }
    }

    /// Removes the lock's file again, for a database that could not be opened.
    pub(crate) fn undo(self) {
        if self.is_new {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn path_of(file: &Path) -> PathBuf {
    let mut path = OsString::from(file);
    path.push("-lock");
    path.into()
}

/// The file's name without symbolic links. For a new file, its folder's are resolved.
fn resolved(file: &Path) -> io::Result<PathBuf> {
    if file.symlink_metadata().is_ok() {
        return file.canonicalize();
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let name = file.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    Ok(folder.unwrap_or(Path::new(".")).canonicalize()?.join(name))
}

/// Refuses a file that an engine must not open, without changing it.
fn check(file: &Path) -> Result<(), Error> {
    if file.metadata().is_ok_and(|about| about.is_dir()) {
        return Err(Error::engine("open its storage")("it is a folder"));
    }
    if file.metadata().map_or(0, |about| about.len()) == 0 {
        return Ok(());
    }
    match is_of_engine(file).map_err(Error::engine("open its storage"))? {
        true => Ok(()),
        false => Err(Error::Foreign { file: file.to_owned() }),
    }
}

#[cfg(unix)]
fn has_other_names(about: &fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::nlink(about) > 1
}

#[cfg(not(unix))]
const fn has_other_names(_: &fs::Metadata) -> bool {
    false
}

/// First bytes of a SQLite database.
const SQLITE: &[u8; 16] = b"SQLite format 3\0";
/// A database with tables and without these is not the engine's.
const ENGINE_TABLES: &str = "SELECT COUNT(*), COALESCE(SUM(name IN ('_config', '_tables',
    '_stream_records')), 0) FROM sqlite_master WHERE type = 'table'";

/// True if a database belongs to the engine, or is still empty. Reads its schema and writes
/// nothing. If there is a log beside it (a process was killed, or another one runs), the log is
/// read too, through files that exist already. If there is none, SQLite is told to create none.
fn is_of_engine(file: &Path) -> Result<bool, crate::BoxError> {
    let mut first = Vec::new();
    File::open(file)?.take(SQLITE.len() as u64).read_to_end(&mut first)?;
    if first != SQLITE {
        return Err("it is not an SQLite database".into());
    }
    let log = {
        let mut log = OsString::from(file);
        log.push("-wal");
        PathBuf::from(log).metadata().is_ok_and(|log| log.len() > 0)
    };
    let mode = if log { "mode=ro" } else { "immutable=1" };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(uri(file, mode)?, flags)?;
    let application: i64 = connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    let (tables, of_engine): (i64, i64) =
        connection.query_row(ENGINE_TABLES, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(application == 0 && (tables == 0 || of_engine == 3))
}

/// A file's name as SQLite reads it in a URI.
fn uri(file: &Path, mode: &str) -> Result<String, crate::BoxError> {
    let name = file.to_str().ok_or("its name is not UTF-8")?;
    let name = name.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    Ok(format!("file:{name}?{mode}"))
}
