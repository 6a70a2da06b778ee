//! The service: descriptors of one bucket are one call.

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use futures_util::future::join_all;
use http::HeaderMap;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use sluicegate::LimitStatus;
use tonic::{Request, Response, Status};

use super::calls::{Decision, acquire_all, adjust_all, decided, give_back, peek};
use super::groups::{Call, Group, groups};
use super::status::{of_code, status_of};
use crate::config::Unknown;
use crate::state::{ServerState, Slot};

/// Envoy's rate limit service on a limiter.
pub(crate) struct Service {
    pub(crate) state: Arc<ServerState>,
}

#[tonic::async_trait]
impl RateLimitService for Service {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let slot = request.extensions().get::<Slot>().cloned();
        let slot = slot.ok_or_else(|| Status::internal("the request has no place"))?;
        let request = request.into_inner();
        let reloadable = arc_swap::Guard::into_inner(self.state.reloadable());
        let rules = reloadable.rules.as_ref().ok_or_else(|| {
            Status::unimplemented("the server's configuration has no section `envoy`")
        })?;
        let groups = groups(rules, self.state.limiter.default_limits(), &request)?;
        let mut answer = Answer::new(groups.iter(), rules.unknown, request.descriptors.len());
        let (peeks, others): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| group.call == Call::Peek);
        let (acquires, adjusts): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|group| group.call == Call::Acquire);
        // The reads come first: a request that one of them refuses takes nothing.
        if !answer.is_refused {
            let results = join_all(peeks.iter().map(|group| peek(&self.state, group))).await;
            let (failure, peeks, decisions) = decided(peeks, results);
            failure.map_or(Ok(()), Err)?;
            self.add(&mut answer, &peeks, &decisions);
        }
        if !answer.is_refused {
            let (acquires, decisions) = acquire_all(&self.state, acquires, slot.clone()).await?;
            self.add(&mut answer, &acquires, &decisions);
            if !answer.is_refused
                && let Err(status) = adjust_all(&self.state, adjusts, slot).await
            {
                give_back(&decisions).await;
                return Err(status);
            }
        }
        Ok(Response::new(answer.into_response()))
    }
}

impl Service {
    fn add(&self, answer: &mut Answer, groups: &[Group], decisions: &[Decision]) {
        let now = self.state.limiter.clock().now();
        answer.is_refused |= decisions.iter().any(Decision::is_refused);
        for (group, decision) in groups.iter().zip(decisions) {
            for (n, rule) in &group.descriptors {
                let own = |limit: &&LimitStatus| rule.consume.contains_key(&limit.limit);
                answer.statuses[*n] = status_of(decision.limits.iter().filter(own), now);
            }
            // The balances of a bucket that gets its tokens back are not those of the answer, and an
            // admitted look has none.
            let is_look = group.call == Call::Peek && !answer.is_refused;
            if !is_look && decision.is_refused() == answer.is_refused {
                answer.of_buckets.push(decision.headers.clone());
            }
        }
    }
}

/// The answer, as far as it is known.
struct Answer {
    is_refused: bool,
    statuses: Vec<DescriptorStatus>,
    /// The headers for each bucket.
    of_buckets: Vec<HeaderMap>,
}

impl Answer {
    /// The answer for the descriptors without a rule.
    fn new<'a>(groups: impl Iterator<Item = &'a Group>, unknown: Unknown, count: usize) -> Self {
        let unknown = match unknown {
            Unknown::Admit => Code::Ok,
            Unknown::Refuse => Code::OverLimit,
        };
        let mut codes = vec![unknown; count];
        for (n, _) in groups.flat_map(|group| &group.descriptors) {
            codes[*n] = Code::Ok;
        }
        let is_refused = codes.contains(&Code::OverLimit);
        let statuses = codes.into_iter().map(of_code).collect();
        Self { is_refused, statuses, of_buckets: Vec::new() }
    }

    fn into_response(self) -> RateLimitResponse {
        let overall = if self.is_refused { Code::OverLimit } else { Code::Ok };
        let headers = merged(&self.of_buckets);
        let headers = headers.iter().map(|(key, value)| HeaderValue {
            key: key.to_string(),
            value: value.to_str().unwrap_or_default().to_owned(),
            ..HeaderValue::default()
        });
        RateLimitResponse {
            overall_code: overall.into(),
            response_headers_to_add: headers.collect(),
            statuses: self.statuses,
            ..RateLimitResponse::default()
        }
    }
}

/// The headers for all buckets: their fields are one list, and the longest time to wait holds.
fn merged(of_buckets: &[HeaderMap]) -> HeaderMap {
    let mut merged = HeaderMap::new();
    // The body of a refusal is Envoy's own.
    let fields = of_buckets.iter().flatten();
    for (key, value) in fields.filter(|(key, _)| ![RETRY_AFTER, CONTENT_TYPE].contains(key)) {
        merged.append(key, value.clone());
    }
    let seconds = |headers: &HeaderMap| headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok();
    // Without one of them, some bucket never has the tokens.
    let waits: Option<Vec<u64>> = of_buckets.iter().map(seconds).collect();
    if let Some(longest) = waits.and_then(|waits| waits.into_iter().max()) {
        merged.insert(RETRY_AFTER, longest.into());
    }
    merged
}
