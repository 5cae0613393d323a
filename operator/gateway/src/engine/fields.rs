//! The members of a JSON object as they stand in its text: some read, some replaced, the
//! others kept byte for byte and in their order.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A JSON object that is parsed one level deep.
#[derive(Debug)]
pub struct Fields<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

/// Member names borrow from the text where nothing is escaped in them.
#[derive(Deserialize, PartialEq)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Fields<'a> {
    /// Reads `text`, which must be one JSON object and valid as a whole.
    pub fn parse(text: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }

    /// The member of that name, or `None` where it is absent or null. The last one, where
    /// there are several.
    pub fn get<'b, T: Deserialize<'b>>(
        &'b self,
        name: &str,
    ) -> Result<Option<T>, serde_json::Error> {
        self.raw(name).map_or(Ok(None), serde_json::from_str)
    }

    /// The text of a member.
    pub fn raw(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(own, _)| own == name).map(|(_, value)| &**value)
    }

    /// True when it is there, and is not null.
    pub fn has(&self, name: &str) -> bool {
        self.raw(name).is_some_and(|value| value != "null")
    }

    /// True when the name occurs more than once.
    pub fn repeats(&self, name: &str) -> bool {
        self.0.iter().filter(|(own, _)| own == name).nth(1).is_some()
    }

    /// Gives a member a value, in its place or at the end. `json` must be valid JSON.
    pub fn set(&mut self, name: &'static str, json: impl Into<Cow<'a, str>>) {
        let json = json.into();
        match self.0.iter_mut().rev().find(|(own, _)| own == name) {
            Some((_, value)) => *value = json,
            None => self.0.push((name.into(), json)),
        }
    }

    /// Takes members out.
    pub fn remove(&mut self, names: &[&str]) {
        self.0.retain(|(own, _)| !names.contains(&&**own));
    }

    /// The object as text. Only white space between the members is lost.
    pub fn to_json(&self) -> String {
        let length: usize = self.0.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        let mut text = String::with_capacity(length + 2);
        text.push('{');
        for (index, (name, value)) in self.0.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            // A string always serialises.
            text.push_str(&serde_json::to_string(name).unwrap_or_default());
            text.push(':');
            text.push_str(value);
        }
        text.push('}');
        text
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Vec<(Cow<'de, str>, Cow<'de, str>)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::with_capacity(16);
                while let Some((Name(name), value)) =
                    map.next_entry::<Name<'de>, &'de RawValue>()?
                {
                    members.push((name, Cow::Borrowed(value.get())));
                }
                Ok(members)
            }
        }

        deserializer.deserialize_map(Members).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    #[test]
    fn keeps_what_is_not_touched() {
        let text = r#"{ "a" : 1.0e5, "stream":false, "m": [ {"x": "\u00e9"} ] , "stream" : true }"#;
        let mut fields = Fields::parse(text.as_bytes()).unwrap();
        assert_eq!(fields.get::<bool>("stream").unwrap(), Some(true));
        assert!(fields.repeats("stream") && !fields.repeats("a") && !fields.has("b"));
        fields.set("logprobs", "true");
        fields.set("a", "null");
        fields.remove(&["stream"]);
        assert_eq!(fields.to_json(), r#"{"a":null,"m":[ {"x": "\u00e9"} ],"logprobs":true}"#);
        assert!(!fields.has("a"));
        for bad in ["", "[]", "{", r#"{"a":}"#, r#"{"a":1}x"#, "null", "{\"a\":\"\u{1}\"}"] {
            assert!(Fields::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(Fields::parse(b"{\"a\":\"\xff\"}").is_err());
    }

    proptest! {
        #[test]
        fn members_are_those_of_a_tree(
            object in proptest::collection::btree_map(".{0,4}", proptest::option::of(".{0,6}"), 0..6),
            name in ".{0,4}",
        ) {
            let text = serde_json::to_string(&object).unwrap();
            let mut fields = Fields::parse(text.as_bytes()).unwrap();
            prop_assert_eq!(
                fields.get::<String>(&name).unwrap(),
                object.get(&name).cloned().flatten()
            );
            fields.remove(&[&name]);
            fields.set("set", "[1]");
            let mut tree: Value = serde_json::from_str(&text).unwrap();
            tree.as_object_mut().unwrap().remove(&name);
            tree["set"] = serde_json::json!([1]);
            prop_assert_eq!(serde_json::from_str::<Value>(&fields.to_json()).unwrap(), tree);
        }
    }
}
