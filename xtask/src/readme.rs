//! `cargo xtask readme`: runs the README's console blocks, without changes.

use std::time::Duration;

use anyhow::Result;

use crate::page::Page;
use crate::session;

/// The ports that the README names; each is replaced by a free one.
const PORTS: [&str; 2] = ["8000", "9101"];
/// The pause between two commands: the records of the first must be counted before the second
/// reads.
const PAUSE: Duration = Duration::from_millis(1_500);

pub(crate) fn run() -> Result<()> {
    let mut replaced = Vec::new();
    for port in PORTS {
        replaced.push((port, session::free_port()?.to_string()));
    }
    replaced.push(("target/debug/", format!("{}/", session::bin_dir().display())));
    Page::read("README.md", &replaced)?.type_all(
        &[],
        PAUSE,
        session::wait_for_an_hour_with_time_left,
    )
}
