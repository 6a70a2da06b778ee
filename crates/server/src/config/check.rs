//! The mistakes that a schema cannot tell.

use std::collections::HashSet;

use sluicegate::{Limit, LimitSet};

use super::domains::Envoy;
use super::pointer::escaped;
use super::settings::Config;
use super::store::Store;
use crate::envoy::rules::Rules;

/// The time for an answer after the store decided, in milliseconds.
pub(crate) const ANSWER_MS: u64 = 500;

/// Each mistake with the JSON pointer of its setting.
pub(super) fn mistakes(config: &Config) -> Vec<(String, String)> {
    let mut found = limits("/limits", &config.limits);
    let Config { listen, callers, .. } = config;
    if callers.is_empty() && !listen.without_callers && !listen.address.ip().is_loopback() {
        let message = "without callers, everyone who reaches this address could change every limit: name callers, or set without_callers";
        found.push(("/listen/address".to_owned(), message.to_owned()));
    }
    if let Some(Store { dynamodb, redis, embedded }) = &config.store {
        let named = [dynamodb.is_some(), redis.is_some(), embedded.is_some()];
        if named.into_iter().filter(|is_named| *is_named).count() != 1 {
            let message = "name one store: dynamodb, redis or embedded";
            found.push(("/store".to_owned(), message.to_owned()));
        }
    }
    // Without its margin, the store's answer would come after the server's.
    let decided_ms = config.deadline_ms.unwrap_or(0);
    if config.bounds.request_ms < decided_ms.saturating_add(ANSWER_MS) {
        let message = format!("give a request at least {ANSWER_MS} ms more than deadline_ms");
        found.push(("/bounds/request_ms".to_owned(), message));
    }
    let (mut names, mut tokens) = (HashSet::new(), HashSet::new());
    for (n, caller) in callers.iter().enumerate() {
        if !names.insert(&caller.name) {
            let message = format!("there is another caller {:?}", caller.name);
            found.push((format!("/callers/{n}/name"), message));
        }
        if !tokens.insert(caller.sha256) {
            let message = "another caller has the same token".to_owned();
            found.push((format!("/callers/{n}/sha256"), message));
        }
    }
    if let Some(envoy) = &config.envoy {
        found.extend(of_envoy(envoy));
    }
    found
}

/// Texts that are no limits, and limits that are named twice.
fn limits(at: &str, limits: &[String]) -> Vec<(String, String)> {
    let mut names = HashSet::new();
    let mistake = |(n, text): (usize, &String)| {
        let at = format!("{at}/{n}");
        match text.parse::<Limit>() {
            Err(error) => Some((at, error.to_string())),
            Ok(limit) => {
                let message = format!("limit {:?} is there twice", limit.name());
                (!names.insert(limit.name().to_owned())).then_some((at, message))
            }
        }
    };
    let mut found: Vec<_> = limits.iter().enumerate().filter_map(mistake).collect();
    if found.is_empty() {
        let parsed = limits.iter().filter_map(|text| text.parse::<Limit>().ok());
        found.extend(LimitSet::new(parsed).err().map(|error| (at.to_owned(), error.to_string())));
    }
    found
}

/// The mistakes of each rule by itself, and domains that are there twice.
fn of_envoy(envoy: &Envoy) -> Vec<(String, String)> {
    let (mut found, mut domains) = (Vec::new(), HashSet::new());
    for (d, domain) in envoy.domains.iter().enumerate() {
        let at = format!("/envoy/domains/{d}");
        if !domains.insert(&domain.domain) {
            let message =
                format!("domain {:?} is there twice: put its rules together", domain.domain);
            found.push((format!("{at}/domain"), message));
        }
        for (r, rule) in domain.rules.iter().enumerate() {
            let at = format!("{at}/rules/{r}");
            let of_limits = limits(&format!("{at}/limits"), &rule.limits);
            if of_limits.is_empty()
                && let Err((setting, message)) = Rules::check(rule)
            {
                // The name of a limit may have a slash, too.
                let setting = match setting.split_once('/') {
                    Some((setting, limit)) => format!("{setting}/{}", escaped(limit)),
                    None => setting,
                };
                found.push((format!("{at}/{setting}"), message));
            }
            found.extend(of_limits);
        }
    }
    found
}
