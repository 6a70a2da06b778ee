//! Experiments with a contestant at its limits, each on a key of its own.

use anyhow::Result;
use serde_json::Value;

use super::contestant::Process;
use super::peers::Peer;
use super::scope::Store;

/// A hundred tokens that practically do not come back.
const TOKENS: u64 = 100;
const HUNDRED: &str = "a=100/86400";
const SECOND: &str = "b=10/86400";
const SECOND_TOKENS: u64 = 10;
/// Twenty tokens in four seconds, so that a fixed window and a refill differ after two.
const REFILLED: &str = "a=20/4";
pub(crate) const REFILLED_TOKENS: u64 = 20;
const HALF_PERIOD: std::time::Duration = std::time::Duration::from_secs(2);
const RUSH_TASKS: u32 = 32;
/// In-process decisions leave little time for a race; more rounds cost nothing there.
const RUSHES: u32 = 5;
const RUSHES_IN_PROCESS: u32 = 200;
/// Twice the tokens, so that every contestant refuses.
const ASKED: u64 = 2 * TOKENS;

/// The results of all experiments with one contestant.
#[derive(Debug, Clone)]
pub(crate) struct Behaviour {
    pub(crate) store: Store,
    pub(crate) name: &'static str,
    pub(crate) rush: Rush,
    /// The balance of a limit after another one refused.
    pub(crate) several: Several,
    /// The tokens, of 20, that were available after half of the period.
    pub(crate) refilled: u64,
    /// For stores whose answers can be lost.
    pub(crate) lost: Option<Lost>,
}

/// Tasks that contend for a hundred tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rush {
    pub(crate) rounds: u32,
    /// Rounds in which more was admitted than the limit.
    pub(crate) rounds_over: u32,
    pub(crate) admitted_most: u64,
    pub(crate) admitted_least: u64,
    pub(crate) failed: u64,
}

/// One request for a token of each of two limits, the second of which runs out first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Several {
    /// A call has one limit.
    One,
    /// A refusal takes nothing.
    AllOrNothing,
    /// Refusals took this many tokens of the first limit.
    Taken(u64),
}

/// A request whose answer was lost after the store had decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost {
    /// The number of times that its tokens were taken.
    pub(crate) counted: u64,
    pub(crate) is_admitted: bool,
}

/// The counts of an answer to `ask`.
#[derive(Debug, Clone, Copy)]
struct Counts {
    admitted: u64,
    failed: u64,
}

impl Counts {
    fn of(answer: &Value) -> Self {
        let count = |name: &str| answer[name].as_u64().unwrap_or_default();
        Self { admitted: count("admitted"), failed: count("failed") }
    }
}

/// Carries out all experiments with one contestant.
pub(crate) fn observe(
    peer: &Peer,
    process: &mut Process,
    servers: &mut Process,
) -> Result<Behaviour> {
    eprintln!("compare: guarantees of {} ({})", peer.name, peer.store.name());
    let mut ask = |key: &str, limits: &str, tasks: u32, asked: u64| {
        process.ask(&format!("ask {key} {limits} {tasks} {asked}")).map(|it| Counts::of(&it))
    };
    let rounds = if peer.store == Store::Process { RUSHES_IN_PROCESS } else { RUSHES };
    let rushes = (0..rounds)
        .map(|n| ask(&format!("rush-{n}"), HUNDRED, RUSH_TASKS, ASKED))
        .collect::<Result<Vec<_>>>()?;
    let both = ask("several", &format!("{HUNDRED},{SECOND}"), 1, ASKED)?;
    let several = if both.failed == ASKED {
        Several::One
    } else {
        several(both, ask("several", HUNDRED, 1, ASKED)?)
    };
    ask("refilled", REFILLED, 1, 2 * REFILLED_TOKENS)?;
    std::thread::sleep(HALF_PERIOD);
    let refilled = ask("refilled", REFILLED, 1, 2 * REFILLED_TOKENS)?.admitted;
    let lost = if peer.store == Store::Process {
        None
    } else {
        let before = ask("lost", HUNDRED, 1, 1)?;
        servers.ask(&format!("lose {}", peer.store.name()))?;
        let answer = ask("lost", HUNDRED, 1, 1)?;
        Some(lost(before, answer, ask("lost", HUNDRED, 1, ASKED)?))
    };
    Ok(Behaviour {
        store: peer.store,
        name: peer.name,
        rush: rush(&rushes),
        several,
        refilled,
        lost,
    })
}

fn rush(rounds: &[Counts]) -> Rush {
    let admitted = || rounds.iter().map(|round| round.admitted);
    Rush {
        rounds: u32::try_from(rounds.len()).unwrap_or(u32::MAX),
        rounds_over: admitted().filter(|admitted| *admitted > TOKENS).map(|_| 1).sum(),
        admitted_most: admitted().max().unwrap_or_default(),
        admitted_least: admitted().min().unwrap_or_default(),
        failed: rounds.iter().map(|round| round.failed).sum(),
    }
}

/// `both` asked for two limits until the second ran out, `first` for the rest of the first.
fn several(both: Counts, first: Counts) -> Several {
    match (TOKENS - SECOND_TOKENS).saturating_sub(first.admitted) {
        0 if both.admitted == SECOND_TOKENS => Several::AllOrNothing,
        taken => Several::Taken(taken),
    }
}

/// One request was answered, one was not, and the others asked for the rest.
fn lost(before: Counts, answer: Counts, rest: Counts) -> Lost {
    let counted = TOKENS.saturating_sub(before.admitted + rest.admitted);
    Lost { counted, is_admitted: answer.admitted == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(admitted: u64, failed: u64) -> Counts {
        Counts { admitted, failed }
    }

    #[test]
    fn a_rush_counts_rounds_that_admitted_too_much() {
        let rush = rush(&[counts(100, 0), counts(103, 2), counts(98, 1)]);
        let expected =
            Rush { rounds: 3, rounds_over: 1, admitted_most: 103, admitted_least: 98, failed: 3 };
        assert_eq!(rush, expected);
    }

    #[test]
    fn refusals_that_took_tokens_are_told_from_those_that_did_not() {
        assert_eq!(several(counts(10, 0), counts(90, 0)), Several::AllOrNothing);
        assert_eq!(several(counts(10, 0), counts(0, 0)), Several::Taken(90));
        assert_eq!(several(counts(10, 0), counts(50, 0)), Several::Taken(40));
    }

    #[test]
    fn lost_answers_took_the_tokens_that_are_missing_in_the_end() {
        let found = |answer, rest| lost(counts(1, 0), answer, rest);
        let expected = |counted, is_admitted| Lost { counted, is_admitted };
        assert_eq!(found(counts(1, 0), counts(98, 0)), expected(1, true));
        assert_eq!(found(counts(1, 0), counts(97, 0)), expected(2, true));
        assert_eq!(found(counts(0, 1), counts(98, 0)), expected(1, false));
        assert_eq!(found(counts(0, 1), counts(99, 0)), expected(0, false));
    }
}
