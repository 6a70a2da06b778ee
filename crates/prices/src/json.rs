//! JSON of price lists in both formats: an object as its entries, and a number as a price.
//!
//! Both stay text until they are read exactly. A map would silently keep the last of two entries
//! with one name.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::{Price, PriceError};

/// The entries of an object.
pub(crate) struct Entries<'a>(pub(crate) Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with an entry for each model")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(EntriesVisitor)
    }
}

/// The price in a field of a model's entry, times 10^`exponent`.
pub(crate) fn price(
    model: &str,
    field: &'static str,
    json: &RawValue,
    exponent: i32,
) -> Result<Price, PriceError> {
    Price::of_json(json, exponent).ok_or_else(|| PriceError::InvalidPrice {
        model: model.to_owned(),
        field,
        text: json.get().chars().take(80).collect(),
    })
}
