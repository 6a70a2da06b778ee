//! Names that arrive from outside: limits, entities, resources, keys of corrections.
//!
//! They are checked once, here, so that every key built from them fits DynamoDB's limits and parses
//! back to what it was built from. Short names (up to 23 bytes) are stored inline, without a heap
//! allocation; cloning is cheap for all of them.

use smol_str::SmolStr;

/// Longest limit name, in characters (all of them ASCII).
const LIMIT_NAME_MAX: usize = 64;
/// Longest entity id, in bytes: an index sort key of 1,024 bytes then always has room for it.
const ENTITY_ID_MAX: usize = 256;
/// Longest resource, in bytes.
const RESOURCE_MAX: usize = 128;
/// Longest key of a correction, in bytes.
const CORRECTION_KEY_MAX: usize = 128;

/// A name that the schema cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name has no characters.
    #[error("{what} is empty: give at least one character")]
    Empty {
        /// The kind of name: "limit name", "entity id", "resource" or "correction key".
        what: &'static str,
    },
    /// The name has more bytes than its keys have room for.
    #[error("{what} has {len} bytes: at most {max} are allowed")]
    TooLong {
        /// The kind of name.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The most it may have.
        max: usize,
    },
    /// The name has a character that keys or attribute names cannot carry.
    #[error("{what} {name:?} has the character {character:?}: {allowed}")]
    Illegal {
        /// The kind of name.
        what: &'static str,
        /// The name as given, cut to 80 characters.
        name: String,
        /// The first character that is not allowed.
        character: char,
        /// The rule that the character breaks, as a phrase.
        allowed: &'static str,
    },
}

fn check(
    what: &'static str,
    name: &str,
    max: usize,
    allowed: &'static str,
    is_allowed: impl Fn(char) -> bool,
) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { what });
    }
    if name.len() > max {
        return Err(NameError::TooLong { what, len: name.len(), max });
    }
    // Most names are ASCII, which need not be decoded.
    if name.bytes().all(|byte| byte.is_ascii() && is_allowed(char::from(byte))) {
        return Ok(());
    }
    match name.chars().find(|&c| !is_allowed(c)) {
        Some(character) => Err(NameError::Illegal {
            what,
            name: crate::excerpt::excerpt(name),
            character,
            allowed,
        }),
        None => Ok(()),
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal, $max:ident, $allowed:literal, $is_allowed:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(SmolStr);

        impl $type {
            /// Checks and takes the name.
            ///
            /// # Errors
            /// [`NameError`] when it is empty, too long, or has a character that is not allowed.
            pub fn new(name: impl AsRef<str>) -> Result<Self, NameError> {
                Self::check(name.as_ref())?;
                Ok(Self(SmolStr::new(name)))
            }

            fn check(name: &str) -> Result<(), NameError> {
                check($what, name, $max, $allowed, $is_allowed)
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        /// Checks and takes the name without a copy.
        impl TryFrom<SmolStr> for $type {
            type Error = NameError;
            fn try_from(name: SmolStr) -> Result<Self, NameError> {
                Self::check(&name)?;
                Ok(Self(name))
            }
        }

        impl std::str::FromStr for $type {
            type Err = NameError;
            fn from_str(name: &str) -> Result<Self, NameError> {
                Self::new(name)
            }
        }
    };
}

name!(
    /// Name of one limit, like `rpm` or `tpm.v2`: 1-64 characters of letters, digits, `_`, `-`,
    /// `.`.
    LimitName, "limit name", LIMIT_NAME_MAX, "use ASCII letters, digits, '_', '-' and '.'",
    |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
);

name!(
    /// The name of an entity that is limited: a user, an API key, a project. 1-256 bytes of UTF-8,
    /// no `#`, no control characters.
    EntityId, "entity id", ENTITY_ID_MAX, "'#' and control characters are reserved",
    |c| c != '#' && !c.is_control()
);

name!(
    /// The name of a resource that is limited: a model, an API. 1-128 bytes of UTF-8, no `#`, no
    /// control characters.
    Resource, "resource", RESOURCE_MAX, "'#' and control characters are reserved",
    |c| c != '#' && !c.is_control()
);

name!(
    /// The key of a correction that is made once. 1-128 bytes of UTF-8, no `#`, no control
    /// characters.
    CorrectionKey, "correction key", CORRECTION_KEY_MAX, "'#' and control characters are reserved",
    |c| c != '#' && !c.is_control()
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_names_allow_what_expressions_could_not_spell() {
        for name in ["rpm", "rpm.v2", "req-min", "ttl", "window", "b_x_tc", "_", "7"] {
            assert_eq!(LimitName::new(name).unwrap().as_str(), name);
        }
        for name in ["", "a b", "a#b", "naïve", &"x".repeat(65)] {
            assert!(LimitName::new(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn entity_ids_are_measured_in_bytes() {
        assert!(EntityId::new("é".repeat(128)).is_ok());
        let error = EntityId::new("é".repeat(129)).unwrap_err();
        assert_eq!(error, NameError::TooLong { what: "entity id", len: 258, max: 256 });
        assert!(EntityId::new("a#b").is_err());
        assert!(Resource::new("a\u{7}b").is_err());
        assert!(Resource::new("models/gpt 4 (eu)").is_ok());
    }
}
