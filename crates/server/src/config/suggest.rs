//! Suggests a setting for a key that is none.

use serde_json::Value;

/// The setting of the section at the JSON pointer `section` that `key` probably means.
pub(super) fn suggestion<'a>(schema: &'a Value, section: &str, key: &str) -> Option<&'a str> {
    let names = section_of(schema, section)?.get("properties")?.as_object()?.keys();
    let near = names.map(|name| (strsim::osa_distance(name, key), name.as_str()));
    let typos_max = 1 + key.len() / 4;
    near.filter(|(typos, _)| *typos <= typos_max).min().map(|(_, name)| name)
}

/// The schema of a section. An index stands for any item of its list.
fn section_of<'a>(schema: &'a Value, section: &str) -> Option<&'a Value> {
    section.split('/').skip(1).try_fold(schema, |at, part| {
        let part = at.get("items").or_else(|| at.get("properties")?.get(part))?;
        match part.get("$ref").and_then(Value::as_str) {
            Some(reference) => schema.pointer(reference.strip_prefix('#')?),
            None => Some(part),
        }
    })
}
