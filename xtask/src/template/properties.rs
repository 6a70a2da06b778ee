//! Compares a template with [`expectations`].
//!
//! A property is a JSON pointer, the expected value, and the reason. The tests break every
//! expectation once, so no check can pass by accident.
//!
//! [`expectations`]: super::expectations

use serde_json::Value;

use super::expectations::PROPERTIES;
use super::property::{Expected, Property};

/// The number of properties that are asserted.
pub(super) fn count() -> usize {
    PROPERTIES.iter().map(|group| group.len()).sum()
}

/// One sentence for every property that `template` lacks.
pub(super) fn violations(template: &Value) -> Vec<String> {
    PROPERTIES
        .iter()
        .copied()
        .flatten()
        .filter_map(|property| violation(property, template))
        .collect()
}

fn violation(property: &Property, template: &Value) -> Option<String> {
    let found = template.pointer(property.pointer);
    let (holds, wanted) = match property.expected {
        Expected::Is(json) => (found.is_some() && found == parse(json).as_ref(), json),
        Expected::Holds(json) => {
            let inner = found.and_then(Value::as_str).and_then(parse);
            (inner.is_some() && inner == parse(json), json)
        }
        Expected::Absent => (found.is_none(), "absent"),
    };
    if holds {
        return None;
    }
    let found = found.map_or_else(|| "nothing".to_owned(), Value::to_string);
    Some(format!("{} must be {wanted}, found {found} ({})", property.pointer, property.reason))
}

fn parse(json: &str) -> Option<Value> {
    serde_json::from_str(json).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template() -> Value {
        super::super::yaml::parse(include_str!("../../../template.yaml")).unwrap()
    }

    fn all() -> impl Iterator<Item = &'static Property> {
        PROPERTIES.iter().copied().flatten()
    }

    /// The parent of the value at `pointer`, and the last step.
    fn parent<'t>(template: &'t mut Value, pointer: &'static str) -> (&'t mut Value, &'static str) {
        let (parent, last) = pointer.rsplit_once('/').unwrap();
        (template.pointer_mut(parent).unwrap_or_else(|| panic!("{parent}")), last)
    }

    fn set(template: &mut Value, pointer: &'static str, value: Value) {
        match parent(template, pointer) {
            (Value::Array(items), last) => {
                let index: usize = last.parse().unwrap();
                items.truncate(index);
                items.push(value);
            }
            (object, last) => object[last] = value,
        }
    }

    fn remove(template: &mut Value, pointer: &'static str) {
        let (parent, last) = parent(template, pointer);
        parent.as_object_mut().unwrap().remove(last).unwrap();
    }

    fn assert_only_violation(template: &Value, pointer: &str) {
        let found = violations(template);
        assert!(
            found.iter().any(|text| text.starts_with(&format!("{pointer} must be"))),
            "{pointer}: {found:?}"
        );
        // Only checks within the broken place may complain too.
        assert!(found.iter().all(|text| text.starts_with(pointer)), "{pointer}: {found:?}");
    }

    #[test]
    fn a_removed_property_is_named() {
        for property in all().filter(|property| !matches!(property.expected, Expected::Absent)) {
            let mut template = template();
            remove(&mut template, property.pointer);
            assert_only_violation(&template, property.pointer);
        }
    }

    #[test]
    fn a_changed_property_is_named() {
        for property in all() {
            for value in [json!("changed"), json!(null), json!({}), json!(0), json!("{}")] {
                let mut template = template();
                set(&mut template, property.pointer, value);
                assert_only_violation(&template, property.pointer);
            }
        }
    }

    #[test]
    fn an_added_permission_is_named() {
        let mut template = template();
        let statements = "/Resources/ProcessorRole/Properties/Policies/0/PolicyDocument/Statement";
        let actions = template.pointer_mut(&format!("{statements}/0/Action")).unwrap();
        actions.as_array_mut().unwrap().push(json!("dynamodb:DeleteItem"));
        assert_only_violation(&template, statements);
    }

    #[test]
    fn expectations_are_json() {
        for property in all() {
            if let Expected::Is(json) | Expected::Holds(json) = property.expected {
                assert!(parse(json).is_some(), "{json}");
            }
        }
    }

    #[test]
    fn an_empty_template_violates_everything_that_must_be_there() {
        let missing = violations(&json!({}));
        let absent = all().filter(|property| matches!(property.expected, Expected::Absent)).count();
        assert_eq!(missing.len(), count() - absent);
    }
}
