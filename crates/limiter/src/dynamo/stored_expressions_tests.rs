//! Every expression as it is sent, and the sizes that DynamoDB accepts.

use sluicegate_core::{EntityId, Resource, Unchanged, WindowKind};

use super::*;
use crate::Limit;
use crate::dynamo::stored::LIMITS_PER_WRITE;

/// DynamoDB's limits on an expression, in bytes, and on the operators in it.
const EXPRESSION_BYTES: usize = 4_096;

fn shown(placeholders: &Placeholders, parts: &[Option<&str>]) -> String {
    let mut names: Vec<_> = placeholders.names.iter().collect();
    names.sort_by_key(|(name, _)| (name.len(), (*name).clone()));
    let mut values: Vec<_> = placeholders.values.iter().collect();
    values.sort_by_key(|(name, _)| (name.len(), (*name).clone()));
    let mut lines: Vec<String> = parts.iter().flatten().map(|part| (*part).to_owned()).collect();
    lines.extend(names.into_iter().map(|(name, attribute)| format!("{name} {attribute}")));
    lines.extend(values.into_iter().map(|(name, value)| format!("{name} {value:?}")));
    lines.join("\n")
}

fn update(update: &StoredUpdate) -> String {
    let condition = update.condition.as_ref().map(|condition| format!("IF {condition}"));
    shown(&update.placeholders, &[Some(&update.expression), condition.as_deref()])
}

fn read(query: &Query) -> String {
    let filter = query.filter.as_ref().map(|filter| format!("FILTER {filter}"));
    let index = query.index.map(|index| format!("FROM {index}"));
    let parts = [Some(query.condition.as_str()), filter.as_deref(), index.as_deref()];
    shown(&query.placeholders, &parts)
}

fn entity(name: &str) -> EntityId {
    EntityId::new(name).unwrap()
}

fn at(millis: i64) -> EpochMillis {
    EpochMillis::new(millis).unwrap()
}

#[test]
fn every_update() {
    let child = EntityRecord {
        entity: entity("user-123"),
        parent: Some(entity("project-1")),
        cascade: true,
    };
    insta::assert_snapshot!("put_child", update(&put_entity(&child)));
    let orphan = EntityRecord { parent: None, cascade: false, ..child };
    insta::assert_snapshot!("put_orphan", update(&put_entity(&orphan)));

    let limits = [Limit::per_minute("rpm.v2", 100), Limit::quota("ttl", 5).burst(6)];
    let rules = limits.map(|limit| limit.check().unwrap());
    for (name, level) in [("set_limits", Level::There), ("set_first_limits", Level::New)] {
        insta::assert_snapshot!(name, update(&set_limits(&rules, level, at(1_706_000_000_000))));
    }

    let usd = LimitName::new("usd").unwrap();
    let list = Thresholds::parse(&usd, "80%,150/month").unwrap();
    insta::assert_snapshot!("set_alerts", update(&set_alerts(&[(usd.clone(), list)].into())));
    insta::assert_snapshot!("delete_alerts", update(&delete_alerts(&[usd])));
    insta::assert_snapshot!("is_given_up", update(&is_given_up()));

    let names = rules.map(|(limit, _)| limit);
    let delete = delete_limits(&names, at(1_706_000_000_001));
    insta::assert_snapshot!("delete_limits", update(&delete));
    insta::assert_snapshot!("set_schema", update(&set_schema(1)));
}

#[test]
fn a_legacy_item_goes_only_as_it_was_seen() {
    let seen = |attribute, seen| Unchanged { attribute, seen };
    let guard = unchanged(&[
        seen("tokens_milli", Some(-5)),
        seen("last_refill_ms", Some(1_706_000_000_000)),
        seen("total_consumed_milli", None),
    ]);
    insta::assert_snapshot!("unchanged", shown(&guard.placeholders, &[Some(&guard.condition)]));
}

#[test]
fn every_query() {
    let (user, resource) = (entity("user-123"), Resource::new("gpt-4").unwrap());
    let span =
        WindowSpan { kind: WindowKind::Hour, starts: at(1_769_608_800_000)..at(1_769_616_000_000) };
    let usage = KeyRange::usage(&user, &resource, &span).unwrap();
    insta::assert_snapshot!("usage", read(&query(usage)));
    let of_entity = query_span(KeyRange::usage_of_entity(&user), &span).unwrap();
    insta::assert_snapshot!("usage_of_entity", read(&of_entity));
    let of_resource = KeyRange::usage_of_resource(&resource, &span).unwrap();
    insta::assert_snapshot!("usage_of_resource", read(&query(of_resource)));
    let buckets = KeyRange::buckets_of_resource(&resource);
    insta::assert_snapshot!("buckets_of_resource", read(&query(buckets)));
    insta::assert_snapshot!("children", read(&query(KeyRange::children(&user))));
    let filter = legacy_items();
    let parts = [Some(filter.condition.as_str()), Some(filter.projection.as_str())];
    insta::assert_snapshot!("legacy_items", shown(&filter.placeholders, &parts));
    let filter = resources_of(&span).unwrap();
    let parts = [Some(filter.condition.as_str()), Some(filter.projection.as_str())];
    insta::assert_snapshot!("resources_of", shown(&filter.placeholders, &parts));
}

#[test]
fn the_most_limits_of_one_write_fit_an_expression() {
    let rule = Limit::per_day("x", 1).check().unwrap().1;
    let rules: Vec<_> = (0..LIMITS_PER_WRITE)
        .map(|n| (LimitName::new(format!("{n:064}")).unwrap(), rule))
        .collect();
    let set = set_limits(&rules, Level::There, EpochMillis::MAX);
    let names: Vec<_> = rules.into_iter().map(|(limit, _)| limit).collect();
    let delete = delete_limits(&names, EpochMillis::MAX);
    for update in [set, delete] {
        assert!(update.expression.len() <= EXPRESSION_BYTES, "{}", update.expression.len());
    }
}
