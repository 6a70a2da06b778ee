//! Texts and numbers as a page shows them.

use crate::output::visible;

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
    fn names_cannot_be_markup() {
        assert_eq!(escaped("<b a=\"x\">&"), "&lt;b a=&quot;x&quot;&gt;&amp;");
    }
}
