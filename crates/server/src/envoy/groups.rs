//! The descriptors of a request, grouped by bucket.

use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use sluicegate::types::{Amounts, Millitokens};
use sluicegate::{Limit, LimitSet};
use tonic::Status;

use super::rules::{Bucket, Rule, Rules};

/// The descriptors of one request, at most; Envoy sends a few. More would keep a thread busy, and
/// be as many calls at once.
const DESCRIPTORS_MAX: usize = 1_000;

/// The descriptors that are one call on a bucket.
pub(super) struct Group {
    pub(super) call: Call,
    pub(super) bucket: Bucket,
    pub(super) limits: Vec<Limit>,
    pub(super) amounts: Amounts,
    /// True if a rule names no limits: it means the default ones.
    uses_defaults: bool,
    /// The places of the descriptors in the request, with their rules.
    pub(super) descriptors: Vec<(usize, Arc<Rule>)>,
}

/// The call for a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// Asks if a token of each limit is left: zero hits.
    Peek,
    Acquire,
    /// Counts the amounts, whatever the balance.
    Adjust,
}

/// Groups the descriptors of a request. Those without a rule are left out.
///
/// # Errors
/// Hits that are more than any limit has, or too many descriptors.
pub(super) fn groups(
    rules: &Rules,
    default_limits: &LimitSet,
    request: &RateLimitRequest,
) -> Result<Vec<Group>, Status> {
    if request.descriptors.len() > DESCRIPTORS_MAX {
        return Err(Status::invalid_argument("the descriptors are too many"));
    }
    let mut groups: Vec<Group> = Vec::new();
    for (n, descriptor) in request.descriptors.iter().enumerate() {
        let Some((rule, bucket)) = rules.matching(&request.domain, descriptor) else { continue };
        let hits = hits(descriptor, request.hits_addend);
        let call = match hits {
            _ if rule.never_refuses => Call::Adjust,
            0 => Call::Peek,
            1.. => Call::Acquire,
            ..0 => Call::Adjust,
        };
        let known = groups.iter().position(|group| group.bucket == bucket && group.call == call);
        let at = known.unwrap_or_else(|| {
            let (limits, amounts, descriptors) = (Vec::new(), Amounts::new(), Vec::new());
            groups.push(Group { call, bucket, limits, amounts, uses_defaults: false, descriptors });
            groups.len() - 1
        });
        groups[at].add(rule, hits)?;
        groups[at].descriptors.push((n, Arc::clone(rule)));
    }
    // The limiter takes the default limits for a request without limits only.
    for group in groups.iter_mut().filter(|group| group.uses_defaults && !group.limits.is_empty()) {
        group.add_limits(default_limits.iter());
    }
    Ok(groups)
}

/// The hits of a descriptor: its own, or those of the request, which are one if it names none.
fn hits(descriptor: &RateLimitDescriptor, of_request: u32) -> i128 {
    let own = descriptor.hits_addend.as_ref().map(|hits| hits.value);
    let hits = i128::from(own.unwrap_or_else(|| of_request.max(1).into()));
    if descriptor.is_negative_hits { -hits } else { hits }
}

impl Group {
    /// Adds the limits that have other names than those before.
    fn add_limits(&mut self, limits: impl Iterator<Item = Limit>) {
        for limit in limits {
            if self.limits.iter().all(|known| known.name() != limit.name()) {
                self.limits.push(limit);
            }
        }
    }

    fn add(&mut self, rule: &Rule, hits: i128) -> Result<(), Status> {
        self.uses_defaults |= rule.limits.is_empty();
        self.add_limits(rule.limits.iter().cloned());
        for (limit, per_hit) in &rule.consume {
            let before = i128::from(self.amounts.of(limit).get());
            let sum = match self.call {
                // It asks for one token, however many descriptors do.
                Call::Peek => Some(1_000),
                Call::Acquire | Call::Adjust => {
                    hits.checked_mul(per_hit.get().into()).and_then(|more| more.checked_add(before))
                }
            };
            let sum = sum.and_then(|sum| i64::try_from(sum).ok());
            let sum = sum.and_then(|sum| Millitokens::new(sum).ok());
            let sum = sum.ok_or_else(|| Status::invalid_argument("the hits are too many"))?;
            if sum == Millitokens::ZERO {
                self.amounts.remove(limit);
            } else {
                self.amounts.insert(limit.clone(), sum);
            }
        }
        Ok(())
    }
}
