//! Producers of the older layout, as far as the table's schema version item names them.

use serde::Serialize;
use sluicegate::dynamo::SchemaVersion;

/// The first version of the other producer that writes composite buckets. Its schema number does
/// not tell: with this version it went from 1.0.0 back to 0.7.0.
const FIRST_COMPOSITE: [u64; 3] = [0, 7, 0];

/// The record of another producer of the table.
#[derive(Debug, Serialize)]
pub(super) struct OlderProducers {
    /// The layout that it claims to write; `None`: there is no other producer, or it claims none.
    schema_version: Option<String>,
    /// The oldest version that may start.
    client_min_version: Option<String>,
    /// True if a producer of the older layout may start, as far as the table says.
    may_start: bool,
}

impl OlderProducers {
    pub(super) fn of(version: SchemaVersion) -> Self {
        let SchemaVersion { other_schema, other_client_min, .. } = version;
        let is_kept_out =
            other_client_min.as_deref().and_then(parsed).is_some_and(|min| min >= FIRST_COMPOSITE);
        let is_there = other_schema.is_some() || other_client_min.is_some();
        Self {
            schema_version: other_schema,
            client_min_version: other_client_min,
            may_start: is_there && !is_kept_out,
        }
    }

    /// Advice about them, if there is any.
    pub(super) fn advice(&self, table: &str) -> Option<String> {
        if !self.may_start {
            return None;
        }
        let said = |version: &Option<String>| version.clone().unwrap_or_else(|| "none".to_owned());
        let first = FIRST_COMPOSITE.map(|part| part.to_string()).join(".");
        Some(format!(
            "another producer keeps this table (schema_version {}, client_min_version {}): stop every one older than {first} and take its credentials away, because its writes after the conversion limit no request and are not counted (an upgraded one does not convert: start it when all is done); then record this with `aws dynamodb update-item --table-name {table} --key '{{\"PK\":{{\"S\":\"SYSTEM#\"}},\"SK\":{{\"S\":\"#VERSION\"}}}}' --update-expression 'SET client_min_version = :v' --expression-attribute-values '{{\":v\":{{\"S\":\"{first}\"}}}}'`, which some versions ignore",
            said(&self.schema_version),
            said(&self.client_min_version),
        ))
    }
}

/// Major, minor and patch of a version, without any suffix.
fn parsed(version: &str) -> Option<[u64; 3]> {
    let mut parts = version.split(['.', '-', '+']);
    let mut next = || parts.next()?.parse().ok();
    Some([next()?, next()?, next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_may_start_are_warned_of() {
        let of = |schema: Option<&str>, min: Option<&str>| {
            OlderProducers::of(SchemaVersion {
                schema: None,
                other_schema: schema.map(str::to_owned),
                other_client_min: min.map(str::to_owned),
            })
        };
        for (schema, min, may_start) in [
            (None, None, false),
            (Some("1.0.0"), Some("0.0.0"), true),
            (Some("1.0.0"), None, true),
            (Some("0.8.0"), Some("0.6.1"), true),
            (Some("0.8.0"), Some("0.7.0"), false),
            (Some("0.8.0"), Some("0.10.0-rc.1"), false),
            (Some("1.0.0"), Some("soon"), true),
        ] {
            let older = of(schema, min);
            assert_eq!(older.may_start, may_start, "{schema:?} {min:?}");
            assert_eq!(older.advice("limits").is_some(), may_start);
        }
        let advice = of(Some("1.0.0"), Some("0.0.0")).advice("limits").unwrap();
        assert!(advice.contains("older than 0.7.0") && advice.contains("--table-name limits"));
    }
}
