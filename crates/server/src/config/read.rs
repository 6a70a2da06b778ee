//! Reads a configuration, and finds every mistake with its line.

use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind::{AdditionalProperties, Pattern};
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use super::check::mistakes;
use super::lines::Lines;
use super::mistake::Mistake;
use super::pointer::{escaped, unescaped};
use super::schema::schema;
use super::settings::Config;
use super::suggest::suggestion;

impl Config {
    /// Reads a configuration in YAML.
    ///
    /// # Errors
    /// Every mistake, by line. Keys of permits and certificates are read at the start of a server.
    pub fn parse(text: &str) -> Result<Self, Vec<Mistake>> {
        let (lines, mut value) = Lines::read(text).map_err(|mistake| vec![mistake])?;
        let schema = schema();
        let validator = jsonschema::validator_for(&schema)
            .map_err(|error| vec![Mistake::of_file(1, error.to_string())])?;
        let (mut wrong, mut found) = (Vec::new(), Vec::new());
        for (at, mistake) in lines.odd_keys() {
            found.push(mistake);
            wrong.push(section(&at));
        }
        for error in validator.iter_errors(&value) {
            let is_unknown = matches!(error.kind(), AdditionalProperties { .. });
            for (at, message) in messages(&error, &schema) {
                found.push(lines.mistake(&at, message));
                wrong.push(if is_unknown { at } else { section(&at) });
            }
        }
        // The rest of the file is checked without the settings that are wrong.
        for at in &wrong {
            leave_out(&mut value, at);
        }
        while value.is_object() {
            match serde_path_to_error::deserialize::<_, Self>(&value) {
                Ok(config) => {
                    let meant = mistakes(&config).into_iter();
                    found.extend(meant.map(|(at, message)| lines.mistake(&at, message)));
                    if found.is_empty() {
                        return Ok(config);
                    }
                    break;
                }
                Err(error) => {
                    let at = pointer(error.path());
                    found.push(lines.mistake(&at, error.inner().to_string()));
                    if !leave_out(&mut value, &section(&at)) {
                        break;
                    }
                }
            }
        }
        found.sort();
        found.dedup();
        Err(found)
    }
}

/// The sections in which a value of the wrong form may be a secret.
const SECRETS: [&str; 2] = ["/permits/keys", "/store/redis"];

/// The settings that an error of the schema is about, with a message for each.
fn messages(error: &ValidationError<'_>, schema: &Value) -> Vec<(String, String)> {
    let at = error.instance_path().as_str();
    match error.kind() {
        AdditionalProperties { unexpected } => {
            let message = |key: &String| {
                let meant = suggestion(schema, at, key)
                    .map_or_else(String::new, |meant| format!("; did you mean {meant:?}?"));
                let message = format!("there is no setting {key:?} here{meant}");
                (format!("{at}/{}", escaped(key)), message)
            };
            unexpected.iter().map(message).collect()
        }
        // The text is not shown: it may be the token itself.
        Pattern { .. } if at.ends_with("/sha256") => {
            let message =
                "not 64 hexadecimal digits; `printf %s \"$TOKEN\" | sha256sum` makes them";
            vec![(at.to_owned(), message.to_owned())]
        }
        // Without the value.
        _ if may_be_secret(at) => vec![(at.to_owned(), error.masked().to_string())],
        _ => vec![(at.to_owned(), error.to_string())],
    }
}

/// True if a value of the wrong form may be a key, a token or a password, or contain one.
fn may_be_secret(at: &str) -> bool {
    let is_caller = at.rsplit_once('/').is_some_and(|(parent, _)| parent == "/callers");
    at.ends_with("/sha256")
        || at == "/callers"
        || is_caller
        || SECRETS.iter().any(|secret| at.starts_with(secret) || secret.starts_with(at))
}

/// The section that has the setting at a JSON pointer. Every section may be absent.
fn section(at: &str) -> String {
    at.split('/').nth(1).map_or_else(String::new, |section| format!("/{section}"))
}

/// Removes the setting at a JSON pointer. False if it is not there.
fn leave_out(value: &mut Value, at: &str) -> bool {
    let Some((parent, key)) = at.rsplit_once('/') else { return false };
    let Some(settings) = value.pointer_mut(parent).and_then(Value::as_object_mut) else {
        return false;
    };
    // Without its callers, a good address would look like a bad one.
    if at == "/callers" {
        settings.remove("listen");
    }
    // Without the bounds, a good time would look too long.
    if at == "/bounds" {
        settings.remove("deadline_ms");
    }
    settings.remove(&unescaped(key)).is_some()
}

/// The JSON pointer of a setting.
fn pointer(path: &Path) -> String {
    let part = |segment: &Segment| match segment {
        Segment::Seq { index } => format!("/{index}"),
        Segment::Map { key } | Segment::Enum { variant: key } => format!("/{}", escaped(key)),
        Segment::Unknown => String::new(),
    };
    path.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(text: &str) -> String {
        let mistakes = Config::parse(text).err().unwrap_or_default();
        mistakes.iter().map(|mistake| format!("{mistake}\n")).collect()
    }

    #[test]
    fn every_mistake_has_its_line() {
        insta::assert_snapshot!(found(include_str!("broken.yaml")));
    }

    #[test]
    fn mistakes_in_what_the_settings_mean_have_their_lines_too() {
        insta::assert_snapshot!(found(include_str!("meaningless.yaml")));
    }

    #[test]
    fn a_file_that_is_no_yaml_has_one_mistake() {
        assert_eq!(found("listen:\n  address: [\n").lines().count(), 1);
        assert_eq!(found("a: 1\na: 2\n").lines().count(), 1);
    }

    #[test]
    fn a_second_document_and_a_deep_one_are_refused() {
        assert!(found("access_log: true\n---\nlimits: []\n").starts_with("3: a second document"));
        for level in ["- ", "[", "? "] {
            let deep = level.repeat(20_000);
            assert_eq!(found(&deep).lines().count(), 1, "{level:?}");
        }
        let limits = format!("limits: {}{}\n", "[".repeat(70), "]".repeat(70));
        assert_eq!(found(&limits), "1: more than 64 levels are nested\n");
    }

    #[test]
    fn an_alias_is_a_copy_but_not_in_another_one() {
        let callers = "callers:\n- {name: a, sha256: HASH, roles: &both [acquire, read]}\n";
        let callers = callers.replace("HASH", &"ab".repeat(32));
        let second = format!("- {{name: b, sha256: '{}', roles: *both}}\n", "12".repeat(32));
        assert_eq!(found(&format!("{callers}{second}")), "");
        assert!(found("a: &a [1]\nb: &b [*a]\n").starts_with("2: an alias inside"));
    }

    #[test]
    fn a_wrong_setting_hides_no_other_mistake() {
        let text =
            "limts: []\nlimits: [rpm]\nlisten: {address: nowhere}\npermits: {previous_key: K}\n";
        let found = found(text);
        let lines: Vec<_> = found.lines().map(|line| &line[..2]).collect();
        assert_eq!(lines, ["1:", "2:", "3:", "4:"], "{found}");
        assert!(found.starts_with(
            "1: limts: there is no setting \"limts\" here; did you mean \"limits\"?\n"
        ));
    }

    #[test]
    fn callers_that_are_wrong_do_not_make_the_address_wrong() {
        let text =
            "listen: {address: 0.0.0.0:80}\ncallers: [{name: a, sha256: secret, roles: [read]}]\n";
        let found = found(text);
        assert!(
            found.starts_with("2: callers[0].sha256: not 64") && found.lines().count() == 1,
            "{found}"
        );
        assert!(!found.contains("secret"), "it may be a token: {found}");
    }

    #[test]
    fn bounds_that_are_wrong_do_not_make_the_deadline_wrong() {
        let text = "deadline_ms: 30000\nbounds: {request_ms: 60000, connections: 0}\n";
        let found = found(text);
        assert!(
            found.starts_with("2: bounds.connections: ") && found.lines().count() == 1,
            "{found}"
        );
    }

    #[test]
    fn a_value_in_the_place_of_a_section_may_be_a_secret() {
        for text in [
            "secret",
            "permits: secret",
            "permits: {keys: [secret]}",
            "callers: [secret]",
            "store: redis://:secret@host",
            "store: {redis: secret}",
        ] {
            let found = found(text);
            assert!(!found.contains("secret"), "{text}: {found}");
        }
    }

    #[test]
    fn only_a_hash_is_told_to_be_a_hash() {
        let found = found("traces: {endpoint: 127.0.0.1}\n");
        assert!(
            found.starts_with("1: traces.endpoint: ") && !found.contains("hexadecimal"),
            "{found}"
        );
    }

    #[test]
    fn odd_keys_and_numbers_have_their_own_lines() {
        assert!(found("bounds:\n  connections: 5\n  a/b: 5\n").starts_with("3: bounds.a/b: "));
        let rule = "{match: {}, entity: e, resource: r, consume: {\n        a/b: 1}}";
        let text = format!("envoy:\n  domains:\n  - domain: d\n    rules: [{rule}]\n");
        assert!(found(&text).starts_with("5: envoy.domains[0].rules[0].consume.a/b: "));
        let rule = "{match: {}, entity: e, resource: r, consume: {\n        rpm: -5}}";
        let text = format!("envoy:\n  domains:\n  - domain: d\n    rules: [{rule}]\n");
        let found = found(&text);
        assert!(found.starts_with("5: envoy.domains[0].rules[0].consume.rpm: "), "{found}");
    }

    #[test]
    fn an_empty_file_is_a_configuration() {
        assert!(Config::parse("").is_ok());
        assert!(Config::parse("# nothing\n").is_ok());
    }

    #[test]
    fn the_example_is_good() {
        let example = include_str!("../../sluicegate.example.yaml");
        assert_eq!(found(example), "");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[a-z0-9:\\[\\]{}\\-\"', \n#&*!|>%]{0,120}") {
            let _ = Config::parse(&text);
        }

        #[test]
        fn no_change_of_the_example_makes_it_panic(at in 0..4_000_usize, with in ".{0,3}") {
            let example = include_str!("../../sluicegate.example.yaml");
            let at = at.min(example.len());
            if let (Some(before), Some(behind)) = (example.get(..at), example.get(at + 1..)) {
                let _ = Config::parse(&format!("{before}{with}{behind}"));
            }
        }
    }
}
