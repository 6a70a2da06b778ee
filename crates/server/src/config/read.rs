//! Reads a configuration, and finds every mistake with its line.

use std::collections::HashMap;
use std::fmt;

use jsonschema::error::ValidationErrorKind;
use saphyr::{LoadableYamlNode as _, MarkedYaml, Scalar, YamlData};
use serde_json::{Map, Number, Value};

use super::check::mistakes;
use super::pointer::{escaped, shown};
use super::schema::schema;
use super::settings::Config;

/// A mistake in a configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    /// The line, from 1.
    pub line: usize,
    /// The setting, like `callers[1].sha256`; empty: the file as a whole.
    pub path: String,
    /// The mistake.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, path, message } = self;
        let colon = if path.is_empty() { "" } else { ": " };
        write!(f, "{line}: {path}{colon}{message}")
    }
}

impl Config {
    /// Reads a configuration in YAML.
    ///
    /// # Errors
    /// Every mistake, by line. Keys of permits and certificates are read at the start of a server.
    pub fn parse(text: &str) -> Result<Self, Vec<Mistake>> {
        let documents = MarkedYaml::load_from_str(text).map_err(|error| {
            let (line, message) = (error.marker().line(), error.info().to_owned());
            vec![Mistake { line, path: String::new(), message }]
        })?;
        let mut lines = Lines::default();
        let value = match documents.first() {
            Some(document) => lines.value(document, ""),
            None => Value::Object(Map::new()),
        };
        // An empty file is a null.
        let value = if value.is_null() { Value::Object(Map::new()) } else { value };
        let validator = jsonschema::validator_for(&schema())
            .map_err(|error| vec![lines.mistake("", error.to_string())])?;
        let mut found: Vec<Mistake> = std::mem::take(&mut lines.mistakes);
        for error in validator.iter_errors(&value) {
            let at = error.instance_path().as_str();
            match error.kind() {
                ValidationErrorKind::AdditionalProperties { unexpected } => {
                    for key in unexpected {
                        let message = format!("there is no setting {key:?} here");
                        found.push(lines.mistake(&format!("{at}/{key}"), message));
                    }
                }
                _ => found.push(lines.mistake(at, error.to_string())),
            }
        }
        if found.is_empty() {
            match serde_path_to_error::deserialize::<_, Self>(value) {
                Ok(config) => {
                    for (at, message) in mistakes(&config) {
                        found.push(lines.mistake(&at, message));
                    }
                    if found.is_empty() {
                        return Ok(config);
                    }
                }
                Err(error) => {
                    let at = format!("/{}", error.path()).replace('.', "/");
                    found.push(lines.mistake(&at, error.into_inner().to_string()));
                }
            }
        }
        found.sort();
        found.dedup();
        Err(found)
    }
}

/// The line of each node of a document, by its JSON pointer.
#[derive(Default)]
struct Lines {
    lines: HashMap<String, usize>,
    mistakes: Vec<Mistake>,
}

impl Lines {
    /// The node at `at` as JSON. The lines of its children are noted.
    fn value(&mut self, node: &MarkedYaml<'_>, at: &str) -> Value {
        self.lines.entry(at.to_owned()).or_insert(node.span.start.line());
        match &node.data {
            YamlData::Value(scalar) => match scalar {
                Scalar::Null => Value::Null,
                Scalar::Boolean(value) => Value::Bool(*value),
                Scalar::Integer(value) => Value::from(*value),
                Scalar::FloatingPoint(value) => {
                    Number::from_f64(value.into_inner()).map_or(Value::Null, Value::Number)
                }
                Scalar::String(text) => Value::from(text.as_ref()),
            },
            YamlData::Sequence(nodes) => {
                let value = |(n, node)| self.value(node, &format!("{at}/{n}"));
                nodes.iter().enumerate().map(value).collect()
            }
            YamlData::Mapping(entries) => {
                let mut object = Map::new();
                for (key, value) in entries {
                    let YamlData::Value(Scalar::String(name)) = &key.data else {
                        let message = "a key must be a text: put it in quotes".to_owned();
                        let (line, path) = (key.span.start.line(), shown(at));
                        self.mistakes.push(Mistake { line, path, message });
                        continue;
                    };
                    let at = format!("{at}/{}", escaped(name));
                    self.lines.insert(at.clone(), key.span.start.line());
                    object.insert(name.to_string(), self.value(value, &at));
                }
                Value::Object(object)
            }
            YamlData::Tagged(_, node) => self.value(node, at),
            _ => Value::Null,
        }
    }

    fn mistake(&self, at: &str, message: String) -> Mistake {
        let mut known = at;
        // A setting that is missing has the line of the section that lacks it.
        let line = loop {
            match (self.lines.get(known), known.rsplit_once('/')) {
                (Some(line), _) => break *line,
                (None, Some((section, _))) => known = section,
                (None, None) => break 1,
            }
        };
        Mistake { line, path: shown(at), message }
    }
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
