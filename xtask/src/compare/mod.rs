//! `cargo xtask compare`: this project beside other rate limiters, in one run on the same servers.
//!
//! Every limiter is a process of its own (a *contestant*) that carries out orders which it reads
//! from its standard input. One slice of time belongs to one contestant; slices alternate, so that
//! other load on the machine affects all of them. Afterwards experiments show how each contestant
//! behaves at its limits, so that the page reports observations and not promises.

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;

use self::contestant::Process;
use self::report::Results;
use self::scope::Store;

mod behaviour;
mod contestant;
mod install;
mod machine;
mod page;
mod peers;
mod report;
mod scope;
mod speed;

pub(crate) use self::scope::Args;

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
