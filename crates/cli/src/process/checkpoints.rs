//! The position in a stream, kept in a file. A missing file costs time and changes no figure. If the
//! file is of another stream, nobody reads what was left there. A file of another kind is not
//! overwritten.

use std::io::Write as _;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sluicegate_local::poller::Checkpoints;
use sluicegate_processor::{Layouts, Settings};

use crate::error::{CliError, say};
use crate::pending::{Pending, followed};

/// The file of one stream's checkpoints.
pub(super) struct CheckpointFile {
    path: PathBuf,
    stream: String,
    counts: Counts,
}

/// The usage windows in which the records before the checkpoints are counted.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counts {
    /// As `--windows` names them.
    windows: String,
    sharded_buckets: bool,
}

impl Counts {
    pub(super) fn of(settings: &Settings) -> Self {
        let sharded_buckets = settings.layouts == Layouts::CompositeAndSharded;
        Self { windows: settings.window_kinds.to_string(), sharded_buckets }
    }
}

#[derive(Serialize, Deserialize)]
struct Contents {
    /// The ARN: a table that was deleted and created again has another stream.
    stream: String,
    counts: Counts,
    shards: Checkpoints,
}

impl CheckpointFile {
    pub(super) fn new(path: PathBuf, stream: String, counts: Counts) -> Self {
        Self { path, stream, counts }
    }

    /// The saved positions, if they belong to this stream.
    ///
    /// # Errors
    /// [`CliError::BadInput`] if the file cannot be read or is no checkpoint: it would be overwritten.
    /// Also if the command now counts other windows than before: new ones would miss records now, or
    /// dropped ones later.
    pub(super) fn load(&self) -> Result<Option<Checkpoints>, CliError> {
        let bad = |why: String| {
            let path = self.path.display();
            CliError::BadInput(format!("{path} {why}; name another file with --checkpoint"))
        };
        if self.path.exists() && !self.path.is_file() {
            return Err(bad("is no file".to_owned()));
        }
        let bytes = match std::fs::read(&self.path) {
            Ok(bytes) if bytes.is_empty() => return Ok(None),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(bad(format!("cannot be read ({error})"))),
        };
        let contents = serde_json::from_slice::<Contents>(&bytes)
            .map_err(|error| bad(format!("is no checkpoint ({error}), and stays as it is")))?;
        if contents.stream == self.stream {
            if self.counts != contents.counts {
                let Counts { windows, sharded_buckets } = contents.counts;
                let sharded = if sharded_buckets { " --sharded-buckets" } else { "" };
                return Err(bad(format!(
                    "is of a process with `--windows {windows}{sharded}`, and its positions are for those alone"
                )));
            }
            return Ok(Some(contents.shards));
        }
        let path = self.path.display();
        say(&format!(
            "{path} is of another stream; starting at the oldest record of this one. What was left \
             in the other stream ({}) is not counted",
            contents.stream
        ));
        Ok(None)
    }

    /// Replaces the saved positions: a reader finds the old file or the new one, whole.
    pub(super) fn save(&self, shards: &Checkpoints) -> Result<(), CliError> {
        let (stream, counts) = (self.stream.clone(), self.counts.clone());
        let contents = Contents { stream, counts, shards: shards.clone() };
        let replace = || -> std::io::Result<()> {
            let path = followed(&self.path);
            let pending = Pending::beside(&path)?;
            let mut writer = pending.writer()?;
            serde_json::to_writer(&mut writer, &contents)?;
            writer.flush()?;
            pending.publish(&path)
        };
        let path = self.path.display();
        replace().map_err(|error| {
            CliError::Store(format!(
                "{path} cannot be written ({error}); name another file with --checkpoint"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_local::poller::Position;

    use super::*;

    fn of_hours(path: PathBuf, stream: &str) -> CheckpointFile {
        let counts = Counts { windows: "hour,day".to_owned(), sharded_buckets: false };
        CheckpointFile::new(path, stream.to_owned(), counts)
    }

    #[test]
    fn checkpoints_are_found_again_by_the_same_stream_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let file = of_hours(path.clone(), "arn:1");
        assert_eq!(file.load().unwrap(), None);
        for position in ["100", "200"] {
            let shards = Checkpoints::from([("shard".to_owned(), Position::new(position))]);
            file.save(&shards).unwrap();
            assert_eq!(file.load().unwrap(), Some(shards));
        }
        let other = of_hours(path.clone(), "arn:2");
        assert_eq!(other.load().unwrap(), None);
        let counts = Counts { windows: "hour,day".to_owned(), sharded_buckets: true };
        let sharded = CheckpointFile::new(path.clone(), "arn:1".to_owned(), counts);
        assert!(matches!(sharded.load(), Err(CliError::BadInput(_))));
        std::fs::write(&path, "").unwrap();
        assert_eq!(file.load().unwrap(), None);
        std::fs::write(&path, "{").unwrap();
        assert!(matches!(file.load(), Err(CliError::BadInput(_))));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let nowhere = of_hours(folder.path().join("no/where"), "arn:1");
        assert!(nowhere.save(&Checkpoints::new()).is_err());
        let no_file = of_hours(PathBuf::from("/dev/null"), "arn:1");
        assert!(matches!(no_file.load(), Err(CliError::BadInput(_))));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_and_leads_to_the_new_checkpoints() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("checkpoint"), folder.path().join("link"));
        std::fs::write(&path, "").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let shards = Checkpoints::from([("shard".to_owned(), Position::new("100"))]);
        of_hours(link.clone(), "arn:1").save(&shards).unwrap();
        assert!(link.is_symlink());
        let file = of_hours(path, "arn:1");
        assert_eq!(file.load().unwrap(), Some(shards));
    }
}
