//! The place of an export with a file a day: a folder of this machine, or one in S3.

#[cfg(feature = "s3")]
use super::bucket::BucketFolder;
use super::folder::Folder;
use crate::error::CliError;
use crate::pending::{Pending, named};

/// The place of an export.
pub(super) enum Place {
    /// A folder of this machine.
    Folder(Folder),
    /// A prefix of a bucket.
    #[cfg(feature = "s3")]
    Bucket(BucketFolder),
}

impl Place {
    /// True if the file of a day is there. Files of days without rows never are.
    pub(super) async fn has(&self, date: &str) -> Result<bool, CliError> {
        match self {
            Self::Folder(folder) => Ok(folder.has(date)),
            #[cfg(feature = "s3")]
            Self::Bucket(bucket) => bucket.has(date).await,
        }
    }

    /// Begins a file.
    pub(super) fn begin(&self) -> Result<Pending, CliError> {
        match self {
            Self::Folder(folder) => folder.begin(),
            #[cfg(feature = "s3")]
            Self::Bucket(_) => {
                let folder = std::env::temp_dir();
                Ok(Pending::private(&folder).map_err(named(&folder))?)
            }
        }
    }

    /// Publishes the file of a day, as a whole.
    pub(super) async fn publish(&self, file: Pending, date: &str) -> Result<(), CliError> {
        match self {
            Self::Folder(folder) => folder.publish(file, date),
            #[cfg(feature = "s3")]
            Self::Bucket(bucket) => bucket.publish(&file, date).await,
        }
    }
}
