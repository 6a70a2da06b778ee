//! The rules of the configuration, which turn descriptors into buckets and amounts.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use sha2::{Digest as _, Sha256};
use sluicegate::types::{Amounts, LimitName, Millitokens};
use sluicegate::{EntityId, Limit, Resource};
use sluicegate_core::parse_amount;

use crate::config::{Amount, domains as config};

/// The rules of all domains.
pub(crate) struct Rules {
    pub(super) unknown: config::Unknown,
    domains: HashMap<String, Vec<Arc<Rule>>>,
}

/// A rule with everything parsed.
pub(super) struct Rule {
    /// `None`: any value.
    entries: BTreeMap<String, Option<String>>,
    entity: Template,
    resource: Template,
    pub(super) limits: Vec<Limit>,
    /// The amount of each limit for one hit.
    pub(super) consume: Amounts,
    pub(super) never_refuses: bool,
}

/// The bucket of a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) entity: String,
    pub(super) resource: String,
}

impl Rules {
    /// # Errors
    /// The first mistake: a text that is no limit, a template with an entry that the rule does not
    /// match, two sections of one domain, or a limit that is consumed and not among the rule's.
    pub(crate) fn new(config: &config::Envoy) -> Result<Self, String> {
        let mut domains = HashMap::new();
        for config::Domain { domain, rules } in &config.domains {
            let parsed = |(n, rule): (usize, &config::Rule)| {
                Rule::new(rule).map(Arc::new).map_err(|(setting, error)| {
                    format!("domain {domain:?}, rule {}: {setting}: {error}", n + 1)
                })
            };
            let rules: Vec<_> = rules.iter().enumerate().map(parsed).collect::<Result<_, _>>()?;
            if domains.insert(domain.clone(), rules).is_some() {
                return Err(format!("domain {domain:?} is there twice: put its rules together"));
            }
        }
        Ok(Self { unknown: config.unknown, domains })
    }

    /// # Errors
    /// The setting of the rule that is wrong, and the mistake.
    pub(crate) fn check(rule: &config::Rule) -> Result<(), (String, String)> {
        Rule::new(rule).map(drop)
    }

    /// The first rule that matches a descriptor, and its bucket.
    pub(super) fn matching(
        &self,
        domain: &str,
        descriptor: &RateLimitDescriptor,
    ) -> Option<(&Arc<Rule>, Bucket)> {
        let rule = self.domains.get(domain)?.iter().find(|rule| rule.matches(descriptor))?;
        let value_of = |key: &String| rule.value_of(key, descriptor).unwrap_or_default();
        let entity = legal(rule.entity.filled(value_of), |name| EntityId::new(name).is_ok());
        let resource = legal(rule.resource.filled(value_of), |name| Resource::new(name).is_ok());
        Some((rule, Bucket { entity, resource }))
    }
}

impl Rule {
    fn new(rule: &config::Rule) -> Result<Self, (String, String)> {
        let any = |value: &String| (value != "*").then(|| value.clone());
        let entries: BTreeMap<_, _> =
            rule.entries.iter().map(|(key, value)| (key.clone(), any(value))).collect();
        let limits: Result<Vec<Limit>, _> = rule.limits.iter().map(|limit| limit.parse()).collect();
        let limits = limits.map_err(|error| ("limits".to_owned(), error.to_string()))?;
        let is_unknown = |name: &&String| limits.iter().all(|limit| limit.name() != name.as_str());
        if let Some(name) = rule.consume.keys().find(is_unknown)
            && !limits.is_empty()
        {
            let message = format!("{name:?} is not one of the rule's limits");
            return Err((format!("consume/{name}"), message));
        }
        let consume = rule.consume.iter().map(|(limit, of)| amount(limit, of));
        let template = |setting: &str, text: &str| {
            Template::new(text, &entries).map_err(|message| (setting.to_owned(), message))
        };
        Ok(Self {
            entity: template("entity", &rule.entity)?,
            resource: template("resource", &rule.resource)?,
            limits,
            consume: consume.collect::<Result<_, _>>()?,
            never_refuses: rule.never_refuses,
            entries,
        })
    }

    fn matches(&self, descriptor: &RateLimitDescriptor) -> bool {
        self.entries.keys().all(|key| self.value_of(key, descriptor).is_some())
    }

    /// The value of the first entry with this key that the rule matches. A descriptor may have a key
    /// several times.
    fn value_of<'d>(&self, key: &String, descriptor: &'d RateLimitDescriptor) -> Option<&'d str> {
        let expected = self.entries.get(key)?.as_ref();
        let is_matched = |value: &String| expected.is_none_or(|expected| expected == value);
        let mut entries = descriptor.entries.iter();
        let entry = entries.find(|entry| entry.key == *key && is_matched(&entry.value))?;
        Some(&entry.value)
    }
}

/// # Errors
/// The setting that is no amount of a limit, and the reason.
fn amount(limit: &str, amount: &Amount) -> Result<(LimitName, Millitokens), (String, String)> {
    let wrong = |message: String| (format!("consume/{limit}"), message);
    let name = LimitName::new(limit).map_err(|error| wrong(error.to_string()))?;
    let milli = parse_amount(limit, &amount.text()).and_then(|milli| i64::try_from(milli).ok());
    let milli = milli.and_then(|milli| Millitokens::new(milli).ok());
    let of = milli.filter(|milli| *milli > Millitokens::ZERO).ok_or_else(|| {
        wrong(
            "expected more than zero, at most three decimals, or nine of money, and 10^15 tokens"
                .to_owned(),
        )
    })?;
    Ok((name, of))
}

/// A text with entries in it: `{user}`.
struct Template(Vec<Piece>);

enum Piece {
    Text(String),
    /// The value of the entry with this key.
    Entry(String),
}

impl Template {
    fn new(text: &str, entries: &BTreeMap<String, Option<String>>) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('{') {
            let (key, behind) = behind
                .split_once('}')
                .ok_or_else(|| format!("{text:?} has a '{{' without a '}}'"))?;
            if !entries.contains_key(key) {
                return Err(format!(
                    "{text:?} names the entry {key:?}, which `match` does not have"
                ));
            }
            pieces.extend([Piece::Text(before.to_owned()), Piece::Entry(key.to_owned())]);
            rest = behind;
        }
        pieces.push(Piece::Text(rest.to_owned()));
        Ok(Self(pieces))
    }

    fn filled<'d>(&self, value_of: impl Fn(&String) -> &'d str) -> String {
        let piece = |piece: &'_ Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Entry(key) => value_of(key).to_owned(),
        };
        self.0.iter().map(piece).collect()
    }
}

/// The name, or its hash if no key can have it: a client that sends odd values is limited, too.
fn legal(name: String, is_legal: impl Fn(&str) -> bool) -> String {
    if is_legal(&name) {
        return name;
    }
    format!("sha256:{}", URL_SAFE_NO_PAD.encode(Sha256::digest(name)))
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
    use serde_json::json;

    use super::*;

    fn rules(rules: serde_json::Value) -> Result<Rules, String> {
        let domains = json!({"domains": [{"domain": "edge", "rules": rules}]});
        Rules::new(&serde_json::from_value(domains).unwrap())
    }

    fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
        let entry = |(key, value): &(&str, &str)| Entry {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        };
        RateLimitDescriptor {
            entries: entries.iter().map(entry).collect(),
            ..RateLimitDescriptor::default()
        }
    }

    #[test]
    fn the_first_rule_that_matches_holds() {
        let rules = rules(json!([
            {"match": {"path": "/v1", "user": "*"}, "entity": "u-{user}", "resource": "api{path}", "consume": {"rpm": 1}},
            {"match": {"user": "*"}, "entity": "{user}", "resource": "api", "consume": {"rpm": 1}},
            {"match": {"key": "b"}, "entity": "{key}", "resource": "api", "consume": {"rpm": 1}},
        ]))
        .unwrap();
        let bucket = |domain: &str, entries: &[(&str, &str)]| {
            let bucket = rules.matching(domain, &descriptor(entries))?.1;
            Some((bucket.entity, bucket.resource))
        };
        let pair = |entity: &str, resource: &str| Some((entity.to_owned(), resource.to_owned()));
        assert_eq!(bucket("edge", &[("user", "a"), ("path", "/v1")]), pair("u-a", "api/v1"));
        assert_eq!(bucket("edge", &[("user", "a"), ("path", "/v2")]), pair("a", "api"));
        assert_eq!(bucket("edge", &[("key", "a"), ("key", "b")]), pair("b", "api"));
        assert_eq!(bucket("edge", &[("path", "/v1")]), None);
        assert_eq!(bucket("other", &[("user", "a")]), None);
    }

    #[test]
    fn a_value_that_no_key_can_have_is_hashed() {
        let rules = rules(json!([
            {"match": {"user": "*"}, "entity": "{user}", "resource": "api", "consume": {"rpm": 1}},
        ]))
        .unwrap();
        let entity =
            |user: &str| rules.matching("edge", &descriptor(&[("user", user)])).unwrap().1.entity;
        for odd in ["", "a#b", "a\u{7}", &"x".repeat(500)] {
            let entity = entity(odd);
            assert!(EntityId::new(&entity).is_ok() && entity.starts_with("sha256:"), "{entity}");
        }
        assert_ne!(entity("a#b"), entity("a#c"));
        assert_eq!(entity("Müller"), "Müller");
    }

    #[test]
    fn every_mistake_is_named() {
        let rule = |changes: serde_json::Value| {
            let mut rule = json!({"match": {"user": "*"}, "entity": "{user}", "resource": "api", "consume": {"rpm": 1}});
            rule.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            rules(json!([rule])).err().unwrap()
        };
        for (changes, expected) in [
            (json!({"entity": "{path}"}), "\"path\""),
            (json!({"entity": "{user"}), "without a '}'"),
            (json!({"limits": ["rpm"]}), "rpm"),
            (json!({"limits": ["tpm=1/min"]}), "\"rpm\" is not one of"),
        ] {
            let error = rule(changes);
            assert!(error.contains(expected) && error.contains("rule 1"), "{error}");
        }
    }
}
