//! Lengths of time, written as Go and Kubernetes write them (`1h30m`).

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What the API server accepts; [`TimeSpan::from_str`] accepts the same.
const RULE: &str = "self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,9}s)?([0-9]{1,9}ms)?$')";

/// Units from the largest: suffix, milliseconds, digits allowed.
const UNITS: [(&str, u64, usize); 4] =
    [("h", 3_600_000, 6), ("m", 60_000, 6), ("s", 1_000, 9), ("ms", 1, 9)];

/// A length of time of at least 1 ms: whole hours, minutes, seconds and
/// milliseconds in that order, `30s`, `10m`, `1h30m`, `250ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeSpan {
    millis: u64,
}

/// Why a text or a [`Duration`] is not a [`TimeSpan`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeSpanError {
    /// It is not made of whole numbers and units.
    #[error(
        "\"{0}\" is not a length of time; write whole hours, minutes, seconds or milliseconds, for example \"30s\", \"10m\", \"1h30m\" or \"250ms\""
    )]
    Malformed(String),
    /// It is nought.
    #[error(
        "\"{0}\" is not more than zero; leave the field out where no time is meant, or write for example \"30s\""
    )]
    Zero(String),
    /// It is not in whole milliseconds, or has more than six digits of hours.
    #[error("{0:?} is not a whole number of milliseconds of less than 1000000h")]
    OutOfRange(Duration),
}

impl TimeSpan {
    /// So many seconds; nought becomes one.
    pub const fn secs(count: u32) -> Self {
        Self { millis: if count == 0 { 1000 } else { count as u64 * 1000 } }
    }

    /// As a [`Duration`], never zero.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.millis)
    }
}

impl From<TimeSpan> for Duration {
    fn from(span: TimeSpan) -> Self {
        span.duration()
    }
}

impl TryFrom<Duration> for TimeSpan {
    type Error = TimeSpanError;

    fn try_from(duration: Duration) -> Result<Self, TimeSpanError> {
        let out_of_range = || TimeSpanError::OutOfRange(duration);
        let millis = u64::try_from(duration.as_millis()).map_err(|_| out_of_range())?;
        if millis == 0 || millis >= 1_000_000 * UNITS[0].1 {
            return Err(out_of_range());
        }
        if Duration::from_millis(millis) != duration {
            return Err(out_of_range());
        }
        Ok(Self { millis })
    }
}

impl FromStr for TimeSpan {
    type Err = TimeSpanError;

    fn from_str(text: &str) -> Result<Self, TimeSpanError> {
        let malformed = || TimeSpanError::Malformed(text.to_owned());
        if text.is_empty() {
            return Err(malformed());
        }
        let (mut rest, mut units, mut millis) = (text, UNITS.as_slice(), 0_u64);
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, tail) = rest.split_at(digits);
            let letters = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
            let (unit, tail) = tail.split_at(letters);
            // Only smaller units may follow.
            let position = units.iter().position(|(suffix, ..)| *suffix == unit);
            let position = position.ok_or_else(malformed)?;
            let (_, factor, max_digits) = units[position];
            if digits == 0 || digits > max_digits {
                return Err(malformed());
            }
            let count: u64 = number.parse().map_err(|_| malformed())?;
            millis += count * factor;
            units = &units[position + 1..];
            rest = tail;
        }
        if millis == 0 {
            return Err(TimeSpanError::Zero(text.to_owned()));
        }
        Self::try_from(Duration::from_millis(millis))
    }
}

/// Each unit at most once, largest first: `1h30m`.
impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.millis;
        for (suffix, factor, _) in UNITS {
            if rest >= factor {
                write!(f, "{}{suffix}", rest / factor)?;
                rest %= factor;
            }
        }
        Ok(())
    }
}

impl Serialize for TimeSpan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TimeSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = TimeSpan;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a length of time as a string, for example \"30s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<TimeSpan, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

impl JsonSchema for TimeSpan {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "TimeSpan".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "minLength": 2,
            "maxLength": 35,
            "x-kubernetes-validations": [
                {
                    "rule": RULE,
                    "message": "a length of time is whole hours, minutes, seconds or milliseconds, for example \"30s\" or \"1h30m\"",
                },
                {
                    "rule": "self.matches('[1-9]')",
                    "message": "a length of time must be more than zero, for example \"30s\"",
                },
            ],
        })
    }
}
