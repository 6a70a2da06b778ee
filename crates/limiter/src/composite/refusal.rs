//! Builds the error of a refusal.

use sluicegate_core::Wait;

use crate::error::{AcquireError, LimitExceeded, LimitStatus, NeverAdmissible};

/// `LimitExceeded`, or `NeverAdmissible` if waiting does not help.
pub(crate) fn no(limits: Vec<LimitStatus>) -> AcquireError {
    if limits.iter().any(|limit| limit.wait == Wait::ExceedsBurst) {
        return NeverAdmissible { limits }.into();
    }
    LimitExceeded::new(limits).into()
}
