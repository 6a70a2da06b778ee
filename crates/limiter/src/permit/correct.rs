//! One call that corrects the buckets of a permit concurrently, and its result.

use sluicegate_core::EntityId;
use tokio::time::Instant;

use super::Permit;
use super::correction_log::{CorrectionChange, CorrectionWrite, WriteInFlight};
use crate::error::AdjustError;
use crate::store::{Adjusted, Correction};

impl Permit {
    /// Makes a change in each of several buckets concurrently. Changes nothing if the permit was
    /// granted without the store.
    pub(super) async fn correct(
        &self,
        changes: Vec<(usize, CorrectionChange<'_>)>,
    ) -> Result<Adjusted, AdjustError> {
        if self.degraded.is_some() {
            return Ok(Adjusted { degraded: self.degraded.clone(), ..Adjusted::default() });
        }
        let each = changes.iter().map(|(index, change)| self.correct_part(*index, *change));
        let mut corrected = futures_util::future::join_all(each).await;
        let is_settled = |result: &_| matches!(result, Ok(_) | Err(AdjustError::Ambiguous(_)));
        if corrected.iter().all(|(_, result)| is_settled(result)) {
            for ((in_flight, _), (_, change)) in corrected.iter_mut().zip(&changes) {
                in_flight.forget_surplus_of(*change);
            }
        }
        let entity = |(index, _): &(usize, _)| self.parts[*index].bucket.entity.clone();
        let results = corrected.into_iter().map(|(_, result)| result);
        joined(changes.iter().map(entity).zip(results).collect())
    }

    async fn correct_part(
        &self,
        index: usize,
        change: CorrectionChange<'_>,
    ) -> (WriteInFlight<'_>, Result<Adjusted, AdjustError>) {
        let until = Instant::now() + self.correction_deadline;
        let (mut before, mut ambiguous) = (Adjusted::default(), None);
        // First repeat the earlier writes that must be settled.
        loop {
            let Some(write) = self.logs()[index].take_to_repeat(change) else { break };
            match self.send(index, write, until).await {
                (_, Ok(adjusted)) => {
                    before.is_forced |= adjusted.is_forced;
                    before.write_units += adjusted.write_units;
                }
                // The earlier write counts as made. This call's own change is still to be made.
                (_, Err(AdjustError::Ambiguous(error))) => ambiguous = Some(error),
                failed => return failed,
            }
        }
        let write = self.logs()[index].start(change);
        let (in_flight, result) = self.send(index, write, until).await;
        let result = match (result, ambiguous) {
            (Ok(_), Some(error)) => Err(AdjustError::Ambiguous(error)),
            (Ok(mut adjusted), None) => {
                adjusted.is_forced |= before.is_forced;
                adjusted.write_units += before.write_units;
                Ok(adjusted)
            }
            (failed, _) => failed,
        };
        (in_flight, result)
    }

    async fn send(
        &self,
        index: usize,
        write: CorrectionWrite,
        until: Instant,
    ) -> (WriteInFlight<'_>, Result<Adjusted, AdjustError>) {
        let mut in_flight = WriteInFlight::new(&self.logs, index, write);
        let result = match in_flight.write() {
            Some(write) => {
                let part = &self.parts[index];
                let correction = Correction {
                    mark: None,
                    id: &write.id,
                    bucket: &part.bucket,
                    amounts: &write.amounts,
                    configuration: &part.configuration,
                    is_repeated: write.must_repeat,
                    deadline: until.saturating_duration_since(Instant::now()),
                };
                self.limiter.guard().correct(&correction).await
            }
            None => Ok(Adjusted::default()),
        };
        in_flight.note_result(Some(&result));
        (in_flight, result)
    }
}

/// The joint result for the buckets of a call.
fn joined(
    results: Vec<(EntityId, Result<Adjusted, AdjustError>)>,
) -> Result<Adjusted, AdjustError> {
    let mut total = Adjusted::default();
    let (mut corrected, mut failed) = (Vec::new(), Vec::new());
    for (entity, result) in results {
        match result {
            Ok(adjusted) => {
                total.add(adjusted);
                corrected.push(entity);
            }
            Err(error) => failed.push((entity, error)),
        }
    }
    // The caller sees the most important error.
    failed.sort_by_key(|(_, error)| match error {
        // A person must act.
        AdjustError::Setup(_) | AdjustError::InvalidRequest(_) => 0,
        // The correction counts as made.
        AdjustError::Ambiguous(_) => 2,
        // The caller may repeat the correction.
        _ => 1,
    });
    let mut failed = failed.into_iter();
    let Some((entity, source)) = failed.next() else { return Ok(total) };
    let counts_as_made = |(entity, error): (EntityId, AdjustError)| {
        let is_made = matches!(error, AdjustError::Ambiguous(_)) && source.may_be_repeated();
        is_made.then_some(entity)
    };
    corrected.extend(failed.filter_map(counts_as_made));
    Err(match corrected.into_iter().next() {
        Some(corrected) => {
            AdjustError::Partial { corrected, failed: entity, source: source.into() }
        }
        None => source,
    })
}
