//! Builds the text of an expression, term by term.
//!
//! It is built for every write. Formatting would cost several times as much as the text itself.

/// `#n0`, the placeholder of a name.
#[derive(Clone, Copy)]
pub(super) struct Name(pub(super) usize);

/// `:v0`, the placeholder of a value.
#[derive(Clone, Copy)]
pub(super) struct Value(pub(super) usize);

impl Name {
    const KIND: &str = "#n";

    pub(super) fn to_placeholder(self) -> String {
        placeholder(Self::KIND, self.0)
    }
}

impl Value {
    const KIND: &str = ":v";

    pub(super) fn to_placeholder(self) -> String {
        placeholder(Self::KIND, self.0)
    }
}

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
        self.text(Name::KIND).index(name.0)
    }

    pub(super) fn value(&mut self, value: Value) -> &mut Self {
        self.text(Value::KIND).index(value.0)
    }

    fn index(&mut self, index: usize) -> &mut Self {
        self.text(itoa::Buffer::new().format(index))
    }
}

fn placeholder(kind: &str, index: usize) -> String {
    let mut text = String::with_capacity(8);
    text.push_str(kind);
    text.push_str(itoa::Buffer::new().format(index));
    text
}
