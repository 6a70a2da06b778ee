//! The JSON schema of the configuration, for editors and for the check of a file.

use schemars::schema_for;
use serde_json::Value;

use super::settings::Config;

/// The JSON schema of a configuration.
pub(super) fn schema() -> Value {
    let mut schema = schema_for!(Config).to_value();
    simplify(&mut schema);
    schema
}

impl Config {
    /// The JSON schema of a configuration, as text.
    #[must_use]
    pub fn schema() -> String {
        format!("{:#}\n", schema())
    }
}

/// A setting that may be absent is not null; values with descriptions are one list of values. So a
/// mistake is found where it is made, not in all alternatives.
fn simplify(schema: &mut Value) {
    if let Value::Object(object) = schema {
        if let Some(Value::Array(kinds)) = object.get_mut("type") {
            kinds.retain(|kind| kind != "null");
        }
        let is_null = |schema: &Value| schema["type"] == "null";
        if let Some(Value::Array(schemas)) = object.get_mut("anyOf") {
            schemas.retain(|schema| !is_null(schema));
            if let [one] = schemas.as_mut_slice() {
                let one = one.take();
                object.remove("anyOf");
                if let Value::Object(one) = one {
                    object.extend(one);
                }
            }
        }
        let values = |schemas: &Vec<Value>| -> Option<Vec<Value>> {
            schemas.iter().map(|schema| schema.get("const").cloned()).collect()
        };
        let values = object.get("oneOf").and_then(Value::as_array).and_then(values);
        if let Some(values) = values {
            object.remove("oneOf");
            object.insert("enum".to_owned(), values.into());
        }
        object.values_mut().for_each(simplify);
    } else if let Value::Array(schemas) = schema {
        schemas.iter_mut().for_each(simplify);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_for_editors_is_the_schema() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/sluicegate.schema.json");
        let schema = Config::schema();
        if std::env::var_os("INSTA_UPDATE").is_some_and(|value| value == "always") {
            std::fs::write(file, &schema).unwrap();
        }
        let written = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            written == schema,
            "write it again: INSTA_UPDATE=always cargo test -p sluicegate-server"
        );
    }
}
