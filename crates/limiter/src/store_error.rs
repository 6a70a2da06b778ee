//! Errors that come from behind a store: from the service, its client or an item. Other error types
//! carry them, so they have a file of their own.

use sluicegate_core::ItemError;

/// Any error, as the source of another.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error that a person must repair before the table can be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The credentials do not allow the action.
    #[error("access denied: allow this action to the credentials in use")]
    Denied(#[source] BoxError),
    /// The table does not exist.
    #[error("the table {0} does not exist: create it with the template or `create_table`")]
    NoTable(String),
    /// An item has the key of a bucket and cannot be read as one.
    #[error("the item of {bucket} is broken: {source}; repair or delete it")]
    BrokenItem {
        /// The bucket.
        bucket: String,
        /// The reason.
        #[source]
        source: Box<ItemError>,
    },
    /// The items of a bucket in the older layout cannot be converted.
    #[error("a bucket of one item per limit cannot be used")]
    Inconvertible(#[source] BoxError),
    /// The request was not acceptable or could not be made (no region, no credentials).
    #[error("the request was not accepted")]
    Rejected(#[source] BoxError),
}

impl SetupError {
    /// A copy, for each of several requests.
    pub(crate) fn copy(&self) -> Self {
        match self {
            Self::NoTable(table) => Self::NoTable(table.clone()),
            Self::Denied(why) => Self::Denied(copy_of(why)),
            Self::BrokenItem { bucket, source } => {
                Self::BrokenItem { bucket: bucket.clone(), source: source.clone() }
            }
            Self::Rejected(why) => Self::Rejected(copy_of(why)),
            Self::Inconvertible(why) => Self::Inconvertible(copy_of(why)),
        }
    }
}

/// A copy of an error's source, for each of several requests.
pub(crate) fn copy_of(source: &BoxError) -> BoxError {
    let text = described(source);
    if source.is::<StoreFailure>() { StoreFailure(text.into()).into() } else { text.into() }
}

/// The store answered that it failed: an HTTP status of 5xx (except 501) of DynamoDB, or an error
/// of Redis that says it can serve no request, such as `LOADING` or `MISCONF`. The request may have
/// been done. The source is the store's error.
///
/// It is the source of [`AcquireError::Unavailable`](crate::AcquireError::Unavailable) and
/// [`AdjustError::Unavailable`](crate::AdjustError::Unavailable) then.
#[derive(Debug, thiserror::Error)]
#[error("the store answered that it failed")]
pub struct StoreFailure(#[source] pub(crate) BoxError);

/// The call never reached the store, because no connection could be made: nothing was done.
#[derive(Debug, thiserror::Error)]
#[error("there is no connection to the store")]
pub struct NoConnection(#[source] pub BoxError);

/// The text of an error and of its sources.
pub(crate) fn described(error: &BoxError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
