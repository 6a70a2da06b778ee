use super::*;
use crate::fixtures::{at, milli, name};
use crate::{EntityId, EpochMillis, LimitBalance, Millitokens, Refill, Resource, RulesHash};

fn rule(tokens: i64) -> Rule {
    let amount = Millitokens::from_tokens(tokens).unwrap();
    Rule::new(amount, Refill::new(amount, 60_000).unwrap()).unwrap()
}

fn rules(rules: &[(&str, i64)]) -> Rules {
    rules.iter().map(|(limit, tokens)| (name(limit), rule(*tokens))).collect()
}

fn epoch(millis: i64) -> Option<EpochMillis> {
    Some(at(millis))
}

/// Versions of the widest level and of the narrowest.
fn versions(system: u64, personal: u64) -> LevelVersions {
    LevelVersions([personal, 0, 0, system])
}

fn item(limits: &[(&str, i64)], system: u64, personal: u64) -> CompositeBucket {
    let bucket = |rule: Rule| LimitBalance {
        rule,
        tokens: rule.burst(),
        consumed: Millitokens::ZERO.into(),
    };
    let limits = rules(limits);
    CompositeBucket {
        entity: EntityId::new("u").unwrap(),
        resource: Resource::new("r").unwrap(),
        refilled_at: EpochMillis::MIN,
        rules_hash: Some(RulesHash::of(&limits)),
        limits: limits.into_iter().map(|(limit, rule)| (limit, bucket(rule))).collect(),
        expires_at_s: None,
        config_stamp: versions(system, personal).into(),
        request_ids: Vec::new(),
    }
}

fn stored(limits: &[(&str, i64)], deleted: &[&str], system: u64, personal: u64) -> Configuration {
    let stored = StoredRules {
        rules: rules(limits),
        deleted: deleted.iter().map(|limit| (name(limit), versions(system, personal))).collect(),
        versions: versions(system, personal),
        ..StoredRules::default()
    };
    Configuration { explicit: Arc::default(), stored: Some(stored) }
}

/// It came with a request after the item had followed the deletion, and may be in debt.
#[test]
fn a_later_change_does_not_remove_what_was_deleted_before() {
    let item = item(&[("rpm", 10), ("tpm", 10)], 5, 5);
    let mut newer = stored(&[("tpm", 20)], &["rpm"], 6, 5);
    let deleted = |newer: &mut Configuration, versions| {
        newer.stored.as_mut().unwrap().deleted.insert(name("rpm"), versions);
        newer.compare(&item).removed
    };
    assert_eq!(deleted(&mut newer, versions(5, 5)), BTreeSet::new());
    assert_eq!(deleted(&mut newer, versions(6, 5)), BTreeSet::from([name("rpm")]));
}

#[test]
fn a_newer_configuration_changes_seeds_and_removes() {
    let item = item(&[("rpm", 10), ("tpm", 10), ("old", 1), ("mine", 1)], 5, 5);
    let found =
        stored(&[("rpm", 20), ("tpm", 10), ("new", 3)], &["old", "gone"], 6, 5).compare(&item);
    assert_eq!(found.changed, rules(&[("rpm", 20)]));
    assert_eq!(found.missing, rules(&[("new", 3)]));
    // Only what some level deleted: "mine" came with somebody's request.
    assert_eq!(found.removed, BTreeSet::from([name("old")]));
    assert_eq!(found.versions, Some(versions(6, 5)));
}

#[test]
fn an_older_copy_adopts_what_the_item_says() {
    let item = item(&[("rpm", 10)], 5, 5);
    // One level of it is newer: that does not make the other one.
    for (system, personal) in [(4, 5), (5, 4), (4, 6), (6, 4), (0, 0)] {
        let older = stored(&[("rpm", 20), ("new", 3)], &["rpm"], system, personal);
        assert!(older.is_behind(&item) && older.compare(&item).is_empty(), "{system}, {personal}");
    }
}

#[test]
fn older_version_that_was_read_again_is_the_truth_for_that_item() {
    let mut item = item(&[("rpm", 10)], 5, 5);
    let mut restored = stored(&[("rpm", 20)], &[], 6, 0);
    restored.stored.as_mut().unwrap().outranks = Some(item.config_stamp);
    assert!(!restored.is_behind(&item));
    let found = restored.compare(&item);
    assert_eq!((found.changed, found.versions), (rules(&[("rpm", 20)]), Some(versions(6, 0))));
    // Somebody changed the item since.
    item.config_stamp = versions(5, 6).into();
    assert!(restored.is_behind(&item) && restored.compare(&item).is_empty());
}

#[test]
fn an_item_that_follows_a_time_is_brought_over_by_levels_that_are_not_older() {
    let mut item = item(&[("rpm", 10)], 0, 0);
    item.config_stamp = ConfigStamp::Epoch(epoch(5).unwrap());
    let mut known = stored(&[("rpm", 20)], &[], 2, 0);
    for (updated_at, is_behind) in [(None, true), (epoch(4), true), (epoch(5), false)] {
        known.stored.as_mut().unwrap().updated_at = updated_at;
        assert_eq!(known.is_behind(&item), is_behind, "{updated_at:?}");
    }
    assert_eq!(known.compare(&item).versions, Some(versions(2, 0)));
}

#[test]
fn at_the_same_versions_only_what_is_missing_is_written() {
    let item = item(&[("rpm", 10)], 5, 5);
    let same = stored(&[("rpm", 20), ("new", 3)], &["rpm"], 5, 5).compare(&item);
    assert!(same.changed.is_empty() && same.removed.is_empty() && same.versions.is_none());
    assert_eq!(same.missing, rules(&[("new", 3)]));
}

#[test]
fn explicit_limits_win_over_any_version_and_remove_nothing() {
    let item = item(&[("rpm", 10), ("tpm", 7)], 5, 5);
    for at in [4, 5, 6] {
        let mut both = stored(&[("rpm", 20)], &["tpm"], at, 5);
        both.explicit = rules(&[("rpm", 30), ("tpm", 7)]).into();
        let found = both.compare(&item);
        assert_eq!(found.changed, rules(&[("rpm", 30)]), "version {at}");
        assert!(found.removed.is_empty(), "version {at}");
    }
    let explicit = Configuration::explicit(rules(&[("rpm", 10)]));
    assert!(explicit.compare(&item).is_empty() && !explicit.is_behind(&item));
}

#[test]
fn the_hash_moves_with_every_parameter_and_name() {
    let with = |cp, bx, ra, rp| {
        Rule::with_burst(milli(cp), milli(bx), Refill::new(milli(ra), rp).unwrap()).unwrap()
    };
    let one = |limit: &str, rule: Rule| RulesHash::of(&Rules::from([(name(limit), rule)]));
    let hashes = BTreeSet::from([
        one("a", with(1, 2, 3, 4)),
        one("b", with(1, 2, 3, 4)),
        one("a", with(2, 2, 3, 4)),
        one("a", with(1, 3, 3, 4)),
        one("a", with(1, 2, 4, 4)),
        one("a", with(1, 2, 3, 5)),
        RulesHash::of(&Rules::new()),
    ]);
    assert_eq!(hashes.len(), 7);
    // Buckets in tables hold it: it must never change.
    assert_eq!(one("rpm", with(100_000, 100_000, 100_000, 60_000)).as_str(), "1bbd1698915f3616");
}
