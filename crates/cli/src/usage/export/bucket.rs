//! A folder in S3: `s3://bucket/prefix`.
//!
//! An object appears as a whole or not at all, and only if there is none of its name: two exports
//! of one folder write each day once.

use std::io;
use std::time::Duration;

use aws_config::SdkConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStream;
use sluicegate_processor::explain;

use super::layout::{Layout, SETTINGS, Settings, others};
use crate::error::CliError;
use crate::pending::Pending;

/// Begins the name of a folder in S3.
const SCHEME: &str = "s3://";
const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;
/// An object of that name is there.
const PRECONDITION_FAILED: u16 = 412;
/// Names another store with the API of S3.
const ENDPOINT_URL: &str = "AWS_ENDPOINT_URL_S3";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A slower upload of a file is given up.
const UPLOAD_BYTES_PER_S_MIN: u64 = 100_000;

/// A prefix of a bucket.
pub(super) struct BucketFolder {
    client: Client,
    bucket: String,
    /// Empty, or with a slash at its end.
    prefix: String,
    layout: Layout,
    /// For an answer to a small request. A file has more, by its size.
    timeout: Duration,
}

impl BucketFolder {
    /// Opens a folder, or makes it.
    ///
    /// # Errors
    /// [`CliError::BadInput`] if the name has no bucket or the folder has files of other settings,
    /// [`CliError::Output`] if S3 refuses.
    pub(super) async fn open(
        name: &str,
        config: &SdkConfig,
        timeout: Duration,
        layout: Layout,
        settings: &Settings<'_>,
    ) -> Result<Self, CliError> {
        let (bucket, prefix) = parse(name).ok_or_else(|| {
            CliError::BadInput(format!("{name} has no bucket: write s3://BUCKET/PREFIX"))
        })?;
        let folder = Self { client: client(config), bucket, prefix, layout, timeout };
        let ours = settings.text()?;
        let body = ByteStream::from(ours.clone().into_bytes());
        // First the look: some stores overwrite although the request says not to.
        if !folder.is_there(SETTINGS).await? {
            let is_made = folder.timely(SETTINGS, folder.put(SETTINGS, body)).await??;
            if is_made {
                return Ok(folder);
            }
        }
        let found = folder.get(SETTINGS).await?;
        if found == ours { Ok(folder) } else { Err(others(&folder.name(SETTINGS), &found)) }
    }

    /// True if the file of a day is there.
    pub(super) async fn has(&self, date: &str) -> Result<bool, CliError> {
        self.is_there(&self.layout.file(date)).await
    }

    async fn is_there(&self, file: &str) -> Result<bool, CliError> {
        let head = self.client.head_object().bucket(&self.bucket).key(self.key(file));
        match self.timely(file, head.send()).await? {
            Ok(_) => Ok(true),
            Err(error) if status(&error) == NOT_FOUND => Ok(false),
            Err(error) => Err(self.failed(file, &error)),
        }
    }

    /// Waits for the answer to a small request.
    async fn timely<T>(&self, file: &str, answer: impl Future<Output = T>) -> Result<T, CliError> {
        self.within(self.timeout, file, answer).await
    }

    async fn within<T>(
        &self,
        time: Duration,
        file: &str,
        answer: impl Future<Output = T>,
    ) -> Result<T, CliError> {
        tokio::time::timeout(time, answer).await.map_err(|_| {
            let (seconds, name) = (time.as_secs(), self.name(file));
            CliError::Output(io::Error::other(format!("{name}: no answer within {seconds} s")))
        })
    }

    /// Publishes the file of a day. If another export was faster, its file has the same bytes.
    pub(super) async fn publish(&self, file: &Pending, date: &str) -> Result<(), CliError> {
        let bytes = std::fs::metadata(file.path())?.len();
        let body = ByteStream::from_path(file.path()).await.map_err(io::Error::other)?;
        let file = self.layout.file(date);
        let time = self.timeout + Duration::from_secs(bytes / UPLOAD_BYTES_PER_S_MIN);
        self.within(time, &file, self.put(&file, body)).await?.map(|_| ())
    }

    /// False if an object of that name is there, which stays.
    async fn put(&self, file: &str, body: ByteStream) -> Result<bool, CliError> {
        let put = self.client.put_object().bucket(&self.bucket).key(self.key(file));
        match put.if_none_match("*").body(body).send().await {
            Ok(_) => Ok(true),
            Err(error) if status(&error) == PRECONDITION_FAILED => Ok(false),
            Err(error) => Err(self.failed(file, &error)),
        }
    }

    async fn get(&self, file: &str) -> Result<String, CliError> {
        let get = self.client.get_object().bucket(&self.bucket).key(self.key(file));
        let object = self.timely(file, get.send()).await?;
        let object = object.map_err(|error| self.failed(file, &error))?;
        let bytes = self.timely(file, object.body.collect()).await?.map_err(io::Error::from)?;
        Ok(String::from_utf8_lossy(&bytes.into_bytes()).into_owned())
    }

    fn key(&self, file: &str) -> String {
        format!("{}{file}", self.prefix)
    }

    fn name(&self, file: &str) -> String {
        format!("{SCHEME}{}/{}", self.bucket, self.key(file))
    }

    fn failed<E>(&self, file: &str, error: &SdkError<E, HttpResponse>) -> CliError
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let advice = match status(error) {
            FORBIDDEN => {
                "; allow s3:PutObject and s3:GetObject on its objects, and s3:ListBucket on the bucket"
            }
            NOT_FOUND => "; make the bucket first",
            _ => "",
        };
        let why = format!("{}: {}{advice}", self.name(file), explain(error));
        CliError::Output(io::Error::other(why))
    }
}

/// The bucket and the prefix.
fn parse(name: &str) -> Option<(String, String)> {
    let place = name.strip_prefix(SCHEME)?;
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    let prefix = prefix.trim_matches('/');
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    (!bucket.is_empty()).then(|| (bucket.to_owned(), prefix))
}

/// Other stores with the API of S3 have the bucket in the path. A file may take its time.
fn client(config: &SdkConfig) -> Client {
    let builder = aws_sdk_s3::config::Builder::from(config);
    let of_s3 = std::env::var_os(ENDPOINT_URL).is_some_and(|url| !url.is_empty());
    let is_other = config.endpoint_url().is_some() || of_s3;
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .disable_read_timeout()
        .disable_operation_timeout()
        .disable_operation_attempt_timeout()
        .build();
    Client::from_conf(builder.force_path_style(is_other).timeout_config(timeouts).build())
}

fn status<E>(error: &SdkError<E, HttpResponse>) -> u16 {
    error.raw_response().map_or(0, |answer| answer.status().as_u16())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_a_bucket_and_a_prefix() {
        let parsed = |name| parse(name).map(|(bucket, prefix)| format!("{bucket} {prefix}"));
        assert_eq!(parsed("s3://b").as_deref(), Some("b "));
        assert_eq!(parsed("s3://b/").as_deref(), Some("b "));
        assert_eq!(parsed("s3://b/x/y/").as_deref(), Some("b x/y/"));
        assert_eq!([parsed("s3://"), parsed("s3:///x"), parsed("b/x")], [None, None, None]);
    }
}
