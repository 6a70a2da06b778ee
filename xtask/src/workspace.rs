//! The paths of the workspace: every path that a task uses is derived here, from the place of this
//! package.

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// The folder in which `cargo xtask engines` installs engines and tools.
///
/// Always below `target/`, even when cargo builds elsewhere: an install outlives a build folder.
pub(crate) fn engines_dir() -> PathBuf {
    root().join("target").join("engines")
}

/// The folder in which cargo builds.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// The SAM template.
pub(crate) fn template() -> PathBuf {
    root().join("template.yaml")
}
