//! The results as Markdown for the page, and as JSON for scripts.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::behaviour::{Behaviour, Lost, REFILLED_TOKENS, Rush, Several};
use super::machine::Machine;
use super::peers::Peer;
use super::scope::{Args, Store};
use super::speed::Speed;
use crate::scale::thousands;

/// The results of a run.
pub(super) struct Results {
    pub(super) machine: Machine,
    pub(super) contestants: Vec<Contestant>,
    pub(super) speeds: Vec<Speed>,
    pub(super) behaviours: Vec<Behaviour>,
}

/// A peer that ran.
pub(crate) struct Contestant {
    pub(crate) peer: Peer,
    pub(crate) version: String,
}

pub(crate) fn markdown(results: &Results, args: &Args) -> String {
    let (millis, slices) = (args.millis, args.slices);
    let mut text = format!(
        "Medians of {slices} slices of {millis} ms, in turn. {}\n\n",
        results.machine.markdown()
    );
    text += &format!("Versions: {}.\n", versions(&results.contestants));
    for store in [Store::Dynamodb, Store::Redis, Store::Process] {
        let speeds: Vec<_> = results.speeds.iter().filter(|it| it.store == store).collect();
        if !speeds.is_empty() {
            text += &format!("\n## {}\n\n{}", title(store), speed_table(store, &speeds));
        }
    }
    text + "\n## At the limit\n\n" + &behaviour_table(&results.behaviours)
}

fn versions(contestants: &[Contestant]) -> String {
    let versioned = contestants.iter().filter(|it| !it.version.is_empty());
    let versions: BTreeSet<_> =
        versioned.map(|it| format!("{} {}", it.peer.package(), it.version)).collect();
    versions.into_iter().collect::<Vec<_>>().join(", ")
}

fn title(store: Store) -> &'static str {
    match store {
        Store::Dynamodb => "On DynamoDB",
        Store::Redis => "On Redis",
        Store::Process => "In the process",
    }
}

/// The table of one store. Ratios are to this project without leasing, if it ran.
fn speed_table(store: Store, speeds: &[&Speed]) -> String {
    let (unit, factor, tasks) = match store {
        Store::Dynamodb | Store::Redis => ("µs", 1.0, "tasks"),
        Store::Process => ("ns", 1e3, "threads"),
    };
    let has_units = store == Store::Dynamodb;
    let (more, rule) =
        if has_units { (" write units | read units |", "--:|--:|") } else { ("", "") };
    let mut table = format!(
        "| {tasks} | keys | | admitted/s | | p50 {unit} | p99 {unit} |{more}\n|--:|--:|---|--:|--:|--:|--:|{rule}\n"
    );
    for speed in speeds {
        let (tasks, keys) = (speed.tasks, thousands(f64::from(speed.keys)));
        let name = match speed.not_admitted {
            0 => speed.name.to_owned(),
            n => format!("{} ({n} not admitted)", speed.name),
        };
        let ours = speeds.iter().find(|it| {
            (it.tasks, it.keys) == (speed.tasks, speed.keys)
                && it.name.starts_with(super::peers::OURS)
        });
        let ratio = ours.map_or(f64::NAN, |ours| speed.per_second / ours.per_second);
        let (p50, p99) = (speed.p50_us * factor, speed.p99_us * factor);
        let rate = thousands(speed.per_second);
        let (p50, p99, ratio) = (digits(p50), digits(p99), digits(ratio));
        table += &format!("| {tasks} | {keys} | {name} | {rate} | {ratio}x | {p50} | {p99} |");
        if let Some((write, read)) = speed.units {
            table += &format!(" {write:.3} | {read:.3} |");
        }
        table.push('\n');
    }
    table
}

fn behaviour_table(behaviours: &[Behaviour]) -> String {
    let mut table = "| store | | 32 tasks ask for 100 tokens: admitted | one limit of two refuses | tokens of 20 after half a period | an answer is lost |\n|---|---|---|---|--:|---|\n".to_owned();
    for it in behaviours {
        let Behaviour { store, name, rush, several, refilled, lost } = it;
        let (store, rush) = (title(*store), rush_text(*rush));
        let (several, lost) = (several_text(*several), lost.map_or("-".to_owned(), lost_text));
        table += &format!(
            "| {store} | {name} | {rush} | {several} | {refilled} of {REFILLED_TOKENS} | {lost} |\n"
        );
    }
    table
}

fn rush_text(rush: Rush) -> String {
    let Rush { rounds, rounds_over, admitted_most, admitted_least, failed } = rush;
    let mut text = if admitted_most == admitted_least {
        format!("{admitted_most} in each of {rounds} rounds")
    } else {
        format!("{admitted_least} to {admitted_most} in {rounds} rounds")
    };
    if rounds_over > 0 {
        text += &format!(", **too many in {rounds_over}**");
    }
    if failed > 0 {
        text += &format!(", {failed} errors");
    }
    text
}

fn several_text(several: Several) -> String {
    match several {
        Several::One => "a call has one limit".to_owned(),
        Several::AllOrNothing => "takes nothing".to_owned(),
        Several::Taken(tokens) => format!("takes from the other ({tokens} of 90)"),
    }
}

fn lost_text(lost: Lost) -> String {
    let told = if lost.is_admitted { "admitted" } else { "an error" };
    let counted = match lost.counted {
        0 => "not taken".to_owned(),
        1 => "taken once".to_owned(),
        n => format!("**taken {n} times**"),
    };
    format!("{counted}; the caller sees {told}")
}

/// At most two decimals, fewer for large numbers.
fn digits(number: f64) -> String {
    match number {
        n if n >= 100.0 => thousands(n),
        n if n >= 10.0 => format!("{n:.1}"),
        n => format!("{n:.2}"),
    }
}

pub(crate) fn json(results: &Results) -> Value {
    let versions = results.contestants.iter().map(
        |it| json!({ "store": it.peer.store.name(), "name": it.peer.name, "version": it.version }),
    );
    let speeds = results.speeds.iter().map(|it| {
        json!({
            "store": it.store.name(), "name": it.name, "tasks": it.tasks, "keys": it.keys,
            "per_second": it.per_second, "not_admitted": it.not_admitted, "p50_us": it.p50_us, "p99_us": it.p99_us,
            "write_units": it.units.map(|(write, _)| write),
            "read_units": it.units.map(|(_, read)| read),
        })
    });
    let behaviours = results.behaviours.iter().map(|it| {
        json!({
            "store": it.store.name(), "name": it.name, "rounds": it.rush.rounds,
            "rounds_over": it.rush.rounds_over, "admitted_most": it.rush.admitted_most,
            "admitted_least": it.rush.admitted_least, "failed": it.rush.failed,
            "several_limits": several_text(it.several), "refilled": it.refilled,
            "lost_answer_counted": it.lost.map(|lost| lost.counted),
            "lost_answer_admitted": it.lost.map(|lost| lost.is_admitted),
        })
    });
    json!({
        "machine": results.machine.json(),
        "versions": versions.collect::<Vec<_>>(),
        "speeds": speeds.collect::<Vec<_>>(),
        "behaviours": behaviours.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(name: &'static str, per_second: f64, units: Option<(f64, f64)>) -> Speed {
        let (store, tasks, keys, not_admitted) = (Store::Dynamodb, 32, 1_000, 0);
        let (p50_us, p99_us) = (1_234.0, 20_000.0);
        Speed { store, name, tasks, keys, per_second, not_admitted, p50_us, p99_us, units }
    }

    #[test]
    fn a_row_has_its_ratio_to_this_project_and_its_units() {
        let speeds = [
            Speed { not_admitted: 3, ..speed("peer", 500.0, Some((2.0, 0.5))) },
            speed("Sluicegate", 2_000.0, Some((1.0, 0.0))),
            speed("Sluicegate, leasing", 1_000_000.0, None),
        ];
        let table = speed_table(Store::Dynamodb, &speeds.iter().collect::<Vec<_>>());
        let rows: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| 32 | 1,000 | peer (3 not admitted) | 500 | 0.25x | 1,234 | 20,000 | 2.000 | 0.500 |",
                "| 32 | 1,000 | Sluicegate | 2,000 | 1.00x | 1,234 | 20,000 | 1.000 | 0.000 |",
                "| 32 | 1,000 | Sluicegate, leasing | 1,000,000 | 500x | 1,234 | 20,000 |",
            ]
        );
        let columns = |line: &str| line.matches('|').count();
        let lines: Vec<_> = table.lines().collect();
        assert_eq!([columns(lines[0]), columns(lines[1])], [columns(rows[0]); 2]);
    }

    #[test]
    fn too_many_and_taken_twice_stand_out() {
        let rush = |admitted_least, admitted_most, rounds_over, failed| {
            rush_text(Rush { rounds: 5, rounds_over, admitted_most, admitted_least, failed })
        };
        assert_eq!(rush(100, 100, 0, 0), "100 in each of 5 rounds");
        assert_eq!(rush(99, 102, 2, 7), "99 to 102 in 5 rounds, **too many in 2**, 7 errors");
        let lost = |counted, is_admitted| lost_text(Lost { counted, is_admitted });
        assert_eq!(lost(1, true), "taken once; the caller sees admitted");
        assert_eq!(lost(2, false), "**taken 2 times**; the caller sees an error");
    }

    #[test]
    fn numbers_are_grouped_and_short() {
        assert_eq!(thousands(1_234_567.4), "1,234,567");
        assert_eq!(thousands(999.6), "1,000");
        assert_eq!(["0.13", "12.3", "1,234"], [digits(0.126), digits(12.34), digits(1_234.4)]);
    }
}
