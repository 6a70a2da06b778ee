//! One row of an export: the amount of one limit in one usage window.

use std::io;

use serde::Serialize;
use sha2::{Digest, Sha256};
use sluicegate::types::{LimitName, UsageWindow, Window};
use sluicegate_core::{AmountOf, Currency, Money, rfc3339_s};

/// Bytes of the digest in an id: enough that no two rows of a table ever share one.
const ID_BYTES: usize = 16;
const NANOS_PER_MILLI: i128 = 1_000_000;
/// The unit of amounts that are not money.
pub(super) const TOKEN: &str = "token";

/// The fields of a row, in the order of its columns.
#[derive(Debug, Serialize)]
pub(super) struct Row<'a> {
    /// The same for the same entity, resource, limit and window in every export.
    pub(super) id: String,
    pub(super) entity: &'a str,
    pub(super) resource: &'a str,
    pub(super) limit: &'a str,
    /// The kind of the window.
    pub(super) window: String,
    /// RFC 3339, UTC.
    pub(super) start: String,
    pub(super) end: String,
    /// Exact: tokens with up to three decimals, money with up to nine.
    pub(super) amount: String,
    /// `token`, or the code of a currency.
    pub(super) unit: &'static str,
    /// The records of the window; each of its rows has the same number.
    pub(super) events: u64,
    /// The price of the amount; `None`: it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cost: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) currency: Option<&'static str>,
    /// The same as numbers, for formats with types.
    #[serde(skip)]
    #[cfg_attr(not(feature = "parquet"), expect(dead_code, reason = "only texts are written"))]
    pub(super) numbers: Numbers,
}

/// The numbers of a row.
#[derive(Debug)]
#[cfg_attr(not(feature = "parquet"), expect(dead_code, reason = "only texts are written"))]
pub(super) struct Numbers {
    pub(super) window: Window,
    /// Billionths of a token or of the unit of money; `None`: more than 127 bits hold.
    pub(super) amount_nanos: Option<i128>,
    pub(super) cost_nanos: Option<i128>,
}

impl<'a> Row<'a> {
    pub(super) fn new(
        usage: &'a UsageWindow,
        limit: &'a LimitName,
        milli: i128,
        cost: Option<Money>,
    ) -> Self {
        let (window, limit) = (usage.window, limit.as_str());
        let (entity, resource) = (usage.entity.as_str(), usage.resource.as_str());
        let (kind, start) = (window.kind().to_string(), window.start_text());
        Self {
            id: id([entity, resource, limit, &kind, &start]),
            entity,
            resource,
            limit,
            window: kind,
            start,
            end: rfc3339_s(window.end_s()),
            amount: AmountOf::new(limit, milli).plain(),
            unit: Currency::of(limit).map_or(TOKEN, Currency::code),
            events: usage.events,
            cost: cost.map(plain),
            currency: cost.map(|cost| cost.currency().code()),
            numbers: Numbers {
                window,
                amount_nanos: match Currency::of(limit) {
                    Some(_) => Some(milli),
                    None => milli.checked_mul(NANOS_PER_MILLI),
                },
                cost_nanos: cost.map(Money::nanos),
            },
        }
    }
}

/// Writes the rows of one file.
pub(super) trait RowWriter: Send {
    fn write(&mut self, row: &Row<'_>) -> io::Result<()>;

    /// Writes everything that is left.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// Names have no control characters, so texts with one between them are unambiguous.
fn id(parts: [&str; 5]) -> String {
    let digest = Sha256::digest(parts.join("\0"));
    digest.iter().take(ID_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

fn plain(money: Money) -> String {
    let limit = money.currency().code().to_ascii_lowercase();
    AmountOf::new(&limit, money.nanos()).plain()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Systems drop repetitions by these ids, so they must never change.
    #[test]
    fn ids_stay_the_same() {
        let of = |entity, resource| id([entity, resource, "rpm", "day", "2026-11-01T00:00:00Z"]);
        assert_eq!(of("user-123", "gpt-4"), "d79b9eb4dc623e6199f3f57911fbd7c9");
        assert_ne!(of("user-123", "gpt-4"), of("user-12", "3gpt-4"));
    }
}
