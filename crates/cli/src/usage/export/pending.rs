//! A file that appears under its name only when it is whole.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use tempfile::{Builder, NamedTempFile};

/// Begins the names of files that are not whole. Readers of data sets ignore names that begin with
/// a point.
const PREFIX: &str = ".sluicegate-export-";
const BUFFER_BYTES: usize = 1 << 16;

/// A file that is being written. It is removed unless it is published; a process that is killed
/// leaves it.
pub(super) struct Pending(NamedTempFile);

impl Pending {
    /// A file in a folder of the file system that it will stay on.
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        let mut builder = Builder::new();
        builder.prefix(PREFIX);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            // As of any new file, and not for its owner alone.
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        builder.tempfile_in(folder).map(Self)
    }

    /// A file for its owner alone, that is not published here.
    #[cfg(feature = "s3")]
    pub(super) fn private(folder: &Path) -> io::Result<Self> {
        Builder::new().prefix(PREFIX).tempfile_in(folder).map(Self)
    }

    /// A writer to it.
    pub(super) fn writer(&self) -> io::Result<Box<dyn Write + Send>> {
        let file: File = self.0.as_file().try_clone()?;
        Ok(Box::new(BufWriter::with_capacity(BUFFER_BYTES, file)))
    }

    #[cfg(feature = "s3")]
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Gives it its name, once its bytes are on the disk. A file of that name is replaced.
    pub(super) fn publish(self, name: &Path) -> io::Result<()> {
        self.0.as_file().sync_all()?;
        self.0.persist(name).map(drop).map_err(|error| error.error)
    }

    /// Removes the files that killed processes left in a folder. No export may be writing to it.
    pub(super) fn remove_left(folder: &Path) -> io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

/// Adds the name of a file to an error.
pub(super) fn named(path: &Path) -> impl Fn(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
