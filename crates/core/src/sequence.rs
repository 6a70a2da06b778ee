//! Positions in a stream: sequence numbers and the label of the stream they belong to.
//!
//! DynamoDB's sequence numbers have 21 to 40 digits, more than a DynamoDB number or a `u128`
//! holds. They are compared, and stored as watermarks, as digits padded with zeros to 40, so that
//! the order of the text is the order of the numbers.

use smol_str::SmolStr;

const WIDTH: usize = 40;

/// Text that is not a sequence number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a sequence number: 1 to 40 digits are expected")]
pub struct BadSequenceNumber {
    /// The text as given, cut to 80 characters.
    pub text: String,
}

/// The position of a record in its stream; orders as the number does.
#[derive(Clone, Copy)]
pub struct SequenceNumber {
    padded: [u8; WIDTH],
    digits: usize,
}

impl SequenceNumber {
    /// Reads 1 to 40 digits.
    ///
    /// # Errors
    /// [`BadSequenceNumber`] for anything else.
    pub fn parse(text: &str) -> Result<Self, BadSequenceNumber> {
        let digits = text.len();
        if !(1..=WIDTH).contains(&digits) || !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(BadSequenceNumber { text: crate::excerpt::excerpt(text) });
        }
        let mut padded = [b'0'; WIDTH];
        padded[WIDTH - digits..].copy_from_slice(text.as_bytes());
        Ok(Self { padded, digits })
    }

    /// All 40 digits, as stored in watermarks and keys.
    #[must_use]
    pub fn padded(&self) -> &str {
        // Only ASCII digits are ever stored, so the default is never taken.
        std::str::from_utf8(&self.padded).unwrap_or_default()
    }

    /// The digits as the stream spelled them, as `batchItemFailures` wants them back.
    #[must_use]
    pub fn as_sent(&self) -> &str {
        &self.padded()[WIDTH - self.digits..]
    }
}

impl PartialEq for SequenceNumber {
    fn eq(&self, other: &Self) -> bool {
        self.padded == other.padded
    }
}

impl Eq for SequenceNumber {}

impl std::hash::Hash for SequenceNumber {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.padded.hash(state);
    }
}

impl PartialOrd for SequenceNumber {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SequenceNumber {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.padded.cmp(&other.padded)
    }
}

impl std::fmt::Display for SequenceNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_sent())
    }
}

impl std::fmt::Debug for SequenceNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SequenceNumber({})", self.as_sent())
    }
}

/// The label of the stream that a record came from: the time in the stream's ARN, or `-` for a
/// record without an ARN. If a table's stream is switched off and on again, it has a new label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamLabel(SmolStr);

/// An ARN without a stream label. If its records were treated as records without an ARN, two
/// streams could share a watermark. Then the records of the stream with the lower numbers would be
/// dropped as duplicates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("eventSourceARN {arn:?} has no readable label behind /stream/")]
pub struct BadStreamArn {
    /// The ARN as given, cut to 80 characters.
    pub arn: String,
}

impl Default for StreamLabel {
    /// `-`, for a record without an ARN.
    fn default() -> Self {
        Self(SmolStr::new_static("-"))
    }
}

impl StreamLabel {
    /// The label in an ARN like `arn:aws:dynamodb:...:table/t/stream/2026-01-28T14:00:00.000`.
    ///
    /// # Errors
    /// [`BadStreamArn`] when there is an ARN but no label of 1 to 64 characters in it.
    pub fn from_arn(arn: Option<&str>) -> Result<Self, BadStreamArn> {
        let Some(arn) = arn else { return Ok(Self::default()) };
        match arn.split_once("/stream/") {
            Some((_, label)) if Self::is_valid(label) => Ok(Self(SmolStr::new(label))),
            _ => Err(BadStreamArn { arn: crate::excerpt::excerpt(arn) }),
        }
    }

    /// The label as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads a label back from a key; `None` when it could not have been built.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::is_valid(text).then(|| Self(SmolStr::new(text)))
    }

    fn is_valid(label: &str) -> bool {
        (1..=64).contains(&label.len()) && label.chars().all(|c| c != '#' && !c.is_control())
    }
}

impl std::fmt::Display for StreamLabel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_longer_number_is_larger() {
        let short = SequenceNumber::parse("999999999999999999999").unwrap();
        let long = SequenceNumber::parse("1000000000000000000000000000000000000000").unwrap();
        assert!(short < long);
        assert_eq!(short.padded(), "0000000000000000000999999999999999999999");
        assert_eq!(short.as_sent(), "999999999999999999999");
    }

    #[test]
    fn text_that_is_no_number_is_refused() {
        for text in ["", "12a", "-1", "1 ", "١", &"1".repeat(41)] {
            assert!(SequenceNumber::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn labels_come_from_the_arn() {
        let arn = "arn:aws:dynamodb:eu-west-1:1:table/t/stream/2026-01-28T14:00:00.000";
        assert_eq!(StreamLabel::from_arn(Some(arn)).unwrap().as_str(), "2026-01-28T14:00:00.000");
        assert_eq!(StreamLabel::from_arn(None).unwrap().as_str(), "-");
        for arn in ["", "arn:aws:dynamodb:x", "x/stream/", "x/stream/a#b"] {
            assert!(StreamLabel::from_arn(Some(arn)).is_err(), "{arn}");
        }
    }

    proptest! {
        #[test]
        fn order_is_that_of_the_numbers(a: u128, b: u128) {
            let parse = |n: u128| SequenceNumber::parse(&n.to_string()).unwrap();
            prop_assert_eq!(parse(a).cmp(&parse(b)), a.cmp(&b));
            prop_assert_eq!(parse(a).to_string(), a.to_string());
        }
    }
}
