//! Writes a child's and its parent's bucket concurrently ([`CascadeMode::Compensating`]).
//!
//! Only tokens that are known to have been taken are given back. If an answer was lost, or if the
//! process ends too early, tokens may stay taken from one bucket, so that too little is granted
//! there.
//!
//! [`CascadeMode::Compensating`]: super::CascadeMode::Compensating

use std::time::Duration;

use sluicegate_core::{Millitokens, Wait, WritePath, evaluate};
use tokio::time::Instant;

use super::bucket_request::BucketRequest;
use super::composite_store::CompositeStore;
use super::undecided_error::unavailable_if_in_doubt;
use crate::call::{CallContext, new_id};
use crate::clock::Clock;
use crate::error::{AcquireError, LimitStatus};
use crate::store::{BucketGrant, Correction, Store};
use crate::table::Table;

impl<T: Table> CompositeStore<T> {
    /// Takes from both buckets concurrently. If one of them does not grant, for any reason, the
    /// tokens of the other are given back.
    pub(super) async fn side_by_side(
        &self,
        mut targets: Vec<BucketRequest>,
        context: &mut CallContext<'_>,
        deadline: Duration,
    ) -> Result<(Vec<BucketGrant>, Option<WritePath>), AcquireError> {
        let clock = context.clock;
        let left = context.ends_at.saturating_duration_since(Instant::now());
        let mut contexts = [CallContext::new(clock, left), CallContext::new(clock, left)];
        let [first, second] = &mut contexts;
        let parent = targets.split_off(1);
        let (child, parent) = tokio::join!(self.take(targets, first), self.take(parent, second));
        for part in &contexts {
            context.cost += part.cost;
        }
        match (child, parent) {
            (Ok((mut parts, path)), Ok((parents, _))) => {
                parts.extend(parents);
                Ok((parts, path))
            }
            (Ok((taken, _)), Err(error)) | (Err(error), Ok((taken, _))) => {
                Err(self.compensate(taken, error, clock, deadline).await)
            }
            (Err(child), Err(parent)) => Err(joined(child, parent)),
        }
    }

    /// Gives back the tokens taken from the bucket that granted. Returns the other bucket's error;
    /// a refusal then also shows the limits of the bucket that granted.
    async fn compensate(
        &self,
        taken: Vec<BucketGrant>,
        error: AcquireError,
        clock: &dyn Clock,
        deadline: Duration,
    ) -> AcquireError {
        let (mut granted, mut stays_taken) = (Vec::new(), false);
        for part in taken {
            let back = -&part.amounts;
            let correction = Correction {
                mark: None,
                id: &new_id(),
                bucket: &part.bucket,
                amounts: &back,
                configuration: &part.configuration,
                is_repeated: false,
                deadline,
            };
            let adjusted = self.adjust(&correction, clock).await;
            if let Err(failed) = &adjusted {
                stays_taken = true;
                tracing::warn!(bucket = %part.bucket, error = %failed, "tokens of a refused request were not given back");
            }
            let image = part.image.as_deref();
            let (amounts, now) = (&part.amounts, clock.now());
            let limits = evaluate(&part.bucket, image, amounts, &part.configuration, now);
            let of_request = limits.into_iter().filter(|s| amounts.contains_key(&s.limit));
            // This bucket granted, so none of these limits is short.
            granted.extend(of_request.map(|status| {
                let back = if adjusted.is_ok() { status.asked.get() } else { 0 };
                let available = i128::from(status.available.get()) + i128::from(back);
                let available = Millitokens::saturating(available);
                LimitStatus { wait: Wait::None, available, ..status }
            }));
        }
        match error.into_refused() {
            Ok(limits) => AcquireError::refused([limits, granted].concat()),
            Err(other) => unavailable_if_in_doubt(stays_taken, other),
        }
    }
}

/// Joins the errors of both buckets into one.
fn joined(child: AcquireError, parent: AcquireError) -> AcquireError {
    use AcquireError::{Contended, LimitExceeded, Unavailable};
    match (child.into_refused(), parent.into_refused()) {
        (Ok(child), Ok(parent)) => AcquireError::refused([child, parent].concat()),
        // A limit that is short admits no request, even if the other bucket does not answer.
        (Ok(limits), Err(Unavailable(_) | Contended { .. }))
        | (Err(Unavailable(_) | Contended { .. }), Ok(limits)) => AcquireError::refused(limits),
        // A short limit of the child may refill with time; the parent's error may last.
        (Ok(limits), Err(parent)) => match AcquireError::refused(limits) {
            LimitExceeded(_) => parent,
            never => never,
        },
        (Err(child), parent) => {
            unavailable_if_in_doubt(matches!(parent, Err(Unavailable(_))), child)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_limit_refuses_although_the_other_bucket_does_not_answer() {
        let short = || AcquireError::refused(Vec::new());
        let silent = || AcquireError::Unavailable("silent".into());
        for joined in [joined(short(), silent()), joined(silent(), short())] {
            assert!(matches!(joined, AcquireError::LimitExceeded(_)));
        }
        let broken = AcquireError::InvalidRequest(crate::error::InvalidRequest::Empty);
        assert!(matches!(joined(short(), broken), AcquireError::InvalidRequest(_)));
    }

    /// To a caller, a bare `Setup` means that nothing was taken.
    #[test]
    fn an_error_says_that_the_silent_bucket_may_have_granted() {
        let setup = || AcquireError::Setup(crate::store_error::SetupError::Rejected("no".into()));
        let silent = || AcquireError::Unavailable("silent".into());
        for joined in [joined(setup(), silent()), joined(silent(), setup())] {
            assert!(matches!(joined, AcquireError::Unavailable(_)), "{joined:?}");
        }
        assert!(matches!(joined(setup(), setup()), AcquireError::Setup(_)));
    }
}
