//! A store of composite buckets on any [`Table`].
//!
//! `sluicegate-core` decides and the table writes. This module holds the loop between them. It also
//! remembers images and limits, so that an acquire from a known bucket is one write and no read.

mod acquire;
mod adjust;
mod bucket_request;
mod calls;
mod compensating;
mod composite_store;
mod directory;
mod enter;
mod impl_store;
mod known_buckets;
mod lane;
mod lead;
#[cfg(feature = "leasing")]
mod lease;
mod newest_image;
mod settings;
mod table_call;
mod targets;
mod undecided_error;

pub use self::composite_store::CompositeStore;
#[cfg(feature = "leasing")]
pub(crate) use self::lane::Lane;
pub use self::settings::{CascadeMode, Certainty, StoreSettings};
