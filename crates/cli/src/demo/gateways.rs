//! The gateways in front of the model: they acquire before a call and correct after it.
//!
//! All calls happen in the order of their times, one at a time. The caller waits for those times,
//! by a clock of its choice.

use std::collections::BTreeMap;
use std::fmt::Write;

use sha2::{Digest, Sha256};
use sluicegate::types::{Amounts, LimitName, Millitokens};
use sluicegate::{AcquireError, Limiter, Permit};

use super::traffic::{self, BUDGET, Call, MODEL, PRICE, REQUESTS, TENANTS, TOKENS, Traffic};
use crate::error::CliError;

/// Calls to come and calls in flight.
pub(crate) struct Gateways {
    limiter: Limiter,
    traffic: Vec<Traffic>,
    /// By time, and by the order in which they were planned.
    events: BTreeMap<(i64, u64), Event>,
    planned: u64,
    log: Sha256,
    /// The consumption and refusals so far, by tenant.
    pub(crate) books: [Book; TENANTS],
    /// Write units spent on acquires.
    pub(crate) acquire_units: f64,
    /// Write units spent on corrections.
    pub(crate) adjust_units: f64,
}

enum Event {
    Call { tenant: usize, call: Call },
    Answer { tenant: usize, permit: Permit, call: Call },
}

/// The grants of one tenant.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Book {
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
    /// Tokens of text, as corrected.
    pub(crate) tokens: i64,
}

impl Gateways {
    pub(crate) fn new(limiter: Limiter, seed: u64, start_ms: i64) -> Self {
        let mut gateways = Self {
            limiter,
            traffic: (0..TENANTS).map(|tenant| Traffic::new(tenant, seed, start_ms)).collect(),
            events: BTreeMap::new(),
            planned: 0,
            log: Sha256::new(),
            books: [Book::default(); TENANTS],
            acquire_units: 0.0,
            adjust_units: 0.0,
        };
        for tenant in 0..TENANTS {
            gateways.plan_call(tenant);
        }
        gateways
    }

    /// The time of the next event, in milliseconds since the epoch.
    pub(crate) fn next_ms(&self) -> i64 {
        self.events.first_key_value().map_or(i64::MAX, |((at_ms, _), _)| *at_ms)
    }

    /// Runs the next event now.
    pub(crate) async fn step(&mut self) -> Result<(), CliError> {
        match self.events.pop_first() {
            Some((_, Event::Call { tenant, call })) => self.call(tenant, call).await,
            Some((_, Event::Answer { tenant, permit, call })) => {
                self.answer(tenant, &permit, call).await
            }
            None => Ok(()),
        }
    }

    /// SHA-256 of all decisions so far, in hexadecimal: the tenant, the amounts, the time and the
    /// answer.
    pub(crate) fn decisions_sha256(&self) -> String {
        let mut text = String::new();
        for byte in self.log.clone().finalize() {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    async fn call(&mut self, tenant: usize, call: Call) -> Result<(), CliError> {
        self.plan_call(tenant);
        let request = self.limiter.acquire(traffic::name(tenant), MODEL).no_cascade();
        let request = request.consume(REQUESTS, 1).consume_all(&text(call.estimate)?);
        let book = &mut self.books[tenant];
        let answer = match request.limits(traffic::limits(tenant)).await {
            Ok(permit) => {
                book.admitted += 1;
                book.tokens += call.estimate;
                self.acquire_units += permit.cost().write_units;
                self.plan(call.at_ms + call.latency_ms, Event::Answer { tenant, permit, call });
                "granted".to_owned()
            }
            Err(AcquireError::LimitExceeded(exceeded)) => {
                book.refused += 1;
                format!("refused {}", exceeded.retry_after.unwrap_or_default().as_millis())
            }
            Err(error) => return Err(error.into()),
        };
        let (name, Call { at_ms, estimate, .. }) = (traffic::name(tenant), call);
        self.log.update(format!("{at_ms} {name} {estimate} {answer}\n"));
        Ok(())
    }

    async fn answer(
        &mut self,
        tenant: usize,
        permit: &Permit,
        Call { estimate, actual, .. }: Call,
    ) -> Result<(), CliError> {
        let corrected = permit.correct_to(&text(actual)?).await?;
        self.adjust_units += corrected.write_units;
        self.books[tenant].tokens += actual - estimate;
        Ok(())
    }

    fn plan_call(&mut self, tenant: usize) {
        let call = self.traffic[tenant].next();
        self.plan(call.at_ms, Event::Call { tenant, call });
    }

    fn plan(&mut self, at_ms: i64, event: Event) {
        self.planned += 1;
        self.events.insert((at_ms, self.planned), event);
    }
}

/// The amounts of so many tokens of text: the tokens, and their price.
fn text(tokens: i64) -> Result<Amounts, CliError> {
    let amount = |limit, tokens| {
        let tokens = Millitokens::from_tokens(tokens).map_err(CliError::bad)?;
        Ok::<_, CliError>((LimitName::new(limit).map_err(CliError::bad)?, tokens))
    };
    Ok(Amounts::from([amount(TOKENS, tokens)?, amount(BUDGET, tokens * PRICE)?]))
}
