//! Strict mode: tokens are debited before they are handed out. One write settles old tokens and
//! leases more.

use std::collections::BTreeMap;
use std::time::Duration;

use sluicegate_core::Millitokens;
use tokio::time::Instant;

use super::atomic_bucket::Demand;
use super::engine::{Engine, FlushScope};
use super::lease_plan::LeasePlan;
use super::leased_bucket::LeasedBucket;
use super::settings::Accounting;
use super::spent::Spent;
use crate::error::AcquireError;
use crate::leasing_store::{Counting, LeaseOutcome, LeaseRequest, UnackedWrite};

impl Engine {
    /// Leases the tokens that are needed and those that can be used, and settles.
    pub(super) async fn lease(
        &self,
        bucket: &LeasedBucket,
        need: &[Demand],
        extent: FlushScope,
        accounting: Accounting,
        deadline: Duration,
    ) -> Result<Spent, AcquireError> {
        let until = Instant::now() + deadline;
        let mut spent = self.settle_unanswered(bucket, extent, accounting, deadline).await?;
        let times = self.times();
        let drafted = bucket.books().as_mut().map(|books| {
            let open_for = books.open_for_ms(times.now);
            let draft = match extent {
                FlushScope::Lease => bucket.draft(books, need, &self.settings, times),
                FlushScope::SettleAll => bucket.closing_draft(books, times),
            };
            self.meter.decided(books, bucket, times.now);
            (draft, books.configuration.clone(), books.answered(), open_for)
        });
        // The ledger exists while a task holds the turn.
        let Some((draft, configuration, answered, open_for)) = drafted else {
            return Err(AcquireError::Contended { attempts: 0 });
        };
        let counting = counting(accounting, &draft);
        if !draft.is_worth_a_write(counting) {
            if let Some(books) = bucket.books().as_mut() {
                bucket.undo(books, &draft, self.settings.max_age_ms(), times);
            }
            return Ok(spent);
        }
        if accounting == Accounting::AtSettle {
            self.meter.commit_age(open_for);
        }
        let order = LeaseRequest {
            bucket: &bucket.id(),
            configuration: &configuration,
            wanted: &draft.wanted,
            returned: &draft.returned,
            counting,
            last: answered.as_ref(),
            deadline: until.saturating_duration_since(Instant::now()),
        };
        let start = Instant::now();
        let result = self.store.lease(&order, &self.clock).await;
        let mut books = bucket.books();
        let Some(books) = books.as_mut() else { return Ok(spent) };
        match result {
            Ok(done) => {
                self.note_duration(start.elapsed());
                self.meter.count(u64::from(!need.is_empty()));
                self.meter.leased(&done.leased, &draft.returned);
                if done.path.is_some() {
                    books.note_answered(&done.id);
                }
                bucket.conclude(
                    books,
                    &draft,
                    need,
                    &done,
                    self.settings.max_age_ms(),
                    self.times(),
                );
                spent.add(self.spent(done));
                Ok(spent)
            }
            Err(failed) => {
                self.meter.wrote(failed.attempts);
                match failed.doubt {
                    Some(doubt) if doubt.is_lost => self.meter.ambiguous(),
                    Some(doubt) => books.unfinished().unanswered = Some(Box::new((doubt, draft))),
                    None => bucket.undo(books, &draft, self.settings.max_age_ms(), self.times()),
                }
                Err(failed.error)
            }
        }
    }

    /// Finds out the result of a write whose answer was lost.
    async fn settle_unanswered(
        &self,
        bucket: &LeasedBucket,
        extent: FlushScope,
        accounting: Accounting,
        deadline: Duration,
    ) -> Result<Spent, AcquireError> {
        let taken = bucket.books().as_mut().and_then(|books| {
            let unanswered = books.unfinished().unanswered.take()?;
            Some((unanswered, books.configuration.clone()))
        });
        let Some((unanswered, configuration)) = taken else { return Ok(Spent::default()) };
        let (doubt, draft) = *unanswered;
        let returned = returned_with(&draft, &doubt);
        let nothing = BTreeMap::new();
        let order = LeaseRequest {
            bucket: &bucket.id(),
            configuration: &configuration,
            wanted: if extent == FlushScope::Lease { &draft.wanted } else { &nothing },
            returned: &returned,
            counting: counting(accounting, &draft),
            // The unanswered write holds this.
            last: None,
            deadline,
        };
        let result = self.store.resolve(&order, doubt, &self.clock).await;
        let mut books = bucket.books();
        let Some(books) = books.as_mut() else { return Ok(Spent::default()) };
        match result {
            Ok(done) => {
                self.meter.leased(&done.leased, &draft.returned);
                books.note_answered(&done.id);
                bucket.conclude(
                    books,
                    &draft,
                    &[],
                    &done,
                    self.settings.max_age_ms(),
                    self.times(),
                );
                Ok(self.spent(done))
            }
            Err(failed) => {
                self.meter.wrote(failed.attempts);
                match failed.doubt {
                    Some(doubt) if !doubt.is_lost => {
                        books.unfinished().unanswered = Some(Box::new((doubt, draft)));
                    }
                    _ => self.meter.ambiguous(),
                }
                Err(failed.error)
            }
        }
    }

    pub(super) fn spent(&self, done: LeaseOutcome) -> Spent {
        self.meter.wrote(done.attempts);
        let LeaseOutcome { path, attempts, write_units, read_units, .. } = done;
        Spent { path, attempts, write_units, read_units }
    }
}

fn counting(accounting: Accounting, draft: &LeasePlan) -> Counting<'_> {
    match accounting {
        Accounting::AtLease => Counting::Leased,
        Accounting::AtSettle => Counting::Used(&draft.used),
    }
}

/// The amounts to give back, with the limits of a lease that must not take effect any more. The
/// item must remember the id of that lease, even when there is nothing else to write.
fn returned_with(draft: &LeasePlan, doubt: &UnackedWrite) -> sluicegate_core::Amounts {
    let mut returned = draft.returned.clone();
    for limit in doubt.limits() {
        returned.entry(limit.clone()).or_insert(Millitokens::ZERO);
    }
    returned
}
