//! A file in YAML as JSON, with the line of each setting.

use std::collections::HashMap;

use saphyr::{LoadableYamlNode as _, MarkedYaml, Scalar, YamlData};
use saphyr_parser::{Event, Parser};
use serde_json::{Map, Number, Value};

use super::mistake::Mistake;
use super::pointer::{escaped, shown};

/// Configurations have six levels. The loader calls itself for each level, so an unbounded file
/// would overflow the stack.
const DEPTH_MAX: usize = 64;

/// The line of each node of a document, by its JSON pointer.
#[derive(Default)]
pub(super) struct Lines {
    lines: HashMap<String, usize>,
    /// The sections with a key that is no text.
    odd_keys: Vec<(String, usize)>,
}

impl Lines {
    /// The only document of a text as JSON, and the lines of its nodes.
    ///
    /// # Errors
    /// A text that is no YAML, is nested too deeply, or has a second document.
    pub(super) fn read(text: &str) -> Result<(Self, Value), Mistake> {
        check_size(text)?;
        let documents = MarkedYaml::load_from_str(text)
            .map_err(|error| Mistake::of_file(error.marker().line(), error.info()))?;
        if let Some(second) = documents.get(1) {
            let message = "a second document begins here: a configuration is one document";
            return Err(Mistake::of_file(second.span.start.line(), message));
        }
        let mut lines = Self::default();
        let value = documents.first().map(|document| lines.value(document, ""));
        // An empty file is a null.
        let value = value.filter(|value| !value.is_null());
        Ok((lines, value.unwrap_or_else(|| Value::Object(Map::new()))))
    }

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
                        self.odd_keys.push((at.to_owned(), key.span.start.line()));
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

    /// The keys that are no texts: the sections that have them, and their mistakes.
    pub(super) fn odd_keys(&self) -> Vec<(String, Mistake)> {
        let mistake = |(at, line): &(String, usize)| {
            let message = "a key must be a text: put it in quotes".to_owned();
            (at.clone(), Mistake { line: *line, path: shown(at), message })
        };
        self.odd_keys.iter().map(mistake).collect()
    }

    /// A mistake in the setting at a JSON pointer.
    pub(super) fn mistake(&self, at: &str, message: String) -> Mistake {
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

/// The loader copies a node for each of its aliases, so aliases inside of copied nodes would multiply.
fn check_size(text: &str) -> Result<(), Mistake> {
    // For each open node: true if it has an anchor.
    let mut open = Vec::new();
    // The loader reports texts that are no YAML.
    for (event, span) in Parser::new_from_str(text).map_while(Result::ok) {
        match event {
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                open.push(anchor != 0);
            }
            Event::SequenceEnd | Event::MappingEnd => drop(open.pop()),
            Event::Alias(_) if open.contains(&true) => {
                let message = "an alias inside of a node with an anchor: write it out";
                return Err(Mistake::of_file(span.start.line(), message));
            }
            _ => {}
        }
        if open.len() > DEPTH_MAX {
            let message = format!("more than {DEPTH_MAX} levels are nested");
            return Err(Mistake::of_file(span.start.line(), message));
        }
    }
    Ok(())
}
