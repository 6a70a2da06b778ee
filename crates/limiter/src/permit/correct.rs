//! One call that corrects the buckets of a permit concurrently, and its result.

use sluicegate_core::EntityId;
use tokio::time::Instant;

use super::Permit;
use super::correction_log::{Change, UnderWay, Write};
use crate::error::AdjustError;
use crate::store::{Adjusted, Correction};

impl Permit {
    /// Makes a change in several buckets concurrently.
    pub(super) async fn correct(
        &self,
        asked: Vec<usize>,
        change: Change<'_>,
    ) -> Result<Adjusted, AdjustError> {
        let each = asked.iter().map(|index| self.correct_part(*index, change));
        let mut corrected = futures_util::future::join_all(each).await;
        let counts = |result: &_| matches!(result, Ok(_) | Err(AdjustError::Ambiguous(_)));
        if corrected.iter().all(|(_, result)| counts(result)) {
            corrected.iter_mut().for_each(|(under_way, _)| under_way.is_level_after(change));
        }
        let entity = |index: &usize| self.parts[*index].bucket.entity.clone();
        let results = corrected.into_iter().map(|(_, result)| result);
        joined(asked.iter().map(entity).zip(results).collect())
    }

    async fn correct_part(
        &self,
        index: usize,
        change: Change<'_>,
    ) -> (UnderWay<'_>, Result<Adjusted, AdjustError>) {
        let until = Instant::now() + self.deadline;
        let mut before = Adjusted::default();
        loop {
            let Some(write) = self.logs()[index].reopen(change) else { break };
            match self.send(index, write, until).await {
                (_, Ok(adjusted)) => {
                    before.is_forced |= adjusted.is_forced;
                    before.write_units += adjusted.write_units;
                }
                failed => return failed,
            }
        }
        let write = self.logs()[index].start(change);
        let (under_way, mut result) = self.send(index, write, until).await;
        if let Ok(adjusted) = &mut result {
            adjusted.is_forced |= before.is_forced;
            adjusted.write_units += before.write_units;
        }
        (under_way, result)
    }

    async fn send(
        &self,
        index: usize,
        write: Write,
        until: Instant,
    ) -> (UnderWay<'_>, Result<Adjusted, AdjustError>) {
        let mut under_way = UnderWay::new(&self.logs, index, write);
        let result = match under_way.write() {
            Some(write) => {
                let part = &self.parts[index];
                let correction = Correction {
                    id: &write.id,
                    bucket: &part.bucket,
                    amounts: &write.amounts,
                    configuration: &part.configuration,
                    deadline: until.saturating_duration_since(Instant::now()),
                };
                self.limiter.guard().correct(&correction).await
            }
            None => Ok(Adjusted::default()),
        };
        under_way.settle(Some(&result));
        (under_way, result)
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
    // Errors of work that is still to be done come first; of these, the ones that waiting does not
    // repair.
    failed.sort_by_key(|(_, error)| match error {
        AdjustError::Ambiguous(_) => 2,
        AdjustError::Setup(_) | AdjustError::InvalidRequest(_) => 0,
        _ => 1,
    });
    let mut failed = failed.into_iter();
    let Some((entity, source)) = failed.next() else { return Ok(total) };
    let counts = |(entity, error): (EntityId, AdjustError)| {
        let counts = matches!(error, AdjustError::Ambiguous(_)) && source.may_be_repeated();
        counts.then_some(entity)
    };
    corrected.extend(failed.filter_map(counts));
    Err(match corrected.into_iter().next() {
        Some(corrected) => {
            AdjustError::Partial { corrected, failed: entity, source: source.into() }
        }
        None => source,
    })
}
