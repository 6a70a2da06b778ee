//! Reads the records of a file, one at a time. A file holds any number of JSON values: events,
//! records, or both, one per line or spread over many.

use std::cell::RefCell;
use std::io::{self, BufRead};
use std::rc::Rc;

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde_json::value::RawValue;

use super::tape::{Place, Tape, Taped};

/// The reason why a file is invalid.
#[derive(Debug)]
pub(super) enum Wrong {
    At(Place, String),
    Empty,
    /// It cannot be read.
    Io(io::Error),
    /// A record cannot be kept.
    Spool(io::Error),
}

const EXPECTED: &str =
    "expected a DynamoDB stream event ({\"Records\": [...]}) or one of its records";

/// Passes every record in `text` to `keep`, in order.
pub(super) fn records(
    mut text: impl BufRead,
    keep: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<(), Wrong> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    if text.fill_buf().map_err(Wrong::Io)?.starts_with(BYTE_ORDER_MARK) {
        text.consume(BYTE_ORDER_MARK.len());
    }
    let tape = Rc::new(RefCell::new(Tape::default()));
    let mut json = serde_json::Deserializer::from_reader(Taped { text, tape: Rc::clone(&tape) });
    let mut is_empty = true;
    // The end, or the first character of another value, which is on the tape already.
    while json.end().is_err() {
        is_empty = false;
        let mut refusal = None;
        let value = Value { tape: &tape, keep, refusal: &mut refusal };
        tape.borrow_mut().start();
        match value.deserialize(&mut json) {
            Ok(()) => {}
            Err(error) => return Err(refusal.unwrap_or_else(|| not_json(error, &tape.borrow()))),
        }
    }
    if is_empty { Err(Wrong::Empty) } else { Ok(()) }
}

fn not_json(error: serde_json::Error, tape: &Tape) -> Wrong {
    if error.is_io() {
        return Wrong::Io(error.into());
    }
    let place = Place { line: error.line().max(1), column: error.column().max(1) };
    if error.is_data() {
        // It is JSON, but not an object.
        return Wrong::At(tape.started, format!("not an event: {EXPECTED}"));
    }
    // The position is reported in this program's form.
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or_default();
    Wrong::At(place, format!("not JSON: {message}"))
}

/// One value of a file: an event or a record.
struct Value<'a> {
    tape: &'a RefCell<Tape>,
    keep: &'a mut dyn FnMut(&str) -> io::Result<()>,
    refusal: &'a mut Option<Wrong>,
}

impl Value<'_> {
    fn keep<E: serde::de::Error>(&mut self, record: &str) -> Result<(), E> {
        (self.keep)(record).map_err(|error| self.refuse(Wrong::Spool(error)))
    }

    fn refuse<E: serde::de::Error>(&mut self, wrong: Wrong) -> E {
        *self.refusal = Some(wrong);
        E::custom("refused")
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an event or a record")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.tape.borrow_mut().stop();
        // Input that is not JSON is reported as that.
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Err(A::Error::invalid_type(Unexpected::Seq, &self))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<(), A::Error> {
        let (mut is_event, mut has_change) = (false, None);
        while let Some(name) = members.next_key::<String>()? {
            match name.as_str() {
                "Records" => {
                    is_event = true;
                    self.tape.borrow_mut().stop();
                    members.next_value_seed(Records(&mut self))?;
                }
                "dynamodb" if !is_event => {
                    has_change =
                        Some(members.next_value::<Box<RawValue>>()?.get().starts_with('{'));
                }
                _ => {
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
        let started = self.tape.borrow().started;
        match has_change {
            _ if is_event => Ok(()),
            Some(true) => {
                let record = std::mem::take(&mut self.tape.borrow_mut().bytes);
                let record = String::from_utf8(record).map_err(A::Error::custom)?;
                self.keep(&record)
            }
            Some(false) => Err(self.refuse(Wrong::At(started, NOT_A_RECORD.to_owned()))),
            None => Err(self.refuse(Wrong::At(started, format!("not an event: {EXPECTED}")))),
        }
    }
}

/// The list of an event.
struct Records<'a, 'b>(&'a mut Value<'b>);

impl<'de> DeserializeSeed<'de> for Records<'_, '_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Records<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of records")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        loop {
            self.0.tape.borrow_mut().record = None;
            let Some(record) = list.next_element::<Box<RawValue>>()? else { return Ok(()) };
            if !is_record(record.get()) {
                let place = self.0.tape.borrow().record.unwrap_or_default();
                return Err(self.0.refuse(Wrong::At(place, NOT_A_RECORD.to_owned())));
            }
            self.0.keep(record.get())?;
        }
    }
}

const NOT_A_RECORD: &str = "not a DynamoDB stream record: it has no \"dynamodb\" object";

/// A record of another source (S3, SQS, ...) is bad input. A broken DynamoDB record is not: it goes
/// to quarantine as it would in the Lambda.
fn is_record(record: &str) -> bool {
    #[derive(Deserialize)]
    struct Shape<'a> {
        #[serde(borrow)]
        dynamodb: Option<&'a RawValue>,
    }
    let shape = serde_json::from_str::<Shape<'_>>(record);
    shape.ok().and_then(|shape| shape.dynamodb).is_some_and(|of| of.get().starts_with('{'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"eventName":"INSERT","dynamodb":{"SequenceNumber":"1"}}"#;

    fn found(text: &str) -> Result<Vec<String>, (Place, String)> {
        let mut found = Vec::new();
        let mut keep = |record: &str| {
            found.push(record.to_owned());
            Ok(())
        };
        match records(text.as_bytes(), &mut keep) {
            Ok(()) => Ok(found),
            Err(Wrong::At(place, why)) => Err((place, why)),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn place(line: usize, column: usize) -> Place {
        Place { line, column }
    }

    #[test]
    fn events_records_and_lines_are_all_read_as_they_stand() {
        let all = |n| Ok(vec![RECORD.to_owned(); n]);
        assert_eq!(found(&format!("{{\"Records\":[{RECORD},\n{RECORD}]}}")), all(2));
        assert_eq!(found(&format!("{RECORD}\n{RECORD}\n\n{RECORD}")), all(3));
        assert_eq!(
            found(&format!("\u{feff} {RECORD}{RECORD}\n{{\"Records\":[{RECORD}]}}\n")),
            all(3)
        );
        assert_eq!(
            found(&format!("{{\"x\":[{{}}],\"Records\":[{RECORD}],\"y\":1}} {RECORD}")),
            all(2)
        );
        assert_eq!(found("{\"Records\": []}"), all(0));
        let spaced = "{ \"dynamodb\" : {\n} , \"x\":[1, \"\u{e9}\\\"\"] }";
        assert_eq!(found(&format!("  {spaced}\n{spaced}")), Ok(vec![spaced.to_owned(); 2]));
    }

    #[test]
    fn errors_name_their_position() {
        let cut = format!("{RECORD}\n{{\"Records\": [");
        let (at, why) = found(&cut).unwrap_err();
        assert_eq!((at.line, why.as_str()), (2, "not JSON: EOF while parsing a list"));
        for text in ["[1]", "{}", "\"x\"", "{\"Records\": {}}", "{\"records\": []}", "7 "] {
            assert_eq!(found(text).unwrap_err().0, place(1, 1), "{text}");
        }
        assert_eq!(found(&format!("{RECORD}\n  {{}}")).unwrap_err().0, place(2, 3));
        for other in ["{\"s3\":{}}", "{\n\n}", "12", "\"x\"", "null"] {
            let other = format!("{{\"Records\":[{RECORD},\n {other}]}}");
            let (at, why) = found(&other).unwrap_err();
            assert_eq!(at, place(2, 2), "{other}");
            assert!(why.contains("\"dynamodb\""), "{why}");
        }
        assert!(found("{\"dynamodb\":7}").unwrap_err().1.contains("\"dynamodb\" object"));
        assert!(matches!(records(&b" \n"[..], &mut |_| Ok(())), Err(Wrong::Empty)));
        assert!(matches!(
            records(&b"{\"dynamodb\":{\"\xff\":1}}"[..], &mut |_| Ok(())),
            Err(Wrong::At(..))
        ));
    }

    #[test]
    fn a_broken_record_of_the_right_source_is_no_bad_input() {
        assert_eq!(found(r#"{"dynamodb":{"Keys":7}}"#).map(|found| found.len()), Ok(1));
    }
}
