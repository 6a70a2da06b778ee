//! Round trips of configuration items, and what broken ones say.

use proptest::prelude::*;

use super::*;
use crate::fixtures::by_calendar;
use crate::{Millitokens, Refill, Resource};

fn entity() -> impl Strategy<Value = EntityId> {
    "[^#\\p{Cc}]{1,20}".prop_map(|name| EntityId::new(name).unwrap())
}

fn resource() -> impl Strategy<Value = Resource> {
    "[^#\\p{Cc}]{1,20}".prop_map(|name| Resource::new(name).unwrap())
}

fn limit() -> impl Strategy<Value = LimitName> {
    "[A-Za-z0-9_.-]{1,6}".prop_map(|name| LimitName::new(name).unwrap())
}

fn rule() -> impl Strategy<Value = Rule> {
    let amount = || (0..=Millitokens::MAX.get()).prop_map(|n| Millitokens::new(n).unwrap());
    (amount(), amount(), amount(), 1..=Refill::MAX_PERIOD_MS).prop_map(
        |(capacity, burst, amount, period_ms)| {
            if period_ms % 4 == 0 {
                return by_calendar(burst.get(), "week@sun/Asia/Tokyo");
            }
            Rule::with_burst(capacity, burst, Refill::new(amount, period_ms).unwrap()).unwrap()
        },
    )
}

fn scope() -> impl Strategy<Value = LimitsScope> {
    prop_oneof![
        (entity(), resource()).prop_map(|(e, r)| LimitsScope::EntityResource(e, r)),
        entity().prop_map(LimitsScope::Entity),
        resource().prop_map(LimitsScope::Resource),
        Just(LimitsScope::System),
    ]
}

fn stored() -> impl Strategy<Value = StoredLimits> {
    (
        scope(),
        proptest::collection::btree_map(limit(), rule(), 0..5),
        proptest::collection::btree_map(limit(), 0..=i64::MAX.unsigned_abs(), 0..5),
        0..=EpochMillis::MAX.get(),
        any::<u64>(),
    )
        .prop_map(|(scope, rules, mut deleted, updated_at, version)| {
            deleted.retain(|limit, _| !rules.contains_key(limit));
            StoredLimits {
                scope,
                rules,
                deleted,
                updated_at: EpochMillis::new(updated_at).unwrap(),
                version,
            }
        })
}

proptest! {
    #[test]
    fn an_entity_decodes_to_what_it_was_encoded_from(
        entity in entity(),
        parent in proptest::option::of(entity()),
        cascade: bool,
    ) {
        let record = EntityRecord { parent: parent.filter(|p| *p != entity), entity, cascade };
        prop_assert_eq!(EntityRecord::from_item(&record.to_item()), Ok(Some(record)));
    }

    #[test]
    fn limits_decode_to_what_they_were_encoded_from(stored in stored()) {
        prop_assert_eq!(StoredLimits::from_item(&stored.to_item()), Ok(Some(stored)));
    }
}

fn item(sk: &str, attributes: &[(&str, AttributeValue)]) -> Item {
    let mut item = HashMap::from([
        ("PK".to_owned(), AttributeValue::S("ENTITY#user-123".to_owned())),
        ("SK".to_owned(), AttributeValue::S(sk.to_owned())),
    ]);
    item.extend(attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    item.into()
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

fn n(value: i64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

#[test]
fn an_entity_is_spelled_as_the_schema_says() {
    let record = EntityRecord {
        entity: EntityId::new("user-123").unwrap(),
        parent: Some(EntityId::new("project-1").unwrap()),
        cascade: true,
    };
    let expected = item(
        "#META",
        &[
            ("parent_id", text("project-1")),
            ("cascade", AttributeValue::Bool(true)),
            ("GSI1PK", text("PARENT#project-1")),
            ("GSI1SK", text("CHILD#user-123")),
        ],
    );
    assert_eq!(record.to_item(), expected);
}

#[test]
fn an_entity_of_another_producer_is_read() {
    let bare = item("#META", &[("parent_id", AttributeValue::Null(true))]);
    let record = EntityRecord::from_item(&bare).unwrap().unwrap();
    assert_eq!((record.parent, record.cascade), (None, false));
}

#[test]
fn broken_entities_say_what_is_broken() {
    for (attribute, value, message) in [
        ("parent_id", text("user-123"), "parent_id of the item is not another entity"),
        ("parent_id", n(5), "parent_id of the item is not a string"),
        ("parent_id", text(""), "entity id is empty: give at least one character"),
        ("cascade", text("yes"), "cascade of the item is not a boolean"),
    ] {
        let error = EntityRecord::from_item(&item("#META", &[(attribute, value)])).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    assert_eq!(EntityRecord::from_item(&item("#LIMITS", &[])), Ok(None));
}

fn rpm() -> Vec<(&'static str, AttributeValue)> {
    vec![
        ("updated_at", n(1_706_000_000_000)),
        ("version", n(7)),
        ("l_rpm_cp", n(100_000)),
        ("l_rpm_bx", n(200_000)),
        ("l_rpm_ra", n(100_000)),
        ("l_rpm_rp", n(60_000)),
        ("l_tpm.v2_dl", n(1_706_000_000_000)),
    ]
}

#[test]
fn limits_are_spelled_as_the_schema_says() {
    let item = item("#LIMITS#gpt-4", &rpm());
    let stored = StoredLimits::from_item(&item).unwrap().unwrap();
    assert_eq!(stored.rules[&LimitName::new("rpm").unwrap()].burst().get(), 200_000);
    assert_eq!(stored.deleted[&LimitName::new("tpm.v2").unwrap()], 1_706_000_000_000);
    assert_eq!((stored.version, stored.to_item()), (7, item));
}

#[test]
fn limits_of_a_producer_that_keeps_no_version_have_the_time_of_their_last_change() {
    let mut attributes = rpm();
    attributes.retain(|(name, _)| *name != "version");
    let stored = StoredLimits::from_item(&item("#LIMITS", &attributes)).unwrap().unwrap();
    assert_eq!(stored.version, 1_706_000_000_000);
}

#[test]
fn a_missing_burst_is_the_capacity_and_a_rule_outweighs_a_tombstone() {
    let mut attributes = rpm();
    attributes.retain(|(name, _)| *name != "l_rpm_bx");
    attributes.push(("l_rpm_dl", n(1)));
    let stored = StoredLimits::from_item(&item("#LIMITS", &attributes)).unwrap().unwrap();
    assert_eq!(stored.rules[&LimitName::new("rpm").unwrap()].burst().get(), 100_000);
    assert_eq!(stored.deleted.len(), 1);
}

#[test]
fn broken_limits_say_which_attribute_is_broken() {
    for (attribute, value, message) in [
        ("updated_at", None, "the item has no updated_at"),
        ("version", Some(text("5")), "version of the item is not an integer"),
        ("l_rpm_cp", None, "the item has no l_rpm_cp"),
        ("l_rpm_ra", Some(text("5")), "l_rpm_ra of the item is not an integer"),
        ("l_tpm.v2_dl", Some(text("now")), "l_tpm.v2_dl of the item is not an integer"),
        (
            "l_rpm_rp",
            Some(n(0)),
            "l_rpm_rp of the item: refill period in milliseconds 0 is out of range: it must lie between 1 and 1000000000000",
        ),
        (
            "l_rpm_bx",
            Some(n(-1)),
            "l_rpm_cp of the item: burst in millitokens -1 is out of range: it must lie between 0 and 1000000000000000000",
        ),
        (
            "l_r m_cp",
            Some(n(1)),
            "limit name \"r m\" has the character ' ': use ASCII letters, digits, '_', '-' and '.'",
        ),
    ] {
        let mut attributes = rpm();
        attributes.retain(|(name, _)| *name != attribute);
        attributes.extend(value.map(|value| (attribute, value)));
        let error = StoredLimits::from_item(&item("#LIMITS", &attributes)).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    assert_eq!(StoredLimits::from_item(&item("#META", &[])), Ok(None));
}
