//! Usage windows as CSV (RFC 4180), a line for every limit of a window.

use sluicegate::UsageWindow;

const HEADER: &str = "entity,resource,window,start,limit,consumed_milli,events";

pub(super) fn lines(windows: &[UsageWindow]) -> String {
    let mut lines = vec![HEADER.to_owned()];
    for usage in windows {
        let (entity, resource) = (field(usage.entity.as_str()), field(usage.resource.as_str()));
        let (kind, start) = (usage.window.kind(), usage.window.start_text());
        for (limit, milli) in &usage.consumed_milli {
            let events = usage.events;
            lines.push(format!("{entity},{resource},{kind},{start},{limit},{milli},{events}"));
        }
    }
    lines.join("\r\n")
}

/// Names have no control characters, but may have commas and quotes.
fn field(text: &str) -> String {
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
}
