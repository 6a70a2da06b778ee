//! The service: descriptors of one bucket are one acquire.

use std::collections::BTreeMap;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use futures_util::future::join_all;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use sluicegate::{AcquireError, Limit, Permit};
use tonic::{Request, Response, Status};

use super::rules::{Bucket, Rule, Rules};
use super::status::{FoundLimit, of_code, status_of};
use crate::config::Unknown;
use crate::live::Live;

/// Envoy's rate limit service on a limiter.
pub(crate) struct Service {
    pub(crate) live: Arc<Live>,
}

/// The descriptors of one bucket.
struct Wanted<'a> {
    bucket: Bucket,
    limits: Vec<Limit>,
    /// The amount of each limit.
    amounts: BTreeMap<&'a str, i64>,
    /// True: the amounts are counted, whatever the balance.
    never_refuses: bool,
    /// The descriptors, with the limits that each consumes.
    descriptors: Vec<(usize, &'a Rule)>,
}

/// The result for one bucket.
struct Decided {
    permit: Option<Permit>,
    is_refused: bool,
    limits: Vec<FoundLimit>,
    headers: HeaderMap,
}

#[tonic::async_trait]
impl RateLimitService for Service {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let replaceable = self.live.now();
        let rules = replaceable.rules.as_ref().ok_or_else(|| {
            Status::unimplemented("the server's configuration has no section `envoy`")
        })?;
        let unknown = of_code(match rules.unknown {
            Unknown::Admit => Code::Ok,
            Unknown::Refuse => Code::OverLimit,
        });
        let mut statuses = vec![unknown; request.descriptors.len()];
        let (counts, takes): (Vec<_>, Vec<_>) =
            wanted(rules, &request)?.into_iter().partition(|wanted| wanted.never_refuses);
        let mut is_refused = has_unknown_refusal(&statuses, &counts, &takes);
        let mut headers = HeaderMap::new();
        if !is_refused {
            let decided = join_all(takes.iter().map(|wanted| self.decide(wanted))).await;
            let failed = decided.iter().find_map(|decided| decided.as_ref().err()).cloned();
            is_refused = decided.iter().flatten().any(|decided| decided.is_refused);
            for (wanted, decided) in takes.iter().zip(decided.into_iter().flatten()) {
                if let (true, Some(permit)) = (is_refused || failed.is_some(), decided.permit) {
                    give_back(&permit).await;
                }
                headers.extend(decided.headers);
                self.fill(&mut statuses, wanted, &decided.limits);
            }
            if let Some(status) = failed {
                return Err(status);
            }
        }
        for wanted in &counts {
            if !is_refused {
                self.count(wanted).await?;
            }
            self.fill(&mut statuses, wanted, &[]);
        }
        let overall = if is_refused { Code::OverLimit } else { Code::Ok };
        Ok(Response::new(RateLimitResponse {
            overall_code: overall.into(),
            statuses,
            response_headers_to_add: of_response(&headers),
            ..RateLimitResponse::default()
        }))
    }
}

/// The demand on each bucket. Descriptors without a rule are left out.
fn wanted<'a>(rules: &'a Rules, request: &RateLimitRequest) -> Result<Vec<Wanted<'a>>, Status> {
    let mut all: Vec<Wanted<'a>> = Vec::new();
    for (n, descriptor) in request.descriptors.iter().enumerate() {
        let Some((rule, bucket)) = rules.matching(&request.domain, descriptor) else { continue };
        let own = descriptor.hits_addend.as_ref().map(|hits| hits.value);
        let hits = own.unwrap_or_else(|| request.hits_addend.max(1).into());
        let hits = i64::try_from(hits).unwrap_or(i64::MAX);
        let hits = if descriptor.is_negative_hits { -hits } else { hits };
        let never_refuses = rule.never_refuses || hits < 0;
        let same = |wanted: &&mut Wanted<'_>| {
            wanted.bucket == bucket && wanted.never_refuses == never_refuses
        };
        let wanted = match all.iter_mut().find(same) {
            Some(wanted) => wanted,
            None => {
                let (limits, amounts) = (Vec::new(), BTreeMap::new());
                let descriptors = Vec::new();
                all.push(Wanted { bucket, limits, amounts, never_refuses, descriptors });
                let last = all.len() - 1;
                &mut all[last]
            }
        };
        for limit in &rule.limits {
            if wanted.limits.iter().all(|known| known.name() != limit.name()) {
                wanted.limits.push(limit.clone());
            }
        }
        for (limit, tokens) in &rule.consume {
            let amount = wanted.amounts.entry(limit.as_str()).or_default();
            let more = hits.checked_mul(i64::from(*tokens));
            *amount = more
                .and_then(|more| amount.checked_add(more))
                .ok_or_else(|| Status::invalid_argument("hits_addend is too large"))?;
        }
        wanted.descriptors.push((n, rule));
    }
    Ok(all)
}

/// True if some descriptor has no rule, and such descriptors are refused.
fn has_unknown_refusal(
    unknown: &[DescriptorStatus],
    counts: &[Wanted<'_>],
    takes: &[Wanted<'_>],
) -> bool {
    let known: usize = counts.iter().chain(takes).map(|wanted| wanted.descriptors.len()).sum();
    unknown.first().is_some_and(|status| status.code() == Code::OverLimit) && known < unknown.len()
}

impl Service {
    /// Acquires the amounts; with no amount at all, looks if any limit has nothing left.
    async fn decide(&self, wanted: &Wanted<'_>) -> Result<Decided, Status> {
        let (limiter, Bucket { entity, resource }) = (&self.live.limiter, &wanted.bucket);
        if wanted.amounts.values().all(|amount| *amount == 0) {
            let statuses = limiter.peek(entity, resource).limits(wanted.limits.clone()).await;
            let mut statuses = statuses.map_err(|error| failed(&error))?;
            statuses.retain(|status| wanted.amounts.contains_key(status.limit.as_str()));
            let is_refused = statuses.iter().any(|status| status.available.get() <= 0);
            let limits = statuses.iter().map(FoundLimit::from).collect();
            return Ok(Decided { permit: None, is_refused, limits, headers: HeaderMap::new() });
        }
        let mut request = limiter.acquire(entity, resource).limits(wanted.limits.clone());
        for (limit, amount) in wanted.amounts.iter().filter(|(_, amount)| **amount > 0) {
            request = request.consume(limit, *amount);
        }
        let result = request.await;
        let now = limiter.clock().now();
        let (limits, headers, permit) = match result {
            Ok(permit) => {
                let remaining = permit.remaining();
                let headers = sluicegate_tower::headers_of_grant(&remaining, entity, now);
                (remaining.iter().map(FoundLimit::from).collect(), headers, Some(permit))
            }
            Err(error) => {
                let limits = match &error {
                    AcquireError::LimitExceeded(exceeded) => &exceeded.limits,
                    AcquireError::NeverAdmissible(never) => &never.limits,
                    other => return Err(failed(other)),
                };
                let refusal = sluicegate_tower::refusal(&error, entity, resource, now);
                let headers = refusal.into_parts().0.headers;
                (limits.iter().map(FoundLimit::from).collect(), headers, None)
            }
        };
        Ok(Decided { is_refused: permit.is_none(), permit, limits, headers })
    }

    /// Counts amounts, whatever the balance; negative ones are given back.
    async fn count(&self, wanted: &Wanted<'_>) -> Result<(), Status> {
        let Bucket { entity, resource } = &wanted.bucket;
        let mut request = self.live.limiter.adjust(entity, resource).limits(wanted.limits.clone());
        for (limit, amount) in wanted.amounts.iter().filter(|(_, amount)| **amount != 0) {
            request = request.by(limit, *amount);
        }
        if wanted.amounts.values().all(|amount| *amount == 0) {
            return Ok(());
        }
        request.await.map(drop).map_err(|error| {
            tracing::warn!(%error, "consumption was not counted");
            Status::unavailable("the store did not count the hits")
        })
    }

    /// Writes the status of each descriptor of a bucket.
    fn fill(&self, statuses: &mut [DescriptorStatus], wanted: &Wanted<'_>, found: &[FoundLimit]) {
        let now = self.live.limiter.clock().now();
        for (n, rule) in &wanted.descriptors {
            let own = found.iter().filter(|found| rule.consume.contains_key(found.limit.as_str()));
            statuses[*n] = status_of(own, now);
        }
    }
}

/// Gives a permit back because another bucket refused.
async fn give_back(permit: &Permit) {
    if let Err(error) = permit.give_back().await {
        tracing::warn!(%error, "tokens of a refused request were not given back");
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

/// Headers for the response that Envoy sends; its body is Envoy's own.
fn of_response(headers: &HeaderMap) -> Vec<HeaderValue> {
    let value = |(key, value): (&http::HeaderName, &http::HeaderValue)| HeaderValue {
        key: key.to_string(),
        value: value.to_str().unwrap_or_default().to_owned(),
        ..HeaderValue::default()
    };
    headers.iter().filter(|(key, _)| *key != CONTENT_TYPE).map(value).collect()
}
