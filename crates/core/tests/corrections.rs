//! Corrections, as the write queue writes them: conditions, dropped limits, memory of ids,
//! expiries.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests panic")]

#[allow(dead_code, unused_imports, reason = "shared with other tests")]
#[path = "support/fixtures.rs"]
mod fixtures;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "support/lone.rs"]
mod lone;

use std::sync::Arc;

use sluicegate_core::{
    Action, Amounts, Answer, CompositeBucket, Condition, Configuration, ContentionEstimate,
    KnownImage, LimitBalance, Millitokens, Outcome, Purpose, QueuedRequest, RequestId, Rule, Rules,
    RulesHash, StateOnLeave, WritePath, WritePlan, extend,
};

use self::fixtures::{T0, at, bucket_id, milli, name, rule};
use self::lone::{Lone, Step, done, request};

const HOUR_MS: i64 = 3_600_000;

fn asks(amounts: &[(&str, i64)]) -> Amounts {
    amounts.iter().map(|(limit, amount)| (name(limit), milli(*amount))).collect()
}

/// 60 a minute, at most 60 at once.
fn rpm() -> Rule {
    rule(60_000, 60_000, 60_000)
}

fn configuration() -> Configuration {
    Configuration::explicit(Rules::from([(name("rpm"), rpm()), (name("tpm"), rpm())]))
}

/// Claimed at T0, expires when both could have filled twice.
fn item(tokens: i64) -> CompositeBucket {
    let rules = configuration().rules();
    let bucket = |rule| LimitBalance { rule, tokens: milli(tokens), consumed: milli(7_000).into() };
    CompositeBucket {
        entity: bucket_id().entity,
        resource: bucket_id().resource,
        refilled_at: at(T0),
        rules_hash: Some(RulesHash::of(&rules)),
        limits: rules.into_iter().map(|(limit, rule)| (limit, bucket(rule))).collect(),
        expires_at_s: Some(T0 / 1_000 + 180),
        config_stamp: sluicegate_core::ConfigStamp::None,
        request_ids: Vec::new(),
    }
}

fn id(bits: u64) -> RequestId {
    RequestId::from_bits(bits)
}

fn corrects(bits: u64, amounts: &[(&str, i64)], now_ms: i64) -> QueuedRequest {
    request(id(bits), Purpose::Correct, asks(amounts), &configuration(), at(now_ms))
}

fn acquires(bits: u64, amount: i64, now_ms: i64) -> QueuedRequest {
    let amounts = asks(&[("rpm", amount)]);
    request(id(bits), Purpose::Acquire, amounts, &configuration(), at(now_ms))
}

/// A process that read the item when it was last refilled.
fn seeing(item: &CompositeBucket) -> Lone {
    Lone::seeing(Some(item), at(T0))
}

#[test]
fn correction_of_an_expired_bucket_leaves_one_that_works() {
    for (amount, tokens) in [(10_000, 50_000), (-10_000, 60_000), (90_000, -30_000)] {
        let mut process = Lone::seeing(None, at(T0));
        let mut item = None;
        let outcome = process.run(corrects(1, &[("rpm", amount)], T0), &mut item, at(T0));
        assert_eq!(done(outcome).path, Some(WritePath::Create));
        let created = item.clone().unwrap();
        let (rpm, tpm) = (created.limits[&name("rpm")], created.limits[&name("tpm")]);
        assert_eq!((rpm.tokens, rpm.consumed), (milli(tokens), milli(amount).into()));
        assert_eq!((tpm.tokens, tpm.consumed), (milli(60_000), milli(0).into()));
        assert_eq!(extend(&created, at(T0)), None, "its expiry covers the debt");
        let later = T0 + 60_000;
        done(process.run(acquires(2, 30_000, later), &mut item, at(later)));
        let rpm = item.unwrap().limits[&name("rpm")];
        assert_eq!(rpm.consumed, milli(amount + 30_000).into());
    }
}

#[test]
fn correction_of_a_removed_limit_is_dropped_and_reported() {
    let item = item(0);
    let mut process = seeing(&item);
    process.queue.enter(corrects(1, &[("gone", -5_000), ("rpm", -3_000)], T0), (), at(T0));
    let Step::Writes(plan) = process.step(Some(&item), at(T0)) else { panic!("a write") };
    let after = plan.apply(Some(&item)).unwrap();
    assert_eq!(after.limits[&name("rpm")].tokens, milli(3_000));
    assert_eq!(after.limits.len(), 2, "no stump");
    process.written(Some(&after), at(T0));
    let outcome = process.finish(&mut Some(after), at(T0));
    assert_eq!(done(outcome).dropped, [name("gone")]);
    for image in [Some(item.clone()), None] {
        let mut process = Lone::seeing(image.as_ref(), at(T0));
        let mut stored = image.clone();
        let alone = process.run(corrects(1, &[("gone", -5_000)], T0), &mut stored, at(T0));
        let alone = done(alone);
        assert_eq!((alone.path, alone.dropped), (None, vec![name("gone")]));
        assert_eq!(stored, image, "nothing is written");
    }
    // The limit was removed while the write was in flight.
    let mut removed = item.clone();
    removed.limits.remove(&name("rpm"));
    assert_eq!(plan.apply(Some(&removed)), None);
    assert!(!plan.holds(Some(&removed)) && !plan.holds(None));
    let mut process = seeing(&item);
    let both = corrects(1, &[("rpm", -3_000), ("tpm", -1)], T0);
    let outcome = done(process.run(both, &mut Some(removed), at(T0)));
    assert_eq!((outcome.dropped, outcome.attempts), (vec![name("rpm")], 2));
}

#[test]
fn debit_keeps_the_conditions_of_an_acquire_and_not_its_floor() {
    let item = item(1_000);
    for (after_ms, path) in [(50, WritePath::Unclaimed), (500, WritePath::Claim)] {
        let now = T0 + after_ms;
        let plan = seeing(&item).plan(corrects(1, &[("rpm", 5_000)], now), at(now));
        assert_eq!(plan.path, path);
        let least = |c: &Condition| matches!(c, Condition::AtLeast(_, least) if *least > 0);
        assert!(!plan.conditions.iter().any(least), "{plan:?}");
        let after = plan.apply(Some(&item)).unwrap();
        assert!(after.limits[&name("rpm")].tokens < Millitokens::ZERO, "{after:?}");
        // The bucket filled up meanwhile: the debit would be forgiven by that refill.
        let mut full = item.clone();
        full.limits.get_mut(&name("rpm")).unwrap().tokens = milli(60_000);
        assert_eq!(plan.apply(Some(&full)), None, "{path:?}");
    }
}

#[test]
fn correction_that_takes_one_limit_and_overfills_another_lands_at_once() {
    let mut most = item(1_000);
    let tpm = most.limits.get_mut(&name("tpm")).unwrap();
    tpm.rule = rule(Millitokens::MAX.get(), 0, 1);
    tpm.tokens = Millitokens::MAX;
    let both = [("rpm", 5_000), ("tpm", -5_000)];
    for after_ms in [50, 500] {
        let now = T0 + after_ms;
        let plan = seeing(&most).plan(corrects(1, &both, now), at(now));
        let after = plan.apply(Some(&most)).unwrap();
        let tpm = after.limits[&name("tpm")];
        assert_eq!((tpm.tokens, tpm.consumed), (Millitokens::MAX, milli(2_000).into()));
    }
}

#[test]
fn acquire_takes_all_that_it_asks_from_a_debt_that_refill_covers() {
    let (most, now) = (Millitokens::MAX, at(T0 + 3_000));
    let limits = Rules::from([(name("rpm"), rule(most.get(), most.get(), 1_000))]);
    let mut debt = item(Millitokens::MIN.get());
    debt.limits.retain(|limit, _| limits.contains_key(limit));
    debt.limits.get_mut(&name("rpm")).unwrap().rule = limits[&name("rpm")];
    debt.rules_hash = Some(RulesHash::of(&limits));
    let (amounts, limits) = (asks(&[("rpm", most.get())]), Configuration::explicit(limits));
    let asked = request(id(1), Purpose::Acquire, amounts, &limits, now);
    let plan = seeing(&debt).plan(asked, now);
    let rpm = plan.apply(Some(&debt)).unwrap().limits[&name("rpm")];
    assert_eq!((rpm.tokens, rpm.consumed.get()), (milli(0), i128::from(most.get()) + 7_000));
}

#[test]
fn forced_debit_lands_whatever_the_balance() {
    let now = T0 + HOUR_MS;
    for tokens in [60_000, 0, -70_000] {
        let item = item(tokens);
        let mut process = seeing(&item);
        process.queue.enter(corrects(1, &[("rpm", 5_000)], now), (), at(now));
        process.queue.force(&id(1));
        let Step::Writes(plan) = process.step(None, at(now)) else { panic!("a write") };
        assert_eq!(plan.path, WritePath::AddOnly);
        let is_there = Condition::AtLeast(name("rpm"), Millitokens::MIN.get() + 5_000);
        assert_eq!(plan.conditions, [Condition::Unseen(id(1)), is_there]);
        let after = plan.apply(Some(&item)).unwrap();
        let rpm = after.limits[&name("rpm")];
        assert_eq!((rpm.tokens, rpm.consumed), (milli(tokens - 5_000), milli(12_000).into()));
        assert_eq!(after.refilled_at, item.refilled_at);
        process.written(Some(&after), at(now));
        assert!(done(process.finish(&mut Some(after), at(now))).is_forced);
    }
}

#[test]
fn item_remembers_the_last_four_ids() {
    let refund = |bits| corrects(bits, &[("rpm", -1)], T0);
    let mut item = item(0);
    for bits in 1..=4 {
        let plan = seeing(&item).plan(refund(bits), at(T0));
        item = plan.apply(Some(&item)).unwrap();
        // A first attempt that was late does not land again.
        assert_eq!(plan.apply(Some(&item)), None);
    }
    assert_eq!(item.request_ids, [id(4), id(3), id(2), id(1)]);
    for is_forced in [false, true] {
        let (mut process, mut stored) = (seeing(&item), Some(item.clone()));
        process.queue.enter(refund(1), (), at(T0));
        if is_forced {
            process.queue.force(&id(1));
        }
        assert_eq!(done(process.finish(&mut stored, at(T0))).path, None, "it was applied");
        assert_eq!(stored.as_ref(), Some(&item));
    }
    let fifth = seeing(&item).plan(refund(5), at(T0));
    item = fifth.apply(Some(&item)).unwrap();
    assert_eq!(item.request_ids, [id(5), id(4), id(3), id(2)]);
    let first = seeing(&item).plan(refund(1), at(T0));
    assert!(first.holds(Some(&item)), "the item has forgotten it");
}

#[test]
fn idle_bucket_gives_its_burst_once_whatever_drains_it() {
    // No request came for an hour: every image is as old as that.
    let idle = item(60_000);
    let start = T0 + HOUR_MS;
    let estimates = [ContentionEstimate::QUIET, ContentionEstimate::CLAIMED];
    let debits = [None, Some(estimates[0]), Some(estimates[1])];
    for (debit, estimate) in debits.into_iter().flat_map(|debit| estimates.map(|e| (debit, e))) {
        let (mut stored, mut taken) = (Some(idle.clone()), 0);
        let mut acquirer = seeing(&idle);
        if let Some(estimate) = debit {
            let mut corrector = seeing(&idle);
            *corrector.queue.contention(0) = estimate;
            let debit = corrects(1, &[("rpm", 40_000)], start);
            done(corrector.run(debit, &mut stored, at(start)));
            taken = 40_000;
        }
        for now_ms in start..start + 1_000 {
            // A write that assumes a claim fails where there was none. Then the queue knows better.
            *acquirer.queue.contention(0) = estimate;
            let bits = 1_000_000 + u64::try_from(now_ms - T0).unwrap();
            match acquirer.run(acquires(bits, 1_000, now_ms), &mut stored, at(now_ms)) {
                Outcome::Done(_) => taken += 1_000,
                Outcome::Refused(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert!((60_000..=61_000).contains(&taken), "{debit:?} {estimate:?}: {taken}");
    }
}

#[test]
fn debt_that_the_expiry_does_not_cover_moves_it() {
    assert_eq!(extend(&item(-50_000), at(T0)), None);
    let debt = item(-400_000);
    let now = T0 + 5_000;
    let plan = extend(&debt, at(now)).unwrap();
    let after = plan.apply(Some(&debt)).unwrap();
    // A minute, and twice the 460 seconds from the debt to full, in whole seconds.
    let covered_s = (now + 999) / 1_000 + 60 + 2 * 460;
    assert_eq!(after.expires_at_s, Some(covered_s));
    assert_eq!(extend(&after, at(now)), None);
    assert_eq!(plan.apply(Some(&after)), None, "never moved back");
    let kept = CompositeBucket { expires_at_s: None, ..debt };
    assert_eq!(extend(&kept, at(T0)), None);
}

#[test]
fn forced_debit_moves_the_expiry_before_it_is_done() {
    let now = T0 + 5_000;
    for (amount, is_moved) in [(60_000, false), (400_000, true)] {
        let mut process = seeing(&item(0));
        process.queue.enter(corrects(1, &[("rpm", amount)], now), (), at(now));
        process.queue.force(&id(1));
        let mut stored = Some(item(0));
        done(process.finish(&mut stored, at(now)));
        let stored = stored.unwrap();
        assert_eq!(stored.expires_at_s != item(0).expires_at_s, is_moved, "{amount}");
        assert_eq!(extend(&stored, at(now)), None, "{amount}");
    }
}

#[test]
fn claim_from_an_old_image_does_not_shorten_the_expiry_of_a_debt() {
    let now = T0 + 500;
    let seen = item(30_000);
    let after_debit_of = |amount: i64| {
        let mut process = seeing(&seen);
        process.queue.enter(corrects(1, &[("tpm", amount)], T0), (), at(T0));
        process.queue.force(&id(1));
        let mut stored = Some(seen.clone());
        done(process.finish(&mut stored, at(T0)));
        stored.unwrap()
    };
    let requests = [acquires(3, 1_000, now), corrects(2, &[("rpm", 70_000)], now)];
    for request in requests {
        let claim = seeing(&seen).plan(request, at(now));
        assert_eq!(claim.path, WritePath::Claim);
        for (debit, is_covered) in [(60_000, true), (90_000, true), (1_000_000, false)] {
            let stored = after_debit_of(debit);
            let after = claim.apply(Some(&stored));
            assert_eq!(after.is_some(), is_covered, "{debit}: {claim:?}");
            let Some(after) = after else { continue };
            assert_eq!(extend(&after, at(now)), None, "{debit}");
        }
    }
}

/// The first request is short, and the item is to be brought to its limits before it is refused;
/// but the second one can be served, and its write goes first.
#[test]
fn a_write_of_others_does_not_keep_a_refused_request_from_bringing_its_limits() {
    let mut item = Some(item(5_000));
    let mut process = Lone::seeing(item.as_ref(), at(T0));
    let raised = Rules::from([(name("rpm"), rule(90_000, 90_000, 60_000)), (name("tpm"), rpm())]);
    let raised = Configuration::explicit(raised);
    let short = request(id(1), Purpose::Acquire, asks(&[("rpm", 80_000)]), &raised, at(T0));
    process.queue.enter(short, (), at(T0));
    assert_eq!(process.queue.next(at(T0), &mut || id(9)), Action::Read(vec![0]));
    process.queue.enter(acquires(2, 1_000, T0), (), at(T0));
    process.queue.answered(Answer::Read(vec![item.clone().map(Arc::new)]), at(T0));
    let Step::Writes(plan) = process.step(None, at(T0)) else { panic!("a write") };
    item = plan.apply(item.as_ref());
    assert_eq!(item.as_ref().unwrap().limits[&name("rpm")].tokens, milli(4_000));
    process.written(item.as_ref(), at(T0));
    assert!(matches!(process.queue.drain_resolved()[..], [((), Outcome::Done(_))]));
    let refused = process.finish(&mut item, at(T0));
    assert!(matches!(refused, Outcome::Refused(_)), "{refused:?}");
    assert_eq!(item.unwrap().limits[&name("rpm")].rule, rule(90_000, 90_000, 60_000));
}

/// An item that remembers these ids.
fn remembering(ids: [u64; 4]) -> CompositeBucket {
    CompositeBucket { request_ids: ids.map(id).into(), ..item(5_000) }
}

/// Each write is lost on its way, and others come before it when it is sent again. A write fences
/// two lost ones. The first of three may still arrive, so its refund must not be made again.
#[test]
fn a_refund_is_not_made_again_once_its_first_write_is_no_longer_fenced() {
    let mut process = seeing(&item(5_000));
    process.queue.enter(corrects(1, &[("rpm", -3_000)], T0), (), at(T0));
    let mut lost = Vec::new();
    for other in 0..3 {
        let ids = (0..=other).map(|other| id(20 + other)).collect();
        let now = CompositeBucket { request_ids: ids, ..item(4_000) };
        lost.push(next_write(&mut process, &now, id(10 + other)));
        process.queue.answered(Answer::Lost, at(T0));
        next_write(&mut process, &now, id(10 + other));
        process.refused(Some(&now), at(T0));
        assert_eq!(process.queue.drain_resolved(), []);
    }
    loop {
        match process.queue.next(at(T0), &mut || id(13)) {
            Action::Pause { .. } | Action::Idle => {}
            Action::Read(_) => {
                process.queue.answered(Answer::Read(vec![Some(Arc::new(item(4_000)))]), at(T0))
            }
            Action::Write(write) => panic!("{write:?}"),
        }
        if let Some(((), outcome)) = process.queue.drain_resolved().pop() {
            break assert_eq!(outcome, Outcome::Ambiguous);
        }
    }
    assert!(lost[0].holds(Some(&item(4_000))), "it may still arrive");
}

/// The next write of a process that reads `item` before; `new_id` names it.
fn next_write(process: &mut Lone, item: &CompositeBucket, new_id: RequestId) -> WritePlan {
    loop {
        match process.queue.next(at(T0), &mut || new_id.clone()) {
            Action::Write(write) => return write.plans[0].1.clone(),
            Action::Read(_) => {
                let image = Some(Arc::new(item.clone()));
                process.queue.answered(Answer::Read(vec![image]), at(T0));
            }
            Action::Pause { .. } => {}
            Action::Idle => panic!("the request waits for nothing"),
        }
    }
}

/// The refund took effect and its answer was lost. Four other writes came, and the process saw them
/// elsewhere before it knew of the loss: the refund must not be made again.
#[test]
fn ids_that_came_after_a_lost_refund_are_no_evidence_against_it() {
    let before = remembering([11, 12, 13, 14]);
    let mut process = seeing(&before);
    process.queue.enter(corrects(1, &[("rpm", -3_000)], T0), (), at(T0));
    let Step::Writes(plan) = process.step(Some(&before), at(T0)) else { panic!("a write") };
    assert!(plan.apply(Some(&before)).unwrap().request_ids.contains(&id(1)));
    let after = remembering([21, 22, 23, 24]);
    let (image, as_of) = (Some(Arc::new(after.clone())), at(T0 + 1));
    process.queue.learn_unless_older(0, &KnownImage { image, as_of, is_authoritative: true });
    process.queue.answered(Answer::Lost, at(T0 + 2));
    let step = process.step(Some(&after), at(T0 + 3));
    assert_eq!(step, Step::Ends(Outcome::Ambiguous));
}

/// A pause may be longer while only corrections wait. The acquire of a write in doubt waits, too.
#[test]
fn an_acquire_in_doubt_does_not_pause_as_a_correction() {
    let claimed = CompositeBucket { refilled_at: at(T0 + 1), ..item(50_000) };
    for (request, only_corrects) in
        [(acquires(1, 10_000, T0), false), (corrects(1, &[("rpm", -3_000)], T0), true)]
    {
        let mut process = seeing(&item(50_000));
        process.queue.enter(request, (), at(T0));
        let Step::Writes(_) = process.step(None, at(T0)) else { panic!("a write") };
        process.refused(Some(&claimed), at(T0 + 2));
        let Step::Writes(_) = process.step(None, at(T0 + 2)) else { panic!("a second write") };
        process.queue.answered(Answer::Lost, at(T0 + 3));
        let action = process.queue.next(at(T0 + 3), &mut || id(99));
        assert_eq!(
            action,
            Action::Pause { pauses_in_a_row: 1, corrections_were_outrun: only_corrects }
        );
    }
}

/// The answer to a refund was lost, another writer came before its repetition, and then the table
/// could not be used any more, or stayed busy: the refund may have been made.
#[test]
fn a_refund_that_an_earlier_write_carried_stays_in_doubt() {
    let item = remembering([11, 12, 13, 14]);
    for last in [Answer::TableUnusable, Answer::Busy] {
        let mut process = seeing(&item);
        process.queue.enter(corrects(1, &[("rpm", -3_000)], T0), (), at(T0));
        let Step::Writes(_) = process.step(Some(&item), at(T0)) else { panic!("a write") };
        process.queue.answered(Answer::Lost, at(T0));
        let Step::Writes(_) = process.step(Some(&item), at(T0)) else { panic!("a repetition") };
        process.refused(Some(&item), at(T0));
        // Its own id may come with the lost write, so further writes have another.
        let outcome = loop {
            match process.queue.next(at(T0), &mut || id(99)) {
                Action::Write(_) => process.queue.answered(last.clone(), at(T0)),
                Action::Read(_) => {
                    let image = Some(Arc::new(item.clone()));
                    process.queue.answered(Answer::Read(vec![image]), at(T0));
                }
                Action::Pause { .. } => {}
                Action::Idle => panic!("it waits for nothing"),
            }
            if let Some(((), outcome)) = process.queue.drain_resolved().pop() {
                break outcome;
            }
        };
        let is_in_doubt = match outcome {
            Outcome::Failed { is_in_doubt } | Outcome::Contended { is_in_doubt } => is_in_doubt,
            other => panic!("{other:?}"),
        };
        assert!(is_in_doubt, "{last:?}");
    }
}

/// Writes that never reached the table are no attempts, and leave nothing in doubt.
#[test]
fn a_refund_that_was_never_sent_waits_and_is_not_in_doubt() {
    let item = remembering([11, 12, 13, 14]);
    let mut process = seeing(&item);
    process.queue.enter(corrects(1, &[("rpm", -3_000)], T0), (), at(T0));
    for _ in 0..100 {
        let Step::Writes(_) = process.step(Some(&item), at(T0)) else { panic!("a write") };
        process.queue.answered(Answer::NotSent, at(T0));
        assert!(process.queue.drain_resolved().is_empty());
    }
    assert_eq!(process.queue.leave(&id(1)).0, StateOnLeave::Nothing);

    process.queue.enter(corrects(2, &[("rpm", -3_000)], T0), (), at(T0));
    let Step::Writes(_) = process.step(Some(&item), at(T0)) else { panic!("a write") };
    process.queue.answered(Answer::Lost, at(T0));
    let Step::Writes(_) = process.step(Some(&item), at(T0)) else { panic!("a repetition") };
    process.queue.answered(Answer::NotSent, at(T0));
    assert_eq!(process.queue.leave(&id(2)).0, StateOnLeave::InDoubt, "of the first attempt");
}
