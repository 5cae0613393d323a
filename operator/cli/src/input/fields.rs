//! Typed views of values.

use std::collections::BTreeMap;

use super::fault::{Fault, quote};
use super::json::Value;

/// Largest count: whole numbers are exact up to here.
const LARGEST_COUNT: f64 = 9_007_199_254_740_991.0;

/// An object whose fields are all known.
#[derive(Debug, Clone, Copy)]
pub struct Object<'a>(&'a BTreeMap<String, Value>);

impl<'a> Object<'a> {
    /// A field that must be there.
    pub fn required<T>(
        &self,
        name: &str,
        read: impl FnOnce(&'a Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let missing = || Fault::new("missing: it is required").in_field(name);
        self.optional(name, read)?.ok_or_else(missing)
    }

    /// A field that may be absent.
    pub fn optional<T>(
        &self,
        name: &str,
        read: impl FnOnce(&'a Value) -> Result<T, Fault>,
    ) -> Result<Option<T>, Fault> {
        let value = self.0.get(name).map(read).transpose();
        value.map_err(|fault| fault.in_field(name))
    }

    /// True where the field is given.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Flag(_) => "true or false",
            Self::Number(_) => "a number",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }

    fn wrong(&self, wanted: &str) -> Fault {
        let got = match self {
            Self::Number(number) => format!("{number:?}"),
            Self::Text(text) => format!("the text {}", quote(text)),
            other => other.kind().to_owned(),
        };
        Fault::new(format!("must be {wanted}, got {got}"))
    }

    /// An object with no other fields than `known`.
    pub fn object(&self, known: &[&str]) -> Result<Object<'_>, Fault> {
        let Self::Object(fields) = self else {
            return Err(self.wrong(&format!("an object with {}", listed(known))));
        };
        match fields.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(Object(fields)),
            Some(name) => {
                let close = known.iter().find(|known| strsim::osa_distance(known, name) <= 2);
                let hint = match close {
                    Some(close) => format!("did you mean {close}?"),
                    None => format!("known here: {}", listed(known)),
                };
                Err(Fault::new(format!("unknown field: {hint}")).in_field(name))
            }
        }
    }

    /// An object whose names are data, each with its value.
    pub fn entries<T>(
        &self,
        wanted: &str,
        mut read: impl FnMut(&str, &Value) -> Result<T, Fault>,
    ) -> Result<Vec<T>, Fault> {
        let Self::Object(fields) = self else { return Err(self.wrong(wanted)) };
        let entry = |(name, value): (&String, &Value)| {
            read(name, value).map_err(|fault| fault.in_field(name))
        };
        fields.iter().map(entry).collect()
    }

    /// A list, each item read in order.
    pub fn list<T>(
        &self,
        mut read: impl FnMut(&Value) -> Result<T, Fault>,
    ) -> Result<Vec<T>, Fault> {
        let Self::List(items) = self else { return Err(self.wrong("a list")) };
        let item = |(i, item)| read(item).map_err(|fault| fault.at(i));
        items.iter().enumerate().map(item).collect()
    }

    /// A finite number, 0 or more.
    pub fn non_negative(&self) -> Result<f64, Fault> {
        match self {
            // Adding 0 makes -0 of JSON a plain 0.
            Self::Number(number) if *number >= 0.0 => Ok(number + 0.0),
            other => Err(other.wrong("a number, 0 or more")),
        }
    }

    /// A finite number above 0.
    pub fn positive(&self) -> Result<f64, Fault> {
        match self {
            Self::Number(number) if *number > 0.0 => Ok(*number),
            other => Err(other.wrong("a number above 0")),
        }
    }

    /// A whole number from 1 on.
    pub fn count(&self) -> Result<u64, Fault> {
        match self.whole() {
            Ok(count) if count > 0 => Ok(count),
            _ => Err(self.wrong(&format!("a whole number from 1 to {LARGEST_COUNT}"))),
        }
    }

    /// A whole number from 0 on.
    pub fn whole(&self) -> Result<u64, Fault> {
        match self {
            Self::Number(number)
                if number.fract() == 0.0 && (0.0..=LARGEST_COUNT).contains(number) =>
            {
                Ok(*number as u64)
            }
            other => Err(other.wrong(&format!("a whole number from 0 to {LARGEST_COUNT}"))),
        }
    }

    /// True or false.
    pub fn flag(&self) -> Result<bool, Fault> {
        match self {
            Self::Flag(flag) => Ok(*flag),
            other => Err(other.wrong("true or false")),
        }
    }

    /// Text that is not empty.
    pub fn text(&self) -> Result<&str, Fault> {
        match self {
            Self::Text(text) if !text.is_empty() => Ok(text),
            other => Err(other.wrong("text, not empty")),
        }
    }
}

fn listed(names: &[&str]) -> String {
    names.join(", ")
}
