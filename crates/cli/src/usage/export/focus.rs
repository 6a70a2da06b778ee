//! Rows with the columns of FOCUS 1.2, the FinOps Open Cost and Usage Specification, as CSV.
//!
//! Only columns that usage windows can fill are there. What a provider bills, and to which account, is
//! not known here: `ListCost` is the cost by a price list, or the amount of a limit that counts money.

use std::io::{self, Write};

use super::super::csv::quoted;
use super::row::{Row, RowWriter, TOKEN};

/// In the order of the alphabet; columns of our own begin with `x_`, as the specification says.
const HEADER: &str = "BillingCurrency,ChargeCategory,ChargeFrequency,ChargePeriodEnd,\
     ChargePeriodStart,ConsumedQuantity,ConsumedUnit,ListCost,ResourceId,SkuId,SubAccountId,\
     x_Events,x_Id,x_Window\r\n";

/// Writes the rows of one file.
pub(super) struct Focus {
    out: Box<dyn Write + Send>,
    /// True if costs come from a price list. Then the amounts of limits that count money are no costs,
    /// or the sum would have the same use twice.
    has_prices: bool,
    /// The window and the currency of the last cost that a limit counted. Other limits of that window
    /// and currency count the same use again.
    costed: Option<[String; 4]>,
}

impl Focus {
    /// Begins a file.
    pub(super) fn new(mut out: Box<dyn Write + Send>, has_prices: bool) -> io::Result<Self> {
        out.write_all(HEADER.as_bytes())?;
        Ok(Self { out, has_prices, costed: None })
    }

    /// True if this is the first limit of its window that counts this currency. The rows of a window
    /// come one after the other.
    fn is_first_of_window(&mut self, row: &Row<'_>) -> bool {
        let window = [row.entity, row.resource, row.start.as_str(), row.unit].map(str::to_owned);
        let is_first = self.costed.as_ref() != Some(&window);
        self.costed = Some(window);
        is_first
    }
}

impl RowWriter for Focus {
    fn write(&mut self, row: &Row<'_>) -> io::Result<()> {
        let counts_money = row.unit != TOKEN && !self.has_prices && self.is_first_of_window(row);
        let Row { id, window, start, end, amount, unit, events, .. } = row;
        let [entity, resource, limit] = [row.entity, row.resource, row.limit].map(quoted);
        // A limit counts what its name says: requests, or tokens of some kind.
        let (quantity, consumed_unit) =
            if *unit == TOKEN { (amount.as_str(), limit.as_str()) } else { ("", "") };
        let (cost, currency) = match (&row.cost, row.currency) {
            (Some(cost), Some(currency)) => (cost.as_str(), currency),
            _ if counts_money => (amount.as_str(), *unit),
            _ => ("", ""),
        };
        write!(
            self.out,
            "{currency},Usage,Usage-Based,{end},{start},{quantity},{consumed_unit},{cost},{resource},{limit},{entity},{events},{id},{window}\r\n"
        )
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use sluicegate::types::{EpochMillis, LimitName, UsageWindow, WindowKind};

    use super::*;

    /// The columns `BillingCurrency`, `ConsumedQuantity`, `ConsumedUnit` and `ListCost` of each limit
    /// of a window.
    fn columns<const N: usize>(limits: [&str; N], has_prices: bool) -> [[String; 4]; N] {
        let path = tempfile::NamedTempFile::new().unwrap();
        let usage = UsageWindow {
            entity: "u".parse().unwrap(),
            resource: "r".parse().unwrap(),
            window: WindowKind::Hour.containing(EpochMillis::new(0).unwrap()),
            consumed_milli: [].into(),
            events: 1,
            expires_at_s: None,
        };
        let mut focus = Focus::new(Box::new(path.reopen().unwrap()), has_prices).unwrap();
        for limit in limits {
            let limit = LimitName::new(limit).unwrap();
            focus.write(&Row::new(&usage, &limit, 1_500_000_000, None)).unwrap();
        }
        Box::new(focus).finish().unwrap();
        let written = std::fs::read_to_string(path.path()).unwrap();
        let rows = written.lines().skip(1).map(|row| {
            let row: Vec<&str> = row.split(',').collect();
            assert_eq!(row.len(), HEADER.split(',').count());
            [row[0], row[5], row[6], row[7]].map(str::to_owned)
        });
        rows.collect::<Vec<_>>().try_into().unwrap()
    }

    #[test]
    fn money_is_a_cost_unless_a_price_list_says_the_costs() {
        let tokens = ["", "1500000", "tpm", ""];
        assert_eq!(columns(["tpm", "usd"], false), [tokens, ["USD", "", "", "1.5"]]);
        assert_eq!(columns(["tpm", "usd"], true), [tokens, [""; 4]]);
    }

    /// A budget of the month and one of the day count the same dollars.
    #[test]
    fn money_of_two_limits_of_a_window_is_one_cost() {
        let found = columns(["eur", "usd", "usd.day"], false);
        let cost = |currency| [currency, "", "", "1.5"];
        assert_eq!(found, [cost("EUR"), cost("USD"), [""; 4]]);
    }
}
