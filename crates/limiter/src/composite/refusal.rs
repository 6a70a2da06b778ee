//! How a refusal is said.

use sluicegate_core::Wait;

use crate::error::{AcquireError, LimitExceeded, LimitStatus, NeverAdmissible};

/// "No", or "never".
pub(crate) fn no(limits: Vec<LimitStatus>) -> AcquireError {
    if limits.iter().any(|limit| limit.wait == Wait::ExceedsBurst) {
        return NeverAdmissible { limits }.into();
    }
    LimitExceeded::new(limits).into()
}
