//! Values of keys that have a text form.

use std::{fmt, fmt::Display, str::FromStr};

use millrace_server::ByteSize;
use serde::{Deserialize, Deserializer, de};

/// Parses a value from its text form.
pub(crate) fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(d: D) -> Result<T, D::Error> {
    String::deserialize(d)?.parse().map_err(de::Error::custom)
}

/// Parses a list of values from their text forms.
pub(crate) fn parsed_list<'de, D, T>(d: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    #[derive(Deserialize)]
    #[serde(bound = "T: FromStr<Err: Display>")]
    struct Text<T>(#[serde(deserialize_with = "parsed")] T);
    Ok(Vec::deserialize(d)?.into_iter().map(|Text(value)| value).collect())
}

/// A number of bytes that may be missing, as an integer or as text.
pub(crate) fn optional_byte_size<'de, D: Deserializer<'de>>(d: D) -> Result<Option<ByteSize>, D::Error> {
    byte_size(d).map(Some)
}

/// A number of bytes, as an integer or as text.
pub(crate) fn byte_size<'de, D: Deserializer<'de>>(d: D) -> Result<ByteSize, D::Error> {
    struct Visitor;
    impl de::Visitor<'_> for Visitor {
        type Value = ByteSize;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a size in bytes, as a number or as text like \"2GiB\"")
        }

        fn visit_i64<E: de::Error>(self, v: i64) -> Result<ByteSize, E> {
            u64::try_from(v).map(ByteSize).map_err(|_| E::custom("a size cannot be negative"))
        }

        fn visit_u64<E: de::Error>(self, v: u64) -> Result<ByteSize, E> {
            Ok(ByteSize(v))
        }

        fn visit_str<E: de::Error>(self, v: &str) -> Result<ByteSize, E> {
            v.parse().map_err(E::custom)
        }
    }
    d.deserialize_any(Visitor)
}
