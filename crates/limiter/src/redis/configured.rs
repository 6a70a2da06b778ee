//! Limits that the program names once, instead of with every request.

use std::collections::HashMap;
use std::sync::Arc;

#[cfg(feature = "leasing")]
use sluicegate_core::StoredRules;
use sluicegate_core::keys::LimitsScope;
use sluicegate_core::{BucketId, Configuration, LIMITS_MAX, Rules};

use super::range::check_rules;
use crate::check::rules;
use crate::error::InvalidRequest;
use crate::limit::Limit;

/// Limits by their scope.
#[derive(Debug, Clone, Default)]
pub(super) struct Configured(HashMap<LimitsScope, Rules>);

impl Configured {
    /// Sets the limits of a scope.
    pub(super) fn set(
        &mut self,
        scope: LimitsScope,
        limits: &[Limit],
    ) -> Result<(), InvalidRequest> {
        let rules = rules(limits)?;
        check_rules(&rules)?;
        self.0.insert(scope, rules);
        Ok(())
    }

    /// The limits of a bucket: those of the request, and the others from the narrowest scope that
    /// names them.
    pub(super) fn of(
        &self,
        bucket: &BucketId,
        request: &Arc<Rules>,
    ) -> Result<Configuration, InvalidRequest> {
        check_rules(request)?;
        if self.0.is_empty() {
            return Ok(Configuration::explicit(request.clone()));
        }
        let mut rules = self.levels(bucket);
        rules.extend(request.iter().map(|(limit, rule)| (limit.clone(), *rule)));
        if rules.len() > LIMITS_MAX {
            return Err(InvalidRequest::TooManyLimits { count: rules.len(), max: LIMITS_MAX });
        }
        Ok(Configuration::explicit(rules))
    }

    /// The same limits, those of the request apart from the others: another bucket may have others.
    #[cfg(feature = "leasing")]
    pub(super) fn apart(&self, bucket: &BucketId, request: &Arc<Rules>) -> Configuration {
        let rules = self.levels(bucket);
        let stored = (!rules.is_empty()).then(|| StoredRules { rules, ..Default::default() });
        Configuration { explicit: request.clone(), stored }
    }

    /// The limits of a bucket's scopes.
    fn levels(&self, bucket: &BucketId) -> Rules {
        let mut rules = Rules::new();
        for scope in LimitsScope::levels(bucket).iter().rev() {
            let level = self.0.get(scope).into_iter().flatten();
            rules.extend(level.map(|(limit, rule)| (limit.clone(), *rule)));
        }
        rules
    }
}
