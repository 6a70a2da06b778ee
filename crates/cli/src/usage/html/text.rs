//! Texts and numbers as a page shows them.

use crate::output::visible;

/// A number with a comma between thousands.
pub(super) fn grouped(number: &str) -> String {
    let (sign, digits) = number.split_at(usize::from(number.starts_with('-')));
    let (whole, decimals) = digits.split_once('.').map_or((digits, ""), |(w, d)| (w, d));
    let mut grouped = String::new();
    for (n, digit) in whole.chars().enumerate() {
        if n > 0 && (whole.len() - n).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let point = if decimals.is_empty() { "" } else { "." };
    format!("{sign}{grouped}{point}{decimals}")
}

/// A text escaped for HTML.
pub(super) fn escaped(text: &str) -> String {
    visible(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// The name of a part of a bar for readers.
pub(super) fn part_name(part: &str) -> &str {
    part.trim_start_matches('#')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_told_apart() {
        let cases = [("0", "0"), ("999", "999"), ("1000", "1,000"), ("-1234567.5", "-1,234,567.5")];
        for (number, expected) in cases {
            assert_eq!(grouped(number), expected);
        }
    }

    #[test]
    fn names_cannot_be_markup() {
        assert_eq!(escaped("<b a=\"x\">&"), "&lt;b a=&quot;x&quot;&gt;&amp;");
    }
}
