//! Sizes in bytes, written as Kubernetes quantities (`512Mi`).

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What the API server accepts; [`ByteSize::from_str`] accepts the same, up to 1 EiB.
const RULE: &str = "self.matches('^[0-9]{1,19}([.][0-9]{1,3})?(k|M|G|T|Ki|Mi|Gi|Ti)?$')";

/// Suffixes and their factors in bytes; binary ones first and largest first, as
/// they are tried in writing.
const UNITS: [(&str, u64); 8] = [
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1_000),
];

/// A size of 1 byte to 1 EiB, written as a Kubernetes quantity: `512Mi`, `1.5Gi`, `2G`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

/// Why a text is not a [`ByteSize`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ByteSizeError {
    /// It is not a number with a known suffix.
    #[error(
        "\"{0}\" is not a size; write a number and one of Ki, Mi, Gi, Ti, k, M, G, T, for example \"512Mi\""
    )]
    Malformed(String),
    /// It is nought.
    #[error(
        "\"{0}\" is not more than zero; leave the field out where no size is meant, or write for example \"512Mi\""
    )]
    Zero(String),
    /// It is more than 1 EiB.
    #[error("\"{0}\" is more than 1 EiB (1048576Ti)")]
    TooLarge(String),
}

impl ByteSize {
    /// The largest size: 1 EiB.
    pub const MAX: Self = Self(1 << 60);

    /// So many MiB; nought becomes one.
    pub const fn mib(count: u32) -> Self {
        Self(if count == 0 { 1 } else { count as u64 } << 20)
    }

    /// The size in bytes, never 0.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for ByteSize {
    type Error = ByteSizeError;

    fn try_from(bytes: u64) -> Result<Self, ByteSizeError> {
        match bytes {
            0 => Err(ByteSizeError::Zero("0".to_owned())),
            1..=0x1000_0000_0000_0000 => Ok(Self(bytes)),
            _ => Err(ByteSizeError::TooLarge(bytes.to_string())),
        }
    }
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    /// A fraction of a byte is rounded up, as Kubernetes does.
    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        let malformed = || ByteSizeError::Malformed(text.to_owned());
        let (number, factor) = UNITS
            .iter()
            .find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)))
            .unwrap_or((text, 1));
        let (whole, fraction) = match number.split_once('.') {
            Some((_, "")) => return Err(malformed()),
            Some(parts) => parts,
            None => (number, ""),
        };
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || whole.len() > 19 || fraction.len() > 3 {
            return Err(malformed());
        }
        if !digits(whole) || !digits(fraction) {
            return Err(malformed());
        }
        let thousandths: u128 =
            format!("{whole}{fraction:0<3}").parse().map_err(|_| malformed())?;
        let bytes = (thousandths * u128::from(factor)).div_ceil(1000);
        match u64::try_from(bytes) {
            Ok(0) => Err(ByteSizeError::Zero(text.to_owned())),
            Ok(bytes) if bytes <= Self::MAX.0 => Ok(Self(bytes)),
            _ => Err(ByteSizeError::TooLarge(text.to_owned())),
        }
    }
}

/// The shortest exact form with a binary suffix, else plain bytes.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (suffix, factor) in &UNITS[..4] {
            if self.0.is_multiple_of(*factor) {
                return write!(f, "{}{suffix}", self.0 / factor);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size as a string, for example \"512Mi\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

impl JsonSchema for ByteSize {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 25,
            "x-kubernetes-validations": [
                {
                    "rule": RULE,
                    "message": "a size is a number and one of Ki, Mi, Gi, Ti, k, M, G, T, for example \"512Mi\"",
                },
                {
                    "rule": "self.matches('[1-9]')",
                    "message": "a size must be more than zero, for example \"512Mi\"",
                },
            ],
        })
    }
}
