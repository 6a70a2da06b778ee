//! One queue with a lease that no caller needs, step by step: lost answers, fences, and leases that
//! enter again.

use std::sync::Arc;

use sluicegate_core::fixtures::{at, milli};
use sluicegate_core::{
    Action, Amounts, Answer, BucketDemand, ClaimInterval, CompositeBucket, KnownImage, LeaseRange,
    LeaseTerms, Outcome, Purpose, QueueSettings, QueuedRequest, RequestId, WritePlan, WriteQueue,
};
use stateright::Model as _;

use super::{Accounting, Faults, T0, bucket_id, limit, model};

/// One queue, the image of its bucket, and a lease that no caller needs: it gives up after two
/// attempts.
struct Ahead {
    queue: WriteQueue<()>,
    image: CompositeBucket,
    lease: QueuedRequest,
    ids: u64,
}

impl Ahead {
    fn new() -> Self {
        let settings = QueueSettings {
            interval: ClaimInterval::default(),
            refusal_age_max_ms: 0,
            is_transactional: false,
        };
        let faults = Faults { lost: 0, late: 0, crashes: 0 };
        let model = model(Accounting::AtLease, &[], [1, 1], faults);
        let image = model.init_states().remove(0).image;
        let range = LeaseRange { least: milli(0), most: milli(3_000) };
        let terms = LeaseTerms { wanted: [(limit(), range)].into(), ..LeaseTerms::default() };
        let configuration = Arc::new(model.configuration);
        let demands = vec![BucketDemand { amounts: terms.least(), configuration }];
        let (id, purpose) = (RequestId::from_bits(1), Purpose::Lease(Arc::new(terms)));
        let (started_at, may_send_back_for_limits) = (at(T0), false);
        let lease = QueuedRequest { id, purpose, demands, started_at, may_send_back_for_limits };
        let mut queue = WriteQueue::new([bucket_id()], settings);
        let known = Some(Arc::new(image.clone()));
        queue.learn_unless_older(
            0,
            &KnownImage { image: known, as_of: at(T0), is_authoritative: true },
        );
        Self { queue, image, lease, ids: 10 }
    }

    fn enter_lease(&mut self) {
        self.queue.enter(self.lease.clone(), (), at(T0));
    }

    fn enter_correction(&mut self, amount: i64) -> RequestId {
        let mut correction = self.lease.clone();
        self.ids += 1;
        correction.id = RequestId::from_bits(self.ids);
        correction.purpose = Purpose::Correct;
        correction.demands[0].amounts = Amounts::from([(limit(), milli(amount))]);
        let id = correction.id.clone();
        self.queue.enter(correction, (), at(T0));
        id
    }

    /// The next write; the image answers the reads before it.
    fn next_write(&mut self) -> WritePlan {
        let mut new_id = || {
            self.ids += 1;
            RequestId::from_bits(self.ids)
        };
        loop {
            match self.queue.next(at(T0), &mut new_id) {
                Action::Write(write) => return write.plans[0].1.clone(),
                Action::Read(_) => {
                    let image = Some(Arc::new(self.image.clone()));
                    self.queue.answered(Answer::Read(vec![image]), at(T0));
                }
                _ => {}
            }
        }
    }

    /// Loses the answer to the lease's write, whose caller leaves; returns the item after the
    /// write.
    fn lose_lease(&mut self) -> CompositeBucket {
        self.enter_lease();
        let done = self.next_write().changed(Some(&self.image)).unwrap();
        self.queue.leave(&self.lease.id);
        self.queue.answered(Answer::Lost, at(T0));
        done
    }

    fn fail(&mut self, found: &CompositeBucket) {
        let found = Some(Some(Arc::new(found.clone())));
        self.queue.answered(Answer::ConditionFailed(vec![found]), at(T0));
    }

    fn in_doubt(&self) -> Option<Amounts> {
        self.queue.lease_in_doubt(&self.lease.id)
    }
}

/// A lost lease is asked for again, fails twice, and the second failure shows that the lost write
/// happened. Its caller is told that it is in doubt, and learns its amount when it asks again.
#[test]
fn a_lease_that_turns_out_to_be_done_as_it_fails_is_not_forgotten() {
    let mut ahead = Ahead::new();
    let done = ahead.lose_lease();
    // Another request makes the queue give the lost write up.
    ahead.enter_correction(0);
    ahead.next_write();
    let before = ahead.image.clone();
    ahead.fail(&before);
    ahead.enter_lease();
    for found in [before, done] {
        ahead.next_write();
        ahead.fail(&found);
    }
    let resolved = ahead.queue.drain_resolved();
    let gave_up =
        |(_, outcome): &((), Outcome)| matches!(outcome, Outcome::Contended { is_in_doubt: true });
    assert!(resolved.iter().any(gave_up), "{resolved:?}");
    // A lease takes a quarter of the balance.
    let taken = Amounts::from([(limit(), milli(750))]);
    assert_eq!(ahead.in_doubt(), Some(taken.clone()));
    ahead.enter_lease();
    let resolved = ahead.queue.drain_resolved();
    let [((), Outcome::Done(done))] = &resolved[..] else { panic!("{resolved:?}") };
    assert_eq!(done.leased, taken);
    assert_eq!(ahead.in_doubt(), None, "its caller knows");
}

/// A write fences a lost lease, but the item may have forgotten that lease before. The lease that
/// waits meanwhile is not written again: what it returns would come back twice.
#[test]
fn a_lease_that_was_fenced_too_late_is_ambiguous() {
    let mut ahead = Ahead::new();
    let before = RequestId::from_bits(7);
    ahead.image.request_ids = vec![before];
    let known = Some(Arc::new(ahead.image.clone()));
    let known = KnownImage { image: known, as_of: at(T0 + 1), is_authoritative: true };
    ahead.queue.learn_unless_older(0, &known);
    ahead.lose_lease();
    ahead.enter_correction(1_000);
    ahead.next_write();
    ahead.enter_lease();
    // Others wrote before the fence.
    ahead.image.request_ids =
        (100..).map(RequestId::from_bits).take(RequestId::REMEMBERED).collect();
    let image = Some(Arc::new(ahead.image.clone()));
    ahead.queue.answered(Answer::Written(vec![image]), at(T0));
    let resolved = ahead.queue.drain_resolved();
    let is_ambiguous = |(_, outcome): &((), Outcome)| *outcome == Outcome::Ambiguous;
    assert!(resolved.iter().any(is_ambiguous), "{resolved:?}");
    assert_eq!(ahead.queue.drain_counts().ambiguous, 1);
}

/// A lease is written twice, and both answers are lost. The second write is shown when the item may
/// have forgotten the first one: the lease is done, and its caller learns its amount.
#[test]
fn a_lease_that_was_written_twice_is_done_once_one_write_is_shown() {
    let mut ahead = Ahead::new();
    ahead.image.request_ids = vec![RequestId::from_bits(7)];
    let known = Some(Arc::new(ahead.image.clone()));
    let known = KnownImage { image: known, as_of: at(T0 + 1), is_authoritative: true };
    ahead.queue.learn_unless_older(0, &known);
    ahead.lose_lease();
    // A correction makes the queue give the lost write up, and fails, so nothing is fenced.
    let correction = ahead.enter_correction(0);
    ahead.next_write();
    let before = ahead.image.clone();
    ahead.enter_lease();
    ahead.fail(&before);
    // The lease is written again, with the correction.
    let mut done = ahead.next_write().changed(Some(&before)).unwrap();
    for id in [&ahead.lease.id, &correction] {
        ahead.queue.leave(id);
    }
    ahead.queue.answered(Answer::Lost, at(T0));
    // The correction names the write: the lease's id is that of the first one.
    let mut ids = done.request_ids.iter();
    let newest = ids.find(|id| **id != ahead.lease.id).unwrap().clone();
    let others = (100..).map(RequestId::from_bits).take(RequestId::REMEMBERED - 1);
    done.request_ids = others.chain([newest]).collect();
    // Another correction makes the queue give up this write, too, and its failure shows it.
    ahead.enter_correction(0);
    ahead.next_write();
    ahead.enter_lease();
    ahead.fail(&done);
    let resolved = ahead.queue.drain_resolved();
    let is_done = |(_, outcome): &((), Outcome)| matches!(outcome, Outcome::Done(done) if !done.leased.is_empty());
    assert!(resolved.iter().any(is_done), "{resolved:?}");
}
