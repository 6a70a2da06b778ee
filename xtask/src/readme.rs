//! `cargo xtask readme`: runs the console blocks of the README, of docs/tour.md, docs/budgets.md,
//! docs/examples.md and docs/serve.md, without changes.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::engines::{self, Engine};
use crate::page::Page;
use crate::{session, workspace};

/// The ports that each page names; each is replaced by a free one.
const PAGES: [(&str, &[&str]); 5] = [
    ("README.md", &[]),
    ("docs/tour.md", &["8000", "9101"]),
    ("docs/budgets.md", &["8000"]),
    ("docs/examples.md", &["8000", "6379", "3000"]),
    ("docs/serve.md", &["8470", "8471"]),
];
/// The pause between two commands: the records of the first must be counted before the second
/// reads.
const PAUSE: Duration = Duration::from_millis(1_500);

pub(crate) fn run() -> Result<()> {
    engines::check(&[Engine::Redis])?;
    engines::ensure(&[Engine::Envoy])?;
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
            "docs/serve.md" => {
                replaced.push(("target/debug/", format!("{}/", session::bin_dir().display())));
                let envoy = Engine::Envoy.program().display().to_string();
                replaced.push(("target/engines/envoy/bin/envoy", envoy));
                replaced.push((ENVOY_CONFIG, configuration_of_envoy(&replaced)?));
            }
            _ => {}
        }
        let page = Page::read(page, &replaced)?;
        page.type_all(&[], PAUSE, session::wait_for_an_hour_with_time_left)?;
    }
    Ok(())
}

/// Envoy's side of docs/serve.md.
const ENVOY_CONFIG: &str = "crates/server/examples/envoy.yaml";

/// A copy of Envoy's configuration with the ports of the page.
fn configuration_of_envoy(replaced: &[(&str, String)]) -> Result<String> {
    let mut text =
        fs::read_to_string(workspace::root().join(ENVOY_CONFIG)).context(ENVOY_CONFIG)?;
    for (port, by) in replaced {
        text = text.replace(port, by);
    }
    let copy = workspace::root().join("target/envoy-of-the-page.yaml");
    fs::write(&copy, text).context("a copy of Envoy's configuration")?;
    Ok(copy.display().to_string())
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
