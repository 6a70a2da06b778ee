//! A folder of this machine, with a file a day.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::layout::{Layout, SETTINGS, Settings, others};
use crate::error::CliError;
use crate::pending::{Pending, named};

/// A folder that only this process exports to.
pub(super) struct Folder {
    root: PathBuf,
    layout: Layout,
    /// Locked as long as it is open.
    _settings: File,
}

impl Folder {
    /// Opens a folder, or makes it.
    ///
    /// # Errors
    /// [`CliError::BadInput`] if it has files of other settings or another export is writing to it.
    pub(super) fn open(
        root: &Path,
        layout: Layout,
        settings: &Settings<'_>,
    ) -> Result<Self, CliError> {
        std::fs::create_dir_all(root).map_err(named(root))?;
        let path = root.join(SETTINGS);
        let file = settings_file(&path, settings)?;
        Pending::remove_left(root).map_err(named(root))?;
        Ok(Self { root: root.to_owned(), layout, _settings: file })
    }

    /// True if the file of a day is there. Files of days without rows never are.
    pub(super) fn has(&self, date: &str) -> bool {
        self.file(date).exists()
    }

    /// Begins a file.
    pub(super) fn begin(&self) -> Result<Pending, CliError> {
        Ok(Pending::new(&self.root).map_err(named(&self.root))?)
    }

    /// Publishes the file of a day.
    pub(super) fn publish(&self, file: Pending, date: &str) -> Result<(), CliError> {
        let path = self.file(date);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(named(folder))?;
        }
        Ok(file.publish(&path).map_err(named(&path))?)
    }

    fn file(&self, date: &str) -> PathBuf {
        self.root.join(self.layout.file(date))
    }
}

/// The file of settings, with these in it, locked.
fn settings_file(path: &Path, settings: &Settings<'_>) -> Result<File, CliError> {
    let named = named(path);
    let ours = settings.text()?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(path).map_err(&named)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => {
            let folder = path.parent().unwrap_or(path).display();
            return Err(CliError::BadInput(format!(
                "another export is writing to {folder}; wait until it has ended"
            )));
        }
        Err(std::fs::TryLockError::Error(error)) => return Err(named(error).into()),
    }
    let mut found = String::new();
    file.read_to_string(&mut found).map_err(&named)?;
    if found == ours {
        return Ok(file);
    }
    // A process that was killed may have left the beginning.
    let Some(rest) = ours.strip_prefix(&found) else {
        return Err(others(&path.display().to_string(), &found));
    };
    file.write_all(rest.as_bytes()).map_err(&named)?;
    file.sync_all().map_err(&named)?;
    Ok(file)
}
