//! `cargo xtask compare`: this project beside other rate limiters, in one run on the same servers.
//!
//! Every limiter is a process of its own (a *contestant*) that carries out orders which it reads
//! from its standard input. One slice of time belongs to one contestant; slices alternate, so that
//! other load on the machine affects all of them. Afterwards experiments show how each contestant
//! behaves at its limits, so that the page reports observations and not promises.

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use self::contestant::Process;
use crate::workspace;

mod behaviour;
mod contestant;
mod install;
mod machine;
mod page;
mod peers;
mod report;
mod speed;

/// Measures this project beside other rate limiters, and observes each of them at its limits.
///
/// Installs the peers from PyPI, npm and crates.io into `target/peers`; only that needs a network.
/// Everything listens on 127.0.0.1. A run takes eight minutes after the builds.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rewrites the generated part of docs/comparison.md.
    #[arg(long, conflicts_with_all = ["json", "only"])]
    write: bool,
    /// Prints the results as JSON instead of Markdown.
    #[arg(long)]
    json: bool,
    /// Compares on these stores only.
    #[arg(long)]
    only: Vec<Store>,
    /// The number of slices of each contestant; the medians count.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    slices: u32,
    /// Milliseconds of a slice, after a lead-in that does not count.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..))]
    millis: u32,
    /// The number of tasks that ask at once, beside one task alone.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(2..))]
    tasks: u32,
    /// The number of keys that are asked for in turn, beside one key alone.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(2..))]
    keys: u32,
}

/// The place of the balances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Store {
    /// The embedded DynamoDB engine, over HTTP.
    Dynamodb,
    /// A Redis server.
    Redis,
    /// The memory of the contestant's process.
    Process,
}

impl Store {
    fn name(self) -> &'static str {
        match self {
            Self::Dynamodb => "dynamodb",
            Self::Redis => "redis",
            Self::Process => "process",
        }
    }
}

/// The results of a run.
struct Results {
    machine: machine::Machine,
    contestants: Vec<report::Contestant>,
    speeds: Vec<speed::Speed>,
    behaviours: Vec<behaviour::Behaviour>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    // An error of the page is better found before the run than after it.
    let page = if args.write { Some(page::read()?) } else { None };
    install::peers().context(
        "the peers come from PyPI, npm and crates.io, once: run this again with a network",
    )?;
    install::build()?;
    let stores = if args.only.is_empty() { Store::value_variants() } else { args.only.as_slice() };
    let results = measure(args, stores)?;
    let text = report::markdown(&results, args);
    match page {
        Some(page) => page::write(&page, &text)?,
        None if args.json => println!("{:#}", report::json(&results)),
        None => println!("{text}"),
    }
    Ok(())
}

fn measure(args: &Args, stores: &[Store]) -> Result<Results> {
    let mut servers = Process::start("servers", &mut peers::servers())?;
    let peers: Vec<_> = peers::all().into_iter().filter(|it| stores.contains(&it.store)).collect();
    let mut results = Results {
        machine: machine::Machine::look(servers.hello()["version"].as_str().unwrap_or_default()),
        contestants: Vec::new(),
        speeds: Vec::new(),
        behaviours: Vec::new(),
    };
    for store in stores {
        let peers: Vec<_> = peers.iter().filter(|peer| peer.store == *store).collect();
        let url = servers.hello()[store.name()].as_str().unwrap_or_default().to_owned();
        let mut running = Vec::new();
        for peer in &peers {
            let process = Process::start(peer.name, &mut peer.command(&url))?;
            let version = peer.version(process.hello())?;
            results.contestants.push(report::Contestant { peer: **peer, version });
            running.push((peer.name, process));
        }
        speed::measure(*store, args, &mut running, &mut results.speeds)?;
    }
    for peer in &peers {
        let url = servers.hello()[peer.store.faulty()].as_str().unwrap_or_default().to_owned();
        let mut process = Process::start(peer.name, &mut peer.command(&url))?;
        if peer.store == Store::Dynamodb {
            let of = |it: &&mut speed::Speed| it.store == peer.store && it.name == peer.name;
            let speeds = results.speeds.iter_mut().filter(of);
            speed::count_units(args, &mut process, &mut servers, speeds)?;
        }
        results.behaviours.push(behaviour::observe(peer, &mut process, &mut servers)?);
    }
    Ok(results)
}

impl Store {
    /// The same, behind the proxy that counts and loses requests.
    fn faulty(self) -> &'static str {
        match self {
            Self::Dynamodb => "dynamodb_metered",
            Self::Redis => "redis_lossy",
            Self::Process => "process",
        }
    }
}

/// The folder of the peers' installs, builds and logs.
fn folder() -> std::path::PathBuf {
    workspace::root().join("target").join("peers")
}
