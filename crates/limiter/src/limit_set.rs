//! Limits that are checked once and shared by the requests that name them.

use std::sync::Arc;

use sluicegate_core::Rules;

use crate::check::rules;
use crate::error::InvalidRequest;
use crate::limit::Limit;

/// Limits of a bucket, at most 40, that were checked once. A clone shares them, so a request that
/// names a set builds no map of its limits.
///
/// ```
/// use sluicegate::{Limit, LimitSet, Limiter, MemoryStore};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limits = LimitSet::new([Limit::per_minute("rpm", 100), Limit::per_minute("tpm", 10_000)])?;
/// let store = MemoryStore::new();
/// // The limits of every request that names none:
/// let limiter = Limiter::builder(store).default_limits(limits).build();
/// limiter.acquire("user-456", "gpt-4").consume("rpm", 1).await?;
///
/// let higher = LimitSet::new([Limit::per_minute("rpm", 1_000)])?;
/// limiter.acquire("user-123", "gpt-4").consume("rpm", 1).limits(&higher).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitSet {
    rules: Arc<Rules>,
}

impl LimitSet {
    /// Checks limits, each named once.
    ///
    /// # Errors
    /// [`InvalidRequest`] when a limit is invalid ([`Limit::check`]) or named twice, or when there
    /// are more than 40.
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, InvalidRequest> {
        let limits: Vec<_> = limits.into_iter().collect();
        Ok(Self { rules: Arc::new(rules(&limits)?) })
    }

    /// The limits, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = Limit> {
        self.rules.iter().map(|(name, rule)| Limit::from_rule(name, *rule))
    }
}

/// Limits that a request can name: a [`LimitSet`] or any list of [`Limit`]s. Only this crate
/// implements it.
pub trait IntoLimits {
    #[doc(hidden)]
    fn add_to(self, named: &mut NamedLimits);
}

/// The limits that a request names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamedLimits {
    set: Option<LimitSet>,
    list: Vec<Limit>,
    /// True: the default limits do not replace them if there are none.
    excludes_defaults: bool,
}

impl<I: IntoIterator<Item = Limit>> IntoLimits for I {
    fn add_to(self, named: &mut NamedLimits) {
        named.list.extend(self);
    }
}

impl IntoLimits for LimitSet {
    fn add_to(self, named: &mut NamedLimits) {
        match named.set {
            None => named.set = Some(self),
            Some(_) => named.list.extend(self.iter()),
        }
    }
}

impl IntoLimits for &LimitSet {
    fn add_to(self, named: &mut NamedLimits) {
        self.clone().add_to(named);
    }
}

impl NamedLimits {
    pub(crate) const fn exclude_defaults(&mut self) {
        self.excludes_defaults = true;
    }

    /// The limits as rules, each named once; `default`, if the request names none.
    pub(crate) fn check(&self, default: &LimitSet) -> Result<Arc<Rules>, InvalidRequest> {
        let set = match self.set.as_ref().filter(|set| !set.rules.is_empty()) {
            Some(set) => set,
            None if self.list.is_empty() && self.excludes_defaults => return Ok(Arc::default()),
            None if self.list.is_empty() => return Ok(default.rules.clone()),
            None => return Ok(Arc::new(rules(&self.list)?)),
        };
        if self.list.is_empty() {
            return Ok(set.rules.clone());
        }
        let both: Vec<_> = self.list.iter().cloned().chain(set.iter()).collect();
        Ok(Arc::new(rules(&both)?))
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_core::LIMITS_MAX;

    use super::*;

    fn named(set: &LimitSet, list: &[Limit]) -> NamedLimits {
        let mut named = NamedLimits::default();
        set.add_to(&mut named);
        list.iter().cloned().add_to(&mut named);
        named
    }

    #[test]
    fn a_set_alone_is_shared_and_not_copied() {
        let set = LimitSet::new([Limit::per_minute("rpm", 5)]).unwrap();
        let rules = named(&set, &[]).check(&LimitSet::default()).unwrap();
        assert!(Arc::ptr_eq(&rules, &set.rules));
        let none = NamedLimits::default();
        assert!(Arc::ptr_eq(&none.check(&set).unwrap(), &set.rules), "the default");
    }

    #[test]
    fn a_set_and_a_list_go_together_each_limit_named_once() {
        let set = LimitSet::new([Limit::per_minute("rpm", 5)]).unwrap();
        let tpm = Limit::per_minute("tpm", 7);
        let both = named(&set, std::slice::from_ref(&tpm)).check(&set).unwrap();
        assert_eq!(both.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["rpm", "tpm"]);
        let twice = named(&set, &[Limit::per_minute("rpm", 9)]).check(&set);
        assert!(matches!(twice, Err(InvalidRequest::DuplicateLimit(_))), "{twice:?}");
        let many = (0..LIMITS_MAX).map(|n| Limit::per_minute(format!("l{n}"), 1));
        let many = named(&set, &many.collect::<Vec<_>>()).check(&set);
        assert!(matches!(many, Err(InvalidRequest::TooManyLimits { count: 41, .. })), "{many:?}");
        let twice = [tpm.clone(), tpm];
        assert!(matches!(LimitSet::new(twice), Err(InvalidRequest::DuplicateLimit(_))));
    }
}
