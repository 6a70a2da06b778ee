//! The buckets that a permit took from.

use std::ops::Deref;
use std::sync::Arc;
#[cfg(feature = "leasing")]
use std::sync::LazyLock;

use crate::store::BucketGrant;

/// The buckets that a permit took from. Most callers drop a permit of held tokens unread, so its
/// grants are built when they are first read.
pub(crate) enum LazyGrants {
    Built(Vec<BucketGrant>),
    #[cfg(feature = "leasing")]
    WhenRead(LazyLock<Vec<BucketGrant>, Box<dyn FnOnce() -> Vec<BucketGrant> + Send>>),
}

impl LazyGrants {
    #[cfg(feature = "leasing")]
    pub(crate) fn when_read(build: impl FnOnce() -> Vec<BucketGrant> + Send + 'static) -> Self {
        Self::WhenRead(LazyLock::new(Box::new(|| with_uncharged_parent(build()))))
    }
}

impl From<Vec<BucketGrant>> for LazyGrants {
    fn from(grants: Vec<BucketGrant>) -> Self {
        Self::Built(with_uncharged_parent(grants))
    }
}

/// Corrections of a permit treat a parent's bucket alike, whether the acquire took from it or not.
fn with_uncharged_parent(mut grants: Vec<BucketGrant>) -> Vec<BucketGrant> {
    let parent = grants.first_mut().and_then(|own| own.uncharged_parent.take());
    grants.extend(parent.map(Arc::unwrap_or_clone));
    grants
}

impl Deref for LazyGrants {
    type Target = [BucketGrant];

    fn deref(&self) -> &[BucketGrant] {
        match self {
            Self::Built(grants) => grants,
            #[cfg(feature = "leasing")]
            Self::WhenRead(grants) => grants,
        }
    }
}
