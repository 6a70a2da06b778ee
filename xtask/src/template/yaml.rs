//! A CloudFormation template as JSON: short forms become long ones (`!Ref X` is `{"Ref": "X"}`).
//!
//! Everything else is plain JSON afterwards, so that a check is a path and a value. A value that
//! JSON cannot represent, or an unknown tag, is an error and never dropped.

use anyhow::{Context, Result, bail};
use saphyr::{LoadableYamlNode, Scalar, Tag, Yaml};
use serde_json::{Map, Value, json};

/// Parses the one document in `text`.
pub(super) fn parse(text: &str) -> Result<Value> {
    let documents = Yaml::load_from_str(text).context("not YAML")?;
    match documents.as_slice() {
        [document] => convert(document),
        other => bail!("expected one YAML document, found {}", other.len()),
    }
}

fn convert(node: &Yaml<'_>) -> Result<Value> {
    match node {
        Yaml::Value(scalar) => scalar_value(scalar),
        Yaml::Sequence(items) => items.iter().map(convert).collect(),
        Yaml::Mapping(mapping) => {
            let mut object = Map::new();
            for (key, value) in mapping {
                let key = key.as_str().context("a key that is not a string")?;
                object.insert(key.to_owned(), convert(value).with_context(|| format!("in {key}"))?);
            }
            Ok(Value::Object(object))
        }
        Yaml::Tagged(tag, inner) => function(tag, convert(inner)?),
        Yaml::Representation(..) | Yaml::Alias(_) | Yaml::BadValue => {
            bail!("unsupported: {node:?}")
        }
    }
}

fn scalar_value(scalar: &Scalar<'_>) -> Result<Value> {
    Ok(match scalar {
        Scalar::Null => Value::Null,
        Scalar::Boolean(value) => json!(value),
        Scalar::Integer(value) => json!(value),
        Scalar::String(value) => json!(value),
        Scalar::FloatingPoint(value) => bail!("a fraction: {value}"),
    })
}

fn function(tag: &Tag, argument: Value) -> Result<Value> {
    let argument = match (tag.suffix.as_ref(), argument) {
        // The short form writes `Resource.Attribute` in one word.
        ("GetAtt", Value::String(text)) => {
            let (resource, attribute) = text.split_once('.').context("!GetAtt without a dot")?;
            json!([resource, attribute])
        }
        (_, argument) => argument,
    };
    match tag.suffix.as_ref() {
        name @ ("Ref" | "Condition") => Ok(json!({ name: argument })),
        name @ ("And" | "Equals" | "FindInMap" | "GetAtt" | "If" | "Join" | "Not" | "Or"
        | "Select" | "Split" | "Sub") => Ok(json!({ format!("Fn::{name}"): argument })),
        other => bail!("unknown tag !{other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_forms_become_long_ones() {
        let text = "a: !Ref T\nb: !GetAtt T.A.B\nc: !Sub x-${T}\nd: !If [C, !Ref T, [1]]\n";
        let expected = json!({
            "a": {"Ref": "T"},
            "b": {"Fn::GetAtt": ["T", "A.B"]},
            "c": {"Fn::Sub": "x-${T}"},
            "d": {"Fn::If": ["C", {"Ref": "T"}, [1]]},
        });
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn text_that_looks_like_a_number_stays_text() {
        assert_eq!(
            parse("a: \"1\"\nb: -1\nc: true\nd: !!str 2").unwrap(),
            json!({"a": "1", "b": -1, "c": true, "d": "2"})
        );
    }

    #[test]
    fn unknown_syntax_is_an_error() {
        for text in ["a: !Unknown x", "a: 1.5", "a: 1\na: 2", "a: [", "1: a", "--- 1\n--- 2"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
