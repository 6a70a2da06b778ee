//! How a refusal is said.

use sluicegate_core::{EpochMillis, Wait};

use crate::error::{AcquireError, LimitExceeded, LimitStatus, NeverAdmissible};

/// "No", or "never".
pub(crate) fn no(limits: Vec<LimitStatus>) -> AcquireError {
    if limits.iter().any(|limit| limit.wait == Wait::ExceedsBurst) {
        return NeverAdmissible { limits }.into();
    }
    LimitExceeded::new(limits).into()
}

/// A wait as of another instant, as one from `now` on; what is there by now is worth another try.
pub(super) fn counted_from(now: EpochMillis, as_of: EpochMillis, wait: Wait) -> Wait {
    let Wait::Millis(millis) = wait else { return wait };
    let passed = i128::from(now.get()) - i128::from(as_of.get());
    let left = (i128::from(millis) - passed).max(1);
    Wait::Millis(u64::try_from(left).unwrap_or(u64::MAX))
}
