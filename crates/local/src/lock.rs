//! One engine for a file at a time.
//!
//! Two on one file would each trim stream records that the other has yet to count, and hold what
//! they know of the stream for the whole. The lock is on a file beside it, which stays: to open and
//! close the file itself would release the locks that SQLite holds on it. However a process ends,
//! its lock ends with it.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use crate::Error;

/// Holds a file's lock until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    pub(crate) fn of(file: &Path) -> Result<Self, Error> {
        let beside = File::options().create(true).append(true).open(path_of(file));
        let beside = beside.map_err(Error::engine("lock its storage"))?;
        match beside.try_lock() {
            Ok(()) => Ok(Self { _file: beside }),
            Err(TryLockError::WouldBlock) => Err(Error::InUse { file: file.to_owned() }),
            Err(TryLockError::Error(error)) => Err(Error::engine("lock its storage")(error)),
        }
    }
}

fn path_of(file: &Path) -> PathBuf {
    let mut path = OsString::from(file);
    path.push("-lock");
    path.into()
}
