//! Amounts of limits in the configuration.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::Number;

/// An amount of a limit, as the file has it: tokens, or money in the currency's unit.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Amount(Number);

impl Amount {
    /// The amount in decimals, without an exponent.
    pub(crate) fn text(&self) -> String {
        let Self(number) = self;
        match (number.as_u64(), number.as_f64()) {
            (None, Some(number)) => number.to_string(),
            _ => number.to_string(),
        }
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "number", "minimum": 0, "maximum": 1_000_000_000_000_000_u64})
    }
}
