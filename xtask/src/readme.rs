//! `cargo xtask readme`: runs the console blocks of the README, of docs/tour.md, docs/budgets.md and
//! docs/examples.md, without changes.

use std::time::Duration;

use anyhow::Result;

use crate::engines::{self, Engine};
use crate::page::Page;
use crate::session;

/// The ports that each page names; each is replaced by a free one.
const PAGES: [(&str, &[&str]); 4] = [
    ("README.md", &[]),
    ("docs/tour.md", &["8000", "9101"]),
    ("docs/budgets.md", &["8000"]),
    ("docs/examples.md", &["8000", "6379", "3000"]),
];
/// The pause between two commands: the records of the first must be counted before the second
/// reads.
const PAUSE: Duration = Duration::from_millis(1_500);

pub(crate) fn run() -> Result<()> {
    engines::check(&[Engine::Redis])?;
    for (page, ports) in PAGES {
        let mut replaced = Vec::new();
        for port in ports {
            replaced.push((*port, free_port(ports)?));
        }
        match page {
            "docs/tour.md" | "docs/budgets.md" => {
                replaced.push(("target/debug/", format!("{}/", session::bin_dir().display())));
            }
            "docs/examples.md" => {
                let server = Engine::Redis.program().display().to_string();
                replaced.push(("target/engines/redis/server/bin/redis-server", server));
            }
            _ => {}
        }
        let page = Page::read(page, &replaced)?;
        page.type_all(&[], PAUSE, session::wait_for_an_hour_with_time_left)?;
    }
    Ok(())
}

/// A free port whose digits contain none of these, which would be replaced in turn.
fn free_port(ports: &[&str]) -> Result<String> {
    loop {
        let free = session::free_port()?.to_string();
        if !ports.iter().any(|port| free.contains(port)) {
            return Ok(free);
        }
    }
}
