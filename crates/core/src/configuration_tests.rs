use super::*;
use crate::{Bucket, EntityId, Millitokens, Refill, Resource};

fn name(limit: &str) -> LimitName {
    LimitName::new(limit).unwrap()
}

fn rule(tokens: i64) -> Rule {
    let amount = Millitokens::from_tokens(tokens).unwrap();
    Rule::new(amount, Refill::new(amount, 60_000).unwrap()).unwrap()
}

fn rules(rules: &[(&str, i64)]) -> Rules {
    rules.iter().map(|(limit, tokens)| (name(limit), rule(*tokens))).collect()
}

fn epoch(millis: i64) -> Option<EpochMillis> {
    Some(EpochMillis::new(millis).unwrap())
}

fn item(limits: &[(&str, i64)], config_epoch: Option<EpochMillis>) -> CompositeBucket {
    let bucket =
        |rule: Rule| Bucket { rule, tokens: rule.burst(), consumed: Millitokens::ZERO.into() };
    let limits = rules(limits);
    CompositeBucket {
        entity: EntityId::new("u").unwrap(),
        resource: Resource::new("r").unwrap(),
        refilled_at: EpochMillis::MIN,
        rules_hash: Some(RulesHash::of(&limits)),
        limits: limits.into_iter().map(|(limit, rule)| (limit, bucket(rule))).collect(),
        expires_at_s: None,
        config_epoch,
        request_ids: Vec::new(),
    }
}

fn stored(limits: &[(&str, i64)], dropped: &[&str], at: i64) -> Configuration {
    let stored = StoredRules {
        rules: rules(limits),
        dropped: dropped.iter().map(|limit| name(limit)).collect(),
        epoch: epoch(at),
        is_personal: false,
    };
    Configuration { explicit: Rules::new(), stored: Some(stored) }
}

#[test]
fn a_newer_configuration_changes_seeds_and_removes() {
    let item = item(&[("rpm", 10), ("tpm", 10), ("old", 1), ("mine", 1)], epoch(5));
    let found = stored(&[("rpm", 20), ("tpm", 10), ("new", 3)], &["old", "gone"], 6).compare(&item);
    assert_eq!(found.changed, rules(&[("rpm", 20)]));
    assert_eq!(found.missing, rules(&[("new", 3)]));
    // Only what some level deleted: "mine" came with somebody's request.
    assert_eq!(found.removed, BTreeSet::from([name("old")]));
    assert_eq!(found.epoch, epoch(6));
}

#[test]
fn an_older_copy_adopts_what_the_item_says() {
    let item = item(&[("rpm", 10)], epoch(5));
    let older = stored(&[("rpm", 20), ("new", 3)], &["rpm"], 4);
    assert!(older.is_older_than(&item) && older.compare(&item).is_empty());
    let never_stored = Configuration { stored: Some(StoredRules::default()), ..older };
    assert!(never_stored.is_older_than(&item));
}

#[test]
fn at_the_same_epoch_only_what_is_missing_is_written() {
    let item = item(&[("rpm", 10)], epoch(5));
    let same = stored(&[("rpm", 20), ("new", 3)], &["rpm"], 5).compare(&item);
    assert!(same.changed.is_empty() && same.removed.is_empty() && same.epoch.is_none());
    assert_eq!(same.missing, rules(&[("new", 3)]));
}

#[test]
fn explicit_limits_win_over_any_epoch_and_remove_nothing() {
    let item = item(&[("rpm", 10), ("tpm", 7)], epoch(5));
    for at in [4, 5, 6] {
        let mut both = stored(&[("rpm", 20)], &["tpm"], at);
        both.explicit = rules(&[("rpm", 30), ("tpm", 7)]);
        let found = both.compare(&item);
        assert_eq!(found.changed, rules(&[("rpm", 30)]), "epoch {at}");
        assert!(found.removed.is_empty(), "epoch {at}");
    }
    let explicit = Configuration::explicit(rules(&[("rpm", 10)]));
    assert!(explicit.compare(&item).is_empty() && !explicit.is_older_than(&item));
}

#[test]
fn the_hash_moves_with_every_parameter_and_name() {
    let milli = |tokens| Millitokens::new(tokens).unwrap();
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
