//! The atomic numbers of a bucket. A test that checks every interleaving puts those of a model in
//! their place.

pub(super) use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU16, AtomicU32, AtomicU64, Ordering, fence,
};
