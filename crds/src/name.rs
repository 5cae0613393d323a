//! Names that manifests give to things and refer to them by.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};

/// Longest name, as in a Kubernetes label value.
const MAX_LENGTH: usize = 63;
/// What the API server accepts; [`Name::from_str`] accepts the same.
const RULE: &str = "self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')";

/// A name of 1 to 63 of `[a-z0-9.-]` that begins and ends with a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Name(String);

/// Why a text is not a [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is not a name; write 1 to 63 lower-case letters, digits, '-' or '.', a letter or digit first and last, for example \"swe-tests\""
)]
pub struct NameError(String);

impl Name {
    /// `default`: the action profile of requests that name none.
    pub fn default_profile() -> Self {
        Self("default".to_owned())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = text.as_bytes();
        let ends =
            bytes.first().is_some_and(alphanumeric) && bytes.last().is_some_and(alphanumeric);
        let inner = bytes.iter().all(|byte| alphanumeric(byte) || matches!(byte, b'-' | b'.'));
        if ends && inner && bytes.len() <= MAX_LENGTH {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError(text.to_owned()))
        }
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name as a string, for example \"swe-tests\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Name, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

impl JsonSchema for Name {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Name".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_LENGTH,
            "x-kubernetes-validations": [{
                "rule": RULE,
                "message": "a name has lower-case letters, digits, '-' and '.', a letter or digit first and last, for example \"swe-tests\"",
            }],
        })
    }
}
