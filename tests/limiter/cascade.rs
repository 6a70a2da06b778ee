//! A child and its parent, all or nothing.
