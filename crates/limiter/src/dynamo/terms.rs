//! Builds the text of an expression, term by term.
//!
//! It is built for every write. Formatting would cost several times as much as the text itself.

/// A name of an attribute.
#[derive(Clone, Copy)]
pub(super) enum Name {
    Plain(&'static str),
    /// `#n0`.
    Placeholder(usize),
}

/// `:v0`, the placeholder of a value.
#[derive(Clone, Copy)]
pub(super) struct Value(pub(super) usize);

const OF_NAME: &str = "#n";
const OF_VALUE: &str = ":v";

/// Terms of one clause.
pub(super) struct Terms {
    pub(super) text: String,
    separator: &'static str,
}

impl Terms {
    pub(super) const fn separated_by(separator: &'static str) -> Self {
        Self { text: String::new(), separator }
    }

    /// Begins a term.
    pub(super) fn next(&mut self) -> &mut Self {
        if self.text.is_empty() {
            // Enough for two limits; growing in small steps costs more than the rest.
            self.text.reserve(256);
        } else {
            self.text.push_str(self.separator);
        }
        self
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.text.push_str(text);
        self
    }

    pub(super) fn name(&mut self, name: Name) -> &mut Self {
        match name {
            Name::Plain(name) => self.text(name),
            Name::Placeholder(index) => self.text(OF_NAME).index(index),
        }
    }

    pub(super) fn value(&mut self, value: Value) -> &mut Self {
        self.text(OF_VALUE).index(value.0)
    }

    fn index(&mut self, index: usize) -> &mut Self {
        self.text(itoa::Buffer::new().format(index))
    }
}

pub(super) fn name_placeholder(index: usize) -> String {
    placeholder(OF_NAME, index)
}

pub(super) fn value_placeholder(index: usize) -> String {
    placeholder(OF_VALUE, index)
}

fn placeholder(kind: &str, index: usize) -> String {
    let mut text = String::with_capacity(8);
    text.push_str(kind);
    text.push_str(itoa::Buffer::new().format(index));
    text
}
