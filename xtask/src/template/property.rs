//! One property of the template.

/// One property of the template.
pub(super) struct Property {
    pub(super) pointer: &'static str,
    pub(super) expected: Expected,
    pub(super) reason: &'static str,
}

pub(super) enum Expected {
    /// This JSON.
    Is(&'static str),
    /// A string that holds this JSON.
    Holds(&'static str),
    /// No value.
    Absent,
}

pub(super) const fn is(
    pointer: &'static str,
    json: &'static str,
    reason: &'static str,
) -> Property {
    Property { pointer, expected: Expected::Is(json), reason }
}

pub(super) const fn holds(
    pointer: &'static str,
    json: &'static str,
    reason: &'static str,
) -> Property {
    Property { pointer, expected: Expected::Holds(json), reason }
}

pub(super) const fn absent(pointer: &'static str, reason: &'static str) -> Property {
    Property { pointer, expected: Expected::Absent, reason }
}
