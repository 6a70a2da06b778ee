//! The position in a stream, kept in a file. A missing, broken or foreign file costs time and
//! changes no figure.

use std::io::Write;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sluicegate_local::poller::Checkpoints;

use crate::error::{CliError, say};

/// The file of one stream's checkpoints.
pub(super) struct CheckpointFile {
    path: PathBuf,
    stream: String,
}

#[derive(Serialize, Deserialize)]
struct Contents {
    /// The ARN: a table that was deleted and created again has another stream.
    stream: String,
    shards: Checkpoints,
}

impl CheckpointFile {
    pub(super) fn new(path: PathBuf, stream: String) -> Self {
        Self { path, stream }
    }

    /// The saved positions, if they belong to this stream.
    pub(super) fn load(&self) -> Option<Checkpoints> {
        let path = self.path.display();
        let bytes = match std::fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                say(&format!("{path} cannot be read ({error}); starting at the oldest record"));
                return None;
            }
        };
        match serde_json::from_slice::<Contents>(&bytes) {
            Ok(contents) if contents.stream == self.stream => Some(contents.shards),
            Ok(_) => {
                say(&format!("{path} is of another stream; starting at the oldest record"));
                None
            }
            Err(error) => {
                say(&format!("{path} is no checkpoint ({error}); starting at the oldest record"));
                None
            }
        }
    }

    /// Replaces the saved positions: a reader finds the old file or the new one, whole.
    pub(super) fn save(&self, shards: &Checkpoints) -> Result<(), CliError> {
        let contents = Contents { stream: self.stream.clone(), shards: shards.clone() };
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        let saved = std::fs::File::create(&beside)
            .and_then(|mut file| {
                serde_json::to_writer(&mut file, &contents)?;
                file.flush()
            })
            .and_then(|()| std::fs::rename(&beside, &self.path));
        let path = self.path.display();
        saved.map_err(|error| {
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

    #[test]
    fn checkpoints_are_found_again_by_the_same_stream_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let file = CheckpointFile::new(path.clone(), "arn:1".to_owned());
        assert_eq!(file.load(), None);
        for position in ["100", "200"] {
            let shards = Checkpoints::from([("shard".to_owned(), Position::new(position))]);
            file.save(&shards).unwrap();
            assert_eq!(file.load(), Some(shards));
        }
        assert_eq!(CheckpointFile::new(path.clone(), "arn:2".to_owned()).load(), None);
        std::fs::write(&path, "{").unwrap();
        assert_eq!(file.load(), None);
        let nowhere = CheckpointFile::new(folder.path().join("no/where"), "arn:1".to_owned());
        assert!(nowhere.save(&Checkpoints::new()).is_err());
    }
}
