//! Measures how fast each contestant admits: slices in turn, each after a lead-in; medians of the
//! slices.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::contestant::Process;
use super::scope::{Args, Store};

/// A limit that no contestant reaches, and that each can count: three billion a minute.
const AMPLE: &str = "a=3000000000/60";

/// A contestant with this number of tasks and keys.
#[derive(Debug, Clone)]
pub(crate) struct Speed {
    pub(crate) store: Store,
    pub(crate) name: &'static str,
    pub(crate) tasks: u32,
    pub(crate) keys: u32,
    pub(crate) per_second: f64,
    /// Requests that were refused or failed, although there were tokens.
    pub(crate) not_admitted: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Write and read units for each admission, on DynamoDB.
    pub(crate) units: Option<(f64, f64)>,
}

/// Measures all contestants on one store.
pub(crate) fn measure(
    store: Store,
    args: &Args,
    running: &mut [(&'static str, Process)],
    speeds: &mut Vec<Speed>,
) -> Result<()> {
    for (_, process) in running.iter_mut() {
        admitted(&process.ask(&format!("warm {AMPLE} {}", args.keys))?)?;
    }
    for (tasks, keys) in settings(args) {
        eprintln!("compare: {}, tasks: {tasks}, keys: {keys}", store.name());
        let mut slices = vec![Vec::new(); running.len()];
        for _ in 0..args.slices {
            for ((_, process), slices) in running.iter_mut().zip(&mut slices) {
                process.ask(&slice(tasks, keys, lead_in(store, args)))?;
                slices.push(process.ask(&slice(tasks, keys, args.millis))?);
            }
        }
        for ((name, _), slices) in running.iter().zip(&slices) {
            let rates = slices.iter().map(per_second).collect::<Result<Vec<_>>>()?;
            let median_of = |name: &str| {
                median(slices.iter().filter_map(|slice| slice[name].as_f64()).collect())
            };
            speeds.push(Speed {
                store,
                name,
                tasks,
                keys,
                per_second: median(rates),
                not_admitted: slices.iter().map(not_admitted).sum(),
                p50_us: median_of("p50_us"),
                p99_us: median_of("p99_us"),
                units: None,
            });
        }
    }
    Ok(())
}

/// Counts the units of each setting on DynamoDB, in slices of their own through the proxy.
pub(crate) fn count_units<'a>(
    args: &Args,
    process: &mut Process,
    servers: &mut Process,
    speeds: impl Iterator<Item = &'a mut Speed>,
) -> Result<()> {
    process.ask(&format!("warm {AMPLE} {}", args.keys))?;
    for speed in speeds {
        eprintln!("compare: units of {}, tasks: {}, keys: {}", speed.name, speed.tasks, speed.keys);
        process.ask(&slice(speed.tasks, speed.keys, lead_in(speed.store, args)))?;
        servers.ask("units")?;
        let admitted = admitted(&process.ask(&slice(speed.tasks, speed.keys, args.millis))?)?;
        let units = servers.ask("units")?;
        let each = |kind: &str| units[kind].as_f64().unwrap_or_default() / admitted;
        speed.units = Some((each("write"), each("read")));
    }
    Ok(())
}

fn settings(args: &Args) -> [(u32, u32); 4] {
    [(1, 1), (args.tasks, 1), (1, args.keys), (args.tasks, args.keys)]
}

fn slice(tasks: u32, keys: u32, millis: u32) -> String {
    format!("slice {AMPLE} {tasks} {keys} {millis}")
}

/// The milliseconds before a slice that do not count. A leasing limiter gives tokens back while the
/// others run, and needs two seconds to lease for a thousand keys again.
fn lead_in(store: Store, args: &Args) -> u32 {
    match store {
        Store::Dynamodb => 2 * args.millis,
        Store::Redis | Store::Process => args.millis / 2,
    }
}

fn per_second(slice: &Value) -> Result<f64> {
    Ok(admitted(slice)? / slice["seconds"].as_f64().unwrap_or_default())
}

/// The admissions of a slice. Without any, there is nothing to measure.
fn admitted(slice: &Value) -> Result<f64> {
    let admitted = slice["admitted"].as_f64().unwrap_or_default();
    ensure!(admitted > 0.0, "nothing was admitted: {slice}");
    Ok(admitted)
}

fn not_admitted(slice: &Value) -> u64 {
    let count = |name: &str| slice[name].as_u64().unwrap_or_default();
    count("refused") + count("failed")
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_median_is_not_moved_by_one_slow_slice() {
        assert_eq!(median(vec![900.0, 3.0, 1_000.0, 950.0, 910.0]), 910.0);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn a_rate_is_of_admissions_only() {
        let slice = json!({ "admitted": 100, "refused": 1, "failed": 2, "seconds": 0.5 });
        assert_eq!((per_second(&slice).unwrap(), not_admitted(&slice)), (200.0, 3));
        per_second(&json!({ "admitted": 0, "failed": 9, "seconds": 0.5 })).unwrap_err();
    }
}
