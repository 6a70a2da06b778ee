//! Every expression of a write that the processor sends, built from the decisions of `core`.
//!
//! Names and values are positional placeholders, so no name from outside is ever parsed as part of
//! an expression.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_dynamodb::types::{
    self, AttributeValue, ReturnValuesOnConditionCheckFailure, TransactWriteItem,
};
use sluicegate_core::keys::{self, ItemKey};
use sluicegate_core::{
    LimitName, Millitokens, QuarantineState, SequenceNumber, WindowGroup, WindowUpdate,
};

use crate::write_error::WriteError;

/// The condition that a recount's transaction sets on each window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowCondition {
    /// The watermark is at or past the record, so no delivery counts the record.
    AtOrPastRecord,
    /// No condition: the record is too old to be delivered again.
    None,
}

/// The expiry of a window that a recount counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowExpiry {
    /// The window exists, and keeps its expiry: another retention may have set it.
    Kept,
    /// The window is about to expire: its expiry is moved, on condition that no delivery has moved
    /// it meanwhile.
    Moved {
        /// The time that was found.
        from: i64,
        /// The time to set.
        to: i64,
    },
    /// The window is new. `None`: it does not expire.
    New(Option<i64>),
}

/// An update of one item with its condition.
#[derive(Debug, Clone, Default)]
pub(crate) struct Update {
    pub(crate) expression: String,
    pub(crate) condition: String,
    pub(crate) names: HashMap<String, String>,
    pub(crate) values: HashMap<String, AttributeValue>,
}

impl Update {
    fn name(&mut self, attribute: impl Into<String>) -> String {
        let placeholder = format!("#n{}", self.names.len());
        self.names.insert(placeholder.clone(), attribute.into());
        placeholder
    }

    fn value(&mut self, value: AttributeValue) -> String {
        let placeholder = format!(":v{}", self.values.len());
        self.values.insert(placeholder.clone(), value);
        placeholder
    }

    /// Returns the term `attribute operator value` in placeholders.
    fn term(
        &mut self,
        attribute: impl Into<String>,
        operator: &str,
        value: AttributeValue,
    ) -> String {
        let (name, value) = (self.name(attribute), self.value(value));
        format!("{name}{operator}{value}")
    }

    /// Sets the condition that the watermark is absent or below `first`. Returns the SET clauses
    /// that advance the watermark to `last` and set the index keys. By this condition a window
    /// counts a record once.
    fn advance_watermark_if_below(
        &mut self,
        group: &WindowGroup<'_>,
        first: &SequenceNumber,
        last: &SequenceNumber,
    ) -> String {
        let watermark = self.name(group.watermark_attribute());
        let first = self.value(text(first.padded()));
        let last = self.value(text(last.padded()));
        self.condition = format!("attribute_not_exists({watermark}) OR {watermark} < {first}");
        let sets = [format!("{watermark} = {last}")].into_iter().chain(self.index_clauses(group));
        sets.collect::<Vec<_>>().join(", ")
    }

    /// The SET clauses for the index keys of a window.
    fn index_clauses(&mut self, group: &WindowGroup<'_>) -> Vec<String> {
        let mut sets = Vec::new();
        if let Some((gsi2pk, gsi2sk)) = group.key().gsi2_keys() {
            sets.push(self.term(keys::GSI2.pk, " = ", text(gsi2pk)));
            sets.push(self.term(keys::GSI2.sk, " = ", text(gsi2sk)));
        }
        sets
    }

    /// Adds the expiry of a window to the expression, which ends with SET clauses. If the window is
    /// kept for ever, this removes the expiry that an earlier setting gave it.
    fn set_expiry(&mut self, expiry_s: Option<i64>) {
        let clause = match expiry_s {
            Some(expiry_s) => format!(", {}", self.term(keys::TTL, " = ", number(expiry_s))),
            None => format!(" REMOVE {}", self.name(keys::TTL)),
        };
        self.expression.push_str(&clause);
    }

    /// The update of an item as a part of a transaction. If its condition fails, the answer holds
    /// the item.
    pub(crate) fn into_transact_item(
        self,
        table: &str,
        key: &ItemKey,
    ) -> Result<TransactWriteItem, WriteError> {
        let condition = Some(self.condition).filter(|condition| !condition.is_empty());
        let returned = condition.as_ref().map(|_| ReturnValuesOnConditionCheckFailure::AllOld);
        let update = types::Update::builder()
            .table_name(table)
            .set_key(Some(self::key(key)))
            .update_expression(self.expression)
            .set_condition_expression(condition)
            .set_expression_attribute_names(Some(self.names))
            .set_expression_attribute_values(Some(self.values))
            .set_return_values_on_condition_check_failure(returned)
            .build()?;
        Ok(TransactWriteItem::builder().update(update).build())
    }

    /// Sets the condition that an entry is open and that exactly `counted` of its limits are
    /// counted.
    fn require_open(&mut self, counted: usize) {
        let state = self.term(keys::STATE, " = ", text(keys::OPEN));
        let limits = if counted == 0 {
            format!("attribute_not_exists({})", self.name(keys::COUNTED_LIMITS))
        } else {
            self.term(keys::COUNTED_LIMITS, " = ", number(counted))
        };
        self.condition = format!("{state} AND {limits}");
    }
}

/// The most amounts that an update stores: the most limits that a bucket of this limiter has
/// (`LIMITS_MAX`). An expression with 40 amounts and 200 sums is within DynamoDB's size.
const AMOUNTS_MAX: usize = 40;

/// Adds an update to its window, stores the amounts of calendar limits and advances the watermark,
/// in one conditional write.
pub(crate) fn counting_update(
    group: &WindowGroup<'_>,
    update: &WindowUpdate,
    expiry_s: Option<i64>,
    amounts: &BTreeMap<LimitName, Millitokens>,
) -> Update {
    let mut built = Update::default();
    let mut adds = Vec::with_capacity(update.consumed_milli.len() + 1);
    for (limit, milli) in &update.consumed_milli {
        adds.push(built.term(keys::usage_attribute(limit), " ", number(milli)));
    }
    adds.push(built.term(keys::EVENTS, " ", number(update.record_count)));
    let mut sets = built.advance_watermark_if_below(group, &update.first, &update.last);
    for (limit, amount) in amounts.iter().take(AMOUNTS_MAX) {
        sets.push_str(", ");
        sets.push_str(&built.term(keys::amount_attribute(limit), " = ", number(amount.get())));
    }
    built.expression = format!("ADD {} SET {sets}", adds.join(", "));
    built.set_expiry(expiry_s);
    built
}

/// Adds claims to a window that exists and has none of them.
pub(crate) fn claim(claims: &[String]) -> Update {
    let mut built = Update::default();
    let claimed = built.name(keys::CLAIMED_ALERTS);
    let set = built.value(AttributeValue::Ss(claims.to_vec()));
    built.expression = format!("ADD {claimed} {set}");
    let mut conditions = vec![format!("attribute_exists({})", built.name(keys::PK))];
    for claim in claims {
        let claim = built.value(text(claim));
        conditions.push(format!("NOT contains({claimed}, {claim})"));
    }
    built.condition = conditions.join(" AND ");
    built
}

/// Advances the watermark to `last`, because the records from `first` to `last` go to quarantine.
pub(crate) fn advance_watermark(
    group: &WindowGroup<'_>,
    first: &SequenceNumber,
    last: &SequenceNumber,
    expiry_s: Option<i64>,
) -> Update {
    let mut built = Update::default();
    let sets = built.advance_watermark_if_below(group, first, last);
    built.expression = format!("SET {sets}");
    built.set_expiry(expiry_s);
    built
}

/// Adds the consumption of some limits of a quarantined record to a window, and leaves the window's
/// watermark alone. It is sent in one transaction with the update of the entry.
pub(crate) fn count_quarantined(
    group: &WindowGroup<'_>,
    limits: &[(LimitName, i128)],
    record_count: usize,
    expiry: WindowExpiry,
    condition: WindowCondition,
) -> Update {
    let mut built = Update::default();
    let mut adds = Vec::with_capacity(limits.len() + 1);
    for (limit, milli) in limits {
        adds.push(built.term(keys::usage_attribute(limit), " ", number(milli)));
    }
    // Added even if it is zero, so that the attribute exists: `UsageWindow::from_item` refuses a
    // window that has sums but no events.
    adds.push(built.term(keys::EVENTS, " ", number(record_count)));
    let sets = built.index_clauses(group).join(", ");
    built.expression = format!("ADD {} SET {sets}", adds.join(", "));
    let mut conditions = Vec::new();
    match expiry {
        WindowExpiry::Kept => {}
        WindowExpiry::Moved { from, to } => {
            built.set_expiry(Some(to));
            conditions.push(built.term(keys::TTL, " = ", number(from)));
        }
        WindowExpiry::New(expiry_s) => built.set_expiry(expiry_s),
    }
    if let (WindowCondition::AtOrPastRecord, Some(record)) = (condition, group.records().last()) {
        let watermark = group.watermark_attribute();
        conditions.push(built.term(watermark, " >= ", text(record.sequence.padded())));
    }
    built.condition = conditions.join(" AND ");
    built
}

/// Closes an open entry of which exactly `counted` limits were counted.
pub(crate) fn close(counted: usize, state: QuarantineState, expiry_s: Option<i64>) -> Update {
    let mut built = Update::default();
    let mut sets = vec![built.term(keys::STATE, " = ", text(state.as_str()))];
    if let Some(expiry_s) = expiry_s {
        sets.push(built.term(keys::TTL, " = ", number(expiry_s)));
    }
    built.expression = format!("SET {}", sets.join(", "));
    built.require_open(counted);
    built
}

/// Stores in an open entry how many limits are now counted.
pub(crate) fn note_counted(before: usize, after: usize) -> Update {
    let mut built = Update::default();
    let set = built.term(keys::COUNTED_LIMITS, " = ", number(after));
    built.expression = format!("SET {set}");
    built.require_open(before);
    built
}

/// The condition under which a quarantine entry is put: an entry that exists stays as it is.
pub(crate) fn absent() -> (String, HashMap<String, String>) {
    (
        "attribute_not_exists(#n0)".to_owned(),
        HashMap::from([("#n0".to_owned(), keys::PK.to_owned())]),
    )
}

/// The condition under which an entry of the outbox is replaced: it exists.
pub(crate) fn present() -> (String, HashMap<String, String>) {
    ("attribute_exists(#n0)".to_owned(), HashMap::from([("#n0".to_owned(), keys::PK.to_owned())]))
}

/// The two key attributes of an item.
pub(crate) fn key(key: &ItemKey) -> HashMap<String, AttributeValue> {
    HashMap::from([(keys::PK.to_owned(), text(key.pk())), (keys::SK.to_owned(), text(key.sk()))])
}

pub(crate) fn text(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

fn number(number: impl ToString) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_core::{StreamRecord, WindowKind, extract_deltas, group_by_window};

    fn groups() -> Vec<WindowGroup<'static>> {
        let json = r##"{"eventName":"INSERT","eventSourceARN":"a/stream/2026-01-28T14:00:00.000",
            "dynamodb":{"Keys":{"PK":{"S":"ENTITY#user-123"},"SK":{"S":"#BUCKET#gpt-4"}},
            "SequenceNumber":"100000000003498069978","NewImage":{"rf":{"N":"1769608800000"},
            "b_rpm.v2_tc":{"N":"1000"},"b_ttl_tc":{"N":"500000"}}}}"##;
        let record = StreamRecord::from_json(json).unwrap();
        group_by_window(vec![extract_deltas(&record).unwrap().unwrap()], &WindowKind::Hour.into())
            .groups
    }

    fn shown(update: &Update) -> String {
        let mut lines = vec![update.expression.clone(), format!("IF {}", update.condition)];
        let mut names: Vec<_> = update.names.iter().map(|(k, v)| format!("{k} {v}")).collect();
        let mut values: Vec<_> = update.values.iter().map(|(k, v)| format!("{k} {v:?}")).collect();
        names.sort();
        values.sort();
        lines.extend(names);
        lines.extend(values);
        lines.join("\n")
    }

    #[test]
    fn every_expression() {
        let group = &groups()[0];
        let update = group.next_update(None).unwrap();
        let none = BTreeMap::new();
        insta::assert_snapshot!(
            "count",
            shown(&counting_update(group, &update, Some(1_777_388_400), &none))
        );
        insta::assert_snapshot!(
            "count_forever",
            shown(&counting_update(group, &update, None, &none))
        );
        let amounts =
            [(LimitName::new("usd").unwrap(), Millitokens::from_tokens(7).unwrap())].into();
        insta::assert_snapshot!(
            "count_with_amount",
            shown(&counting_update(group, &update, None, &amounts))
        );
        let claims = ["usd#80%", "tpm#5/day"].map(ToOwned::to_owned);
        insta::assert_snapshot!("claim", shown(&claim(&claims)));
        insta::assert_snapshot!(
            "advance_watermark",
            shown(&advance_watermark(group, &update.first, &update.last, None))
        );
        let recounted = |expiry, condition| {
            count_quarantined(group, &update.consumed_milli, 1, expiry, condition)
        };
        insta::assert_snapshot!(
            "count_quarantined",
            shown(&recounted(WindowExpiry::Kept, WindowCondition::AtOrPastRecord))
        );
        let new = WindowExpiry::New(Some(1_777_388_400));
        insta::assert_snapshot!(
            "count_quarantined_in_new_window",
            shown(&recounted(new, WindowCondition::None))
        );
        let closing = close(0, QuarantineState::Done, Some(1_777_388_400));
        insta::assert_snapshot!("close", shown(&closing));
        insta::assert_snapshot!("note_counted", shown(&note_counted(200, 400)));
        insta::assert_snapshot!("absent", format!("{:?}", absent()));
        insta::assert_snapshot!("present", format!("{:?}", present()));
    }
}
