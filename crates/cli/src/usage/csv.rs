//! Usage windows as CSV (RFC 4180), a line for every limit of a window.

use sluicegate::types::UsageWindow;

const HEADER: &str = "entity,resource,window,start,limit,consumed_milli,events";

pub(super) fn lines(windows: &[UsageWindow]) -> String {
    let mut lines = vec![HEADER.to_owned()];
    for usage in windows {
        let (entity, resource) = (field(usage.entity.as_str()), field(usage.resource.as_str()));
        let (kind, start) = (usage.window.kind(), usage.window.start_text());
        for (limit, milli) in &usage.consumed_milli {
            let (limit, events) = (field(limit.as_str()), usage.events);
            lines.push(format!("{entity},{resource},{kind},{start},{limit},{milli},{events}"));
        }
    }
    lines.join("\r\n")
}

/// A name that a spreadsheet would take for a formula gets an apostrophe in front, which makes it
/// text there.
fn field(text: &str) -> String {
    if text.starts_with(['=', '+', '-', '@']) { quoted(&format!("'{text}")) } else { quoted(text) }
}

/// Names have no control characters, but may have commas and quotes.
pub(super) fn quoted(text: &str) -> String {
    if text.contains(['"', ',']) || text.starts_with(' ') || text.ends_with(' ') {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_commas_and_quotes_are_quoted() {
        let cases =
            [("a", "a"), ("a,b", "\"a,b\""), ("a \"b\"", "\"a \"\"b\"\"\""), (" a", "\" a\"")];
        for (text, expected) in cases {
            assert_eq!(field(text), expected);
        }
    }

    #[test]
    fn no_name_is_a_formula() {
        for (text, expected) in [
            ("=1+2", "'=1+2"),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("=cmd|\"x\",1", "\"'=cmd|\"\"x\"\",1\""),
            ("a=1", "a=1"),
        ] {
            assert_eq!(field(text), expected);
        }
    }
}
