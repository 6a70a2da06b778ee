//! A file that appears under its name only when it is whole.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

/// Begins the names of files that are not whole. Readers of data sets ignore names that begin with
/// a point.
const PREFIX: &str = ".sluicegate-new-";
const BUFFER_BYTES: usize = 1 << 16;

/// A file that is being written. It is removed unless it is published; a process that is killed
/// leaves it.
pub(crate) struct Pending(NamedTempFile);

impl Pending {
    /// A file in a folder of the file system that it will stay on.
    pub(crate) fn new(folder: &Path) -> io::Result<Self> {
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

    /// A file for the folder of this one.
    pub(crate) fn beside(path: &Path) -> io::Result<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        Self::new(folder.unwrap_or(Path::new(".")))
    }

    /// A file for its owner alone, that is not published here.
    #[cfg(feature = "s3")]
    pub(crate) fn private(folder: &Path) -> io::Result<Self> {
        Builder::new().prefix(PREFIX).tempfile_in(folder).map(Self)
    }

    /// A writer to it.
    pub(crate) fn writer(&self) -> io::Result<Box<dyn Write + Send>> {
        let file: File = self.0.as_file().try_clone()?;
        Ok(Box::new(BufWriter::with_capacity(BUFFER_BYTES, file)))
    }

    #[cfg(feature = "s3")]
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Gives it its name, once its bytes are on the disk. A file of that name is replaced.
    pub(crate) fn publish(self, name: &Path) -> io::Result<()> {
        self.0.as_file().sync_all()?;
        self.0.persist(name).map(drop).map_err(|error| error.error)
    }

    /// Removes the files that killed processes left in a folder. No export may be writing to it.
    pub(crate) fn remove_left(folder: &Path) -> io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

/// The file that a path leads to. A link to it stays when the file is replaced.
pub(crate) fn followed(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Adds the name of a file to an error.
pub(crate) fn named(path: &Path) -> impl Fn(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
