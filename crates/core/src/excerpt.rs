//! Quotations in error messages.

/// The first 80 characters of a text from outside: it may have any length.
pub(crate) fn excerpt(text: &str) -> String {
    text.chars().take(80).collect()
}
