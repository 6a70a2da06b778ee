//! The calls on the limiter for the buckets of a request.

use std::sync::Arc;

use futures_util::future::{join_all, try_join_all};
use http::HeaderMap;
use sluicegate::{AcquireError, AdjustError, LimitExceeded, LimitStatus, Permit};
use tokio::sync::oneshot;
use tonic::Status;

use super::groups::Group;
use super::rules::Bucket;
use crate::state::{ServerState, Slot};

/// The result for one bucket.
#[derive(Default)]
pub(super) struct Decision {
    pub(super) limits: Vec<LimitStatus>,
    pub(super) headers: HeaderMap,
    refused: bool,
    permit: Option<Permit>,
}

impl Decision {
    pub(super) const fn is_refused(&self) -> bool {
        self.refused
    }

    fn refused(error: AcquireError, state: &ServerState, of: &Bucket) -> Self {
        let now = state.limiter.clock().now();
        let refusal = sluicegate_tower::refusal(&error, &of.entity, &of.resource, now);
        let limits = match error {
            AcquireError::LimitExceeded(exceeded) => exceeded.limits,
            AcquireError::NeverAdmissible(never) => never.limits,
            _ => Vec::new(),
        };
        Self { limits, headers: refusal.into_parts().0.headers, refused: true, permit: None }
    }
}

/// Refuses if one of the limits has no token left.
pub(super) async fn peek(state: &ServerState, group: &Group) -> Result<Decision, Status> {
    let Bucket { entity, resource } = &group.bucket;
    let request = state.limiter.peek(entity, resource).limits(group.limits.clone());
    let mut limits = match request.consume_all(&group.amounts).await {
        Ok(limits) => limits,
        Err(AcquireError::Unavailable(_)) if state.admits_in_outage => {
            return Ok(Decision::default());
        }
        Err(error) => return Err(failed(&error)),
    };
    limits.retain(|limit| group.amounts.contains_key(&limit.limit));
    if !limits.iter().any(LimitStatus::is_violated) {
        return Ok(Decision { limits, ..Decision::default() });
    }
    Ok(Decision::refused(LimitExceeded::new(limits).into(), state, &group.bucket))
}

/// Acquires from each bucket. If one of them does not grant, the others get their tokens back, also
/// when the client does not wait for the answer.
pub(super) async fn acquire_all(
    state: &Arc<ServerState>,
    groups: Vec<Group>,
    slot: Slot,
) -> Result<(Vec<Group>, Vec<Decision>), Status> {
    if groups.len() < 2 {
        let decisions = try_join_all(groups.iter().map(|group| acquire(state, group))).await?;
        return Ok((groups, decisions));
    }
    let (answer, answered) = oneshot::channel();
    let state = Arc::clone(state);
    tokio::spawn(async move {
        let _slot = slot;
        let results = join_all(groups.iter().map(|group| acquire(&state, group))).await;
        let (failure, groups, mut decisions) = decided(groups, results);
        if failure.is_some() || decisions.iter().any(Decision::is_refused) {
            give_back(&decisions).await;
            decisions.iter_mut().for_each(|decision| decision.permit = None);
        }
        let result = match failure {
            Some(status) => Err(status),
            None => Ok((groups, decisions)),
        };
        if let Err(Ok((_, decisions))) = answer.send(result) {
            give_back(&decisions).await;
        }
    });
    answered.await.unwrap_or_else(|_| Err(Status::internal("the request was not decided")))
}

/// The groups that were decided, and their decisions; and the failure of another one, unless a
/// decided one refuses: a limit that is short admits no request, whatever happened to the others.
pub(super) fn decided(
    groups: Vec<Group>,
    results: Vec<Result<Decision, Status>>,
) -> (Option<Status>, Vec<Group>, Vec<Decision>) {
    let mut failure = None;
    let decided = |(group, result): (Group, Result<Decision, Status>)| match result {
        Ok(decision) => Some((group, decision)),
        Err(status) => {
            failure = Some(status);
            None
        }
    };
    let (groups, decisions): (_, Vec<_>) =
        groups.into_iter().zip(results).filter_map(decided).unzip();
    let is_refused = decisions.iter().any(Decision::is_refused);
    (failure.filter(|_| !is_refused), groups, decisions)
}

async fn acquire(state: &ServerState, group: &Group) -> Result<Decision, Status> {
    let Bucket { entity, resource } = &group.bucket;
    let request = state.limiter.acquire(entity, resource).limits(group.limits.clone());
    let permit = match request.consume_all(&group.amounts).await {
        Ok(permit) => permit,
        Err(error @ (AcquireError::LimitExceeded(_) | AcquireError::NeverAdmissible(_))) => {
            return Ok(Decision::refused(error, state, &group.bucket));
        }
        Err(error) => return Err(failed(&error)),
    };
    let limits = permit.remaining();
    let now = state.limiter.clock().now();
    let headers = sluicegate_tower::headers_of_grant(&limits, entity, now);
    Ok(Decision { limits, headers, refused: false, permit: Some(permit) })
}

/// Gives permits back because the request is not admitted.
pub(super) async fn give_back(decisions: &[Decision]) {
    let permits = decisions.iter().filter_map(|decision| decision.permit.as_ref());
    for error in join_all(permits.map(Permit::give_back)).await.into_iter().filter_map(Result::err)
    {
        tracing::warn!(%error, "tokens of a refused request were not given back");
    }
}

/// Counts the amounts of each bucket, also if the client does not wait for the answer: Envoy
/// reports a use once, and waits some milliseconds.
pub(super) async fn adjust_all(
    state: &Arc<ServerState>,
    groups: Vec<Group>,
    slot: Slot,
) -> Result<(), Status> {
    let state = Arc::clone(state);
    let counted = slot.finish(async move {
        let results = join_all(groups.iter().map(|group| adjust(&state, group))).await;
        results.into_iter().collect()
    });
    counted.await.unwrap_or_else(|_| Err(Status::internal("not counted")))
}

/// Counts amounts, whatever the balance; negative ones are given back.
async fn adjust(state: &ServerState, group: &Group) -> Result<(), Status> {
    let Bucket { entity, resource } = &group.bucket;
    if group.amounts.is_empty() {
        return Ok(());
    }
    let request = state.limiter.adjust(entity, resource).limits(group.limits.clone());
    match request.by_all(&group.amounts).await {
        Ok(adjusted) if adjusted.dropped.is_empty() => Ok(()),
        Ok(adjusted) => {
            let counted = adjusted.dropped_of.iter().map(async |(entity, limit)| {
                let amount = group.amounts.of(limit);
                state.count_new_limit(entity, resource, group.limits.clone(), limit, amount).await
            });
            let results = join_all(counted).await.into_iter().map(|counted| match counted {
                Err(AcquireError::Unavailable(error)) if state.admits_in_outage => {
                    tracing::warn!(%error, "consumption was not counted");
                    Ok(())
                }
                counted => counted.map_err(|error| failed(&error)),
            });
            results.collect()
        }
        Err(AdjustError::InvalidRequest(invalid)) => Err(failed(&invalid.into())),
        Err(AdjustError::Setup(setup)) => Err(failed(&setup.into())),
        Err(error) => {
            tracing::warn!(%error, "consumption was not counted");
            if state.admits_in_outage { Ok(()) } else { Err(Status::unavailable("not counted")) }
        }
    }
}

/// The error that lets Envoy follow its own failure mode.
fn failed(error: &AcquireError) -> Status {
    match error {
        AcquireError::InvalidRequest(invalid) => {
            tracing::error!(%invalid, "a rule does not fit its bucket");
            Status::failed_precondition(invalid.to_string())
        }
        AcquireError::Setup(setup) => {
            tracing::error!(%setup, "the store cannot be used");
            Status::internal("the server cannot use its store: its log has the reason")
        }
        other => {
            tracing::warn!(error = %other, "not decided");
            Status::unavailable("the store did not decide")
        }
    }
}
