//! The state of a usage window that decides its alerts, as its item has it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;
use serde_dynamo::{AttributeValue, Item};

use super::entry::Alert;
use super::settings::AlertRules;
use crate::keys::{self, BucketField};
use crate::{
    BucketId, Calendar, CalendarRefill, LimitName, Millitokens, RecordDeltas, Window, WindowKind,
};

/// The sums of a usage window, and the thresholds that it claimed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WindowState {
    /// Millitokens by limit.
    pub sums: BTreeMap<LimitName, i128>,
    /// The amounts of the limits of the window's own calendar.
    pub amounts: BTreeMap<LimitName, Millitokens>,
    /// The claimed thresholds, as [`Alert::claim`] spells them.
    pub claimed: BTreeSet<String>,
}

impl WindowState {
    /// Reads the item of a window. It skips broken attributes, so the readable limits of the window
    /// still have their alerts.
    #[must_use]
    pub fn from_item(item: &Item) -> Self {
        let mut state = Self::default();
        for (attribute, value) in item.inner() {
            if let Some(limit) = keys::parse_usage_attribute(attribute) {
                let sum = digits(value).and_then(|digits| digits.parse().ok());
                state.sums.extend(LimitName::new(limit).ok().zip(sum));
            } else if let Some(limit) = keys::parse_amount_attribute(attribute) {
                state.amounts.extend(LimitName::new(limit).ok().zip(amount(value)));
            }
        }
        if let Some(AttributeValue::Ss(claimed)) = item.inner().get(keys::CLAIMED_ALERTS) {
            state.claimed.extend(claimed.iter().cloned());
        }
        state
    }

    /// Takes in the amounts of the window's counted records ([`calendar_amounts`]). They fill the
    /// gaps of the window's item: it has no amount of a limit if a processor without alerts counted
    /// its records. An amount of the item stays: these records may be old ones that came again.
    /// `None` (the limit's calendar changed, so that it has no amount for this window any more)
    /// removes the amount from this state, not from the item.
    pub fn take_in_amounts(&mut self, of_records: BTreeMap<LimitName, Option<Millitokens>>) {
        for (limit, amount) in of_records {
            match amount {
                Some(amount) => _ = self.amounts.entry(limit).or_insert(amount),
                None => _ = self.amounts.remove(&limit),
            }
        }
    }

    /// True if some sum is above zero. No other sum reaches a threshold.
    #[must_use]
    pub fn has_usage(&self) -> bool {
        self.sums.values().any(|sum| *sum > 0)
    }

    /// The alerts of the thresholds that the window reached and did not claim.
    #[must_use]
    pub fn due(&self, rules: &AlertRules, bucket: &BucketId, window: Window) -> Vec<Alert> {
        let reached = rules.of_bucket(bucket).into_iter().filter_map(|(limit, threshold)| {
            let sum_milli = *self.sums.get(limit)?;
            let amount = self.amounts.get(limit).copied();
            threshold.is_reached(window.kind(), sum_milli, amount).then(|| Alert {
                bucket: bucket.clone(),
                limit: limit.clone(),
                window,
                threshold,
                sum_milli,
                amount,
            })
        });
        reached.filter(|alert| !self.claimed.contains(&alert.claim())).collect()
    }
}

#[derive(Deserialize)]
struct Record {
    dynamodb: Change,
}

#[derive(Deserialize)]
struct Change {
    #[serde(rename = "NewImage")]
    new: Item,
}

/// For each limit that the records name: the amount that it has for a period, by the newest record
/// that names it; `None`: it is no calendar limit whose period is this kind of window. A limit that
/// only older records name has the amount of the newest of those, although its bucket may have
/// dropped it since. The records are those of one window, oldest first.
#[must_use]
pub fn calendar_amounts(
    records: &[Arc<RecordDeltas<'_>>],
    kind: WindowKind,
) -> BTreeMap<LimitName, Option<Millitokens>> {
    let (mut amounts, mut seen) = (BTreeMap::new(), BTreeSet::new());
    let WindowKind::Calendar(calendar) = kind else { return amounts };
    for record in records.iter().rev() {
        let limits = record.deltas.iter().map(|delta| &delta.limit);
        let limits: Vec<_> = limits.filter(|limit| seen.insert(*limit)).collect();
        if limits.is_empty() {
            continue;
        }
        // A record that was counted can be read.
        let Ok(record) = serde_json::from_str::<Record>(record.json) else { continue };
        let found = limits
            .into_iter()
            .map(|limit| (limit.clone(), amount_in(&record.dynamodb.new, limit, calendar)));
        amounts.extend(found);
    }
    amounts
}

fn amount_in(image: &Item, limit: &LimitName, calendar: Calendar) -> Option<Millitokens> {
    let AttributeValue::S(text) = image.get(&keys::calendar_attribute(limit))? else { return None };
    let refill: CalendarRefill = text.parse().ok()?;
    let field = |field| amount(image.get(&keys::bucket_attribute(limit, field))?);
    // A limit that became a rate keeps the attribute of its calendar.
    let is_calendar = field(BucketField::RefillAmount)? == Millitokens::ZERO;
    (is_calendar && refill.calendar == calendar).then_some(field(BucketField::Burst)?)
}

fn digits(value: &AttributeValue) -> Option<&str> {
    match value {
        AttributeValue::N(digits) => Some(digits),
        _ => None,
    }
}

fn amount(value: &AttributeValue) -> Option<Millitokens> {
    Millitokens::new(digits(value)?.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alert::settings::AlertSettings;
    use crate::alert::threshold::Thresholds;
    use crate::alert::threshold::tests::threshold;
    use crate::fixtures::{at, bucket, milli, name};
    use crate::keys::LimitsScope;
    use crate::{StreamRecord, Threshold, WindowKind, extract_deltas};
    use proptest::prelude::*;

    fn rules(limit: &str, list: &str) -> AlertRules {
        let thresholds = [(name(limit), Thresholds::parse(&name(limit), list).unwrap())].into();
        [AlertSettings { scope: LimitsScope::System, thresholds }].into_iter().collect()
    }

    fn of(attributes: &[(&str, &str)], claimed: &[&str]) -> WindowState {
        let number = |(attribute, digits): &(&str, &str)| {
            ((*attribute).to_owned(), AttributeValue::N((*digits).to_owned()))
        };
        let mut item: std::collections::HashMap<_, _> = attributes.iter().map(number).collect();
        let claimed = claimed.iter().map(|claim| (*claim).to_owned()).collect();
        item.insert("alerts".to_owned(), AttributeValue::Ss(claimed));
        WindowState::from_item(&item.into())
    }

    fn due(state: &WindowState, rules: &AlertRules, kind: WindowKind) -> Vec<String> {
        let window = kind.containing(at(1_769_608_800_000));
        state.due(rules, &bucket("u", "r"), window).iter().map(Alert::claim).collect()
    }

    #[test]
    fn a_window_is_due_what_it_reached_and_did_not_claim() {
        let rules = rules("usd", "50%,80%,100%,120/month,7/day");
        let state = of(&[("u_usd", "150000000000"), ("cap_usd", "160000000000")], &["usd#50%"]);
        assert_eq!(due(&state, &rules, WindowKind::MONTH), ["usd#80%", "usd#120/month"]);
        let without = of(&[("u_usd", "150000000000")], &[]);
        assert_eq!(due(&without, &rules, WindowKind::MONTH), ["usd#120/month"]);
        assert_eq!(due(&without, &rules, WindowKind::DAY), ["usd#7/day"]);
        assert_eq!(due(&without, &rules, WindowKind::Hour), [""; 0]);
    }

    #[test]
    fn the_newest_records_give_amounts_and_take_them_away() {
        let rules = rules("usd", "50%");
        let reached = |attributes: &[(&str, &str)], newest| {
            let mut state = of(attributes, &[]);
            state.take_in_amounts([(name("usd"), newest)].into());
            !due(&state, &rules, WindowKind::MONTH).is_empty()
        };
        let sum = ("u_usd", "150000000000");
        assert!(reached(&[sum], Some(milli(160_000_000_000))));
        // The item has the newest amount: these records may be old ones that came again.
        assert!(!reached(&[sum, ("cap_usd", "400000000000")], Some(milli(160_000_000_000))));
        assert!(!reached(&[sum, ("cap_usd", "160000000000")], None));
    }

    #[test]
    fn a_broken_attribute_hides_no_other() {
        let state =
            of(&[("u_usd", "many"), ("u_tpm", "5000"), ("cap_tpm", "-"), ("events", "1")], &[]);
        assert_eq!(state.sums, [(name("tpm"), 5_000)].into());
        assert!(state.has_usage() && state.amounts.is_empty());
        assert!(!of(&[("u_tpm", "-5"), ("events", "1")], &[]).has_usage());
    }

    #[test]
    fn the_amount_of_a_calendar_limit_is_that_of_the_newest_record_that_names_it() {
        let json = |attributes: &str| {
            format!(
                r##"{{"eventName":"INSERT","dynamodb":{{"SequenceNumber":"7","Keys":
                {{"PK":{{"S":"ENTITY#u"}},"SK":{{"S":"#BUCKET#r"}}}},"NewImage":
                {{"rf":{{"N":"5"}},{attributes}}}}}}}"##
            )
        };
        let jsons = [
            r#""b_usd_tc":{"N":"1"},"b_usd_cal":{"S":"month@15"},"b_usd_bx":{"N":"7"},
                "b_usd_ra":{"N":"0"}"#,
            r#""b_usd_tc":{"N":"1"},"b_usd_cal":{"S":"month@15"},"b_usd_bx":{"N":"8"},
                "b_usd_ra":{"N":"0"},
                "b_day_tc":{"N":"1"},"b_day_cal":{"S":"day"},"b_day_bx":{"N":"9"},
                "b_day_ra":{"N":"0"}"#,
            r#""b_rpm_tc":{"N":"1"},"b_rpm_bx":{"N":"1"},"b_odd_tc":{"N":"1"},
                "b_odd_cal":{"S":"month@15"},"b_un_tc":{"N":"1"},"b_un_cal":{"S":"now"},
                "b_un_bx":{"N":"1"},"b_un_ra":{"N":"0"},
                "b_rate_tc":{"N":"1"},"b_rate_cal":{"S":"month@15"},"b_rate_bx":{"N":"5"},
                "b_rate_ra":{"N":"5"},
                "b_usd_cal":{"S":"month@15"},"b_usd_bx":{"N":"6"},"b_usd_ra":{"N":"0"}"#,
        ]
        .map(json);
        let read = |json| extract_deltas(&StreamRecord::from_json(json).unwrap()).unwrap().unwrap();
        let records: Vec<_> = jsons.iter().map(|json| Arc::new(read(json))).collect();
        let of = |kind: &str| calendar_amounts(&records, kind.parse().unwrap());
        let all = |usd, day| {
            let none = ["odd", "rate", "rpm", "un"].map(|limit| (name(limit), None));
            none.into_iter().chain([(name("usd"), usd), (name("day"), day)]).collect()
        };
        assert_eq!(of("month@15"), all(Some(milli(8)), None));
        assert_eq!(of("day"), all(None, Some(milli(9))));
        assert_eq!(of("month"), all(None, None));
        assert!(of("hour").is_empty());
    }

    proptest! {
        /// A window may go through any sums and be looked at at any of them: it claims each
        /// threshold once, the last look is complete, and nothing is claimed that was not reached.
        #[test]
        fn each_threshold_is_claimed_once(
            thresholds in proptest::collection::vec(threshold(), 1..=10),
            steps in proptest::collection::vec((-1_000_000_i64..2_000_000, any::<bool>()), 1..40),
            amount in 1_i64..20_000_000,
        ) {
            let limit = name("tpm");
            let text: Vec<_> = thresholds.iter().map(|t| t.show(&limit).to_string()).collect();
            let rules = rules("tpm", &text.join(","));
            let mut state = WindowState::default();
            state.amounts.insert(limit.clone(), milli(amount));
            let window = WindowKind::DAY.containing(at(1_769_608_800_000));
            let (mut sum, mut highest, mut claimed) = (0_i128, 0_i128, Vec::new());
            for (step, is_looked_at) in steps {
                sum += i128::from(step);
                state.sums.insert(limit.clone(), sum);
                if !is_looked_at {
                    continue;
                }
                highest = highest.max(sum);
                let due = state.due(&rules, &bucket("u", "r"), window);
                claimed.extend(due.iter().map(|alert| alert.threshold));
                state.claimed.extend(due.iter().map(Alert::claim));
                prop_assert!(state.due(&rules, &bucket("u", "r"), window).is_empty());
            }
            claimed.sort_unstable();
            let mut reached = thresholds;
            reached.retain(|t: &Threshold| t.is_reached(window.kind(), highest, Some(milli(amount))));
            reached.sort_unstable();
            reached.dedup();
            prop_assert_eq!(claimed, reached);
        }
    }
}
