//! The buckets of a permit, which may be put together when they are first needed.

use std::ops::Deref;
use std::sync::OnceLock;

use crate::store::BucketGrant;

/// The buckets that tokens were taken from. Most permits of leased tokens are dropped without anybody
/// looking at them.
#[derive(Default)]
pub(crate) struct Parts {
    known: OnceLock<Vec<BucketGrant>>,
    make: Option<Box<dyn Fn() -> Vec<BucketGrant> + Send + Sync>>,
}

impl Parts {
    /// The buckets that `make` returns.
    #[cfg(feature = "leasing")]
    pub(crate) fn later(make: impl Fn() -> Vec<BucketGrant> + Send + Sync + 'static) -> Self {
        Self { known: OnceLock::new(), make: Some(Box::new(make)) }
    }
}

impl From<Vec<BucketGrant>> for Parts {
    fn from(parts: Vec<BucketGrant>) -> Self {
        Self { known: parts.into(), make: None }
    }
}

impl Deref for Parts {
    type Target = [BucketGrant];

    fn deref(&self) -> &[BucketGrant] {
        self.known.get_or_init(|| self.make.as_ref().map(|make| make()).unwrap_or_default())
    }
}
