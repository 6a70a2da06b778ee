//! A process alone on its bucket: a [`WriteQueue`] and the steps of its driver, one request at a
//! time. The test plays the table.

use std::sync::Arc;

use sluicegate_core::{
    Action, Amounts, Answer, BucketDemand, ClaimInterval, CompositeBucket, Configuration, Done,
    EpochMillis, KnownImage, LeaseTerms, Outcome, Purpose, QueueSettings, QueuedRequest, RequestId,
    WritePlan, WriteQueue,
};

use super::fixtures::bucket_id;

/// A process that writes one bucket.
pub(crate) struct Lone {
    pub(crate) queue: WriteQueue<()>,
}

/// The next step of a process for its request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// It sends this, and waits for the answer.
    Writes(WritePlan),
    /// The request has an outcome.
    Ends(Outcome),
}

impl Lone {
    /// A process that saw the item as `image` at `as_of`; `None`: there was none.
    pub(crate) fn seeing(image: Option<&CompositeBucket>, as_of: EpochMillis) -> Self {
        let policy = QueueSettings {
            interval: ClaimInterval::default(),
            refusal_age_max_ms: 0,
            is_transactional: false,
        };
        let mut queue = WriteQueue::new([bucket_id()], policy);
        let image = image.cloned().map(Arc::new);
        queue.learn_unless_older(0, &KnownImage { image, as_of, is_authoritative: true });
        Self { queue }
    }

    /// The next step. If the queue reads first, the table answers with `item`.
    pub(crate) fn step(&mut self, item: Option<&CompositeBucket>, now: EpochMillis) -> Step {
        loop {
            let action = self.queue.next(now, &mut || panic!("the request names its write"));
            if let Some(((), outcome)) = self.queue.drain_resolved().pop() {
                assert_eq!(action, Action::Idle, "no other request waits");
                return Step::Ends(outcome);
            }
            match action {
                Action::Write(write) => return Step::Writes(write.plans[0].1.clone()),
                Action::Read(_) => {
                    let image = item.cloned().map(Arc::new);
                    self.queue.answered(Answer::Read(vec![image]), now);
                }
                Action::Pause { .. } => {}
                Action::Idle => panic!("the request waits for nothing"),
            }
        }
    }

    /// The first write of a request.
    pub(crate) fn plan(&mut self, request: QueuedRequest, now: EpochMillis) -> WritePlan {
        self.queue.enter(request, (), now);
        match self.step(None, now) {
            Step::Writes(plan) => plan,
            Step::Ends(outcome) => panic!("{outcome:?}"),
        }
    }

    /// The table did the last write, and has `item` now.
    pub(crate) fn written(&mut self, item: Option<&CompositeBucket>, now: EpochMillis) {
        self.queue.answered(Answer::Written(vec![item.cloned().map(Arc::new)]), now);
    }

    /// A condition of the last write does not hold for `item`.
    pub(crate) fn refused(&mut self, item: Option<&CompositeBucket>, now: EpochMillis) {
        self.queue.answered(Answer::ConditionFailed(vec![Some(item.cloned().map(Arc::new))]), now);
    }

    /// Carries the request that waits out on `item`, to its outcome.
    pub(crate) fn finish(
        &mut self,
        item: &mut Option<CompositeBucket>,
        now: EpochMillis,
    ) -> Outcome {
        loop {
            let plan = match self.step(item.as_ref(), now) {
                Step::Ends(outcome) => return outcome,
                Step::Writes(plan) => plan,
            };
            match plan.apply(item.as_ref()) {
                Some(after) => {
                    *item = Some(after);
                    self.written(item.as_ref(), now);
                }
                None => self.refused(item.as_ref(), now),
            }
        }
    }

    /// Carries a request out on `item`, to its outcome.
    pub(crate) fn run(
        &mut self,
        request: QueuedRequest,
        item: &mut Option<CompositeBucket>,
        now: EpochMillis,
    ) -> Outcome {
        self.queue.enter(request, (), now);
        self.finish(item, now)
    }
}

/// A request that begins now.
pub(crate) fn request(
    id: RequestId,
    purpose: Purpose,
    amounts: Amounts,
    configuration: &Configuration,
    now: EpochMillis,
) -> QueuedRequest {
    let demand = BucketDemand { amounts, configuration: Arc::new(configuration.clone()) };
    QueuedRequest {
        id,
        purpose,
        demands: vec![demand],
        started_at: now,
        may_send_back_for_limits: false,
    }
}

/// A lease; what it needs at least is what it is refused without.
pub(crate) fn lease(
    id: RequestId,
    terms: LeaseTerms,
    configuration: &Configuration,
    now: EpochMillis,
) -> QueuedRequest {
    let least = terms.least();
    request(id, Purpose::Lease(Arc::new(terms)), least, configuration, now)
}

/// The effect of a request.
pub(crate) fn done(outcome: Outcome) -> Done {
    match outcome {
        Outcome::Done(done) => done,
        other => panic!("{other:?}"),
    }
}
