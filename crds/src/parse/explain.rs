//! Serde's errors in the words of somebody who writes manifests.

use serde_path_to_error::{Path, Segment};
use serde_yaml::Value;

use crate::rules::Violation;

/// What serde expects, and how a manifest's author would call it.
const EXPECTED: [(&str, &str); 10] = [
    ("expected u16", "expected a whole number of 1 to 65535"),
    ("expected u32", "expected a whole number of 0 or more"),
    ("expected i32", "expected a whole number"),
    ("expected f64", "expected a number"),
    ("expected a boolean", "expected true or false"),
    ("expected a sequence", "expected a list"),
    ("expected a map", "expected a mapping"),
    ("expected a string", "expected a string; put it in quotes"),
    ("expected string or map", "expected one of the allowed words"),
    ("expected unit variant", "expected one of the allowed words"),
];

/// A path below `root` as it is written in messages: `spec.templates[0].memory`.
pub(super) fn path(root: &str, path: &Path) -> String {
    let mut text = root.to_owned();
    for segment in path {
        match segment {
            Segment::Seq { index } => text = format!("{text}[{index}]"),
            Segment::Map { key } => text = format!("{text}.{key}"),
            // The word of an enum or an unreadable key adds nothing to the field's name.
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    text
}

/// A serde error at `path`.
pub(super) fn error(path: String, text: &str) -> Violation {
    if let Some((field, known)) = named(text, "unknown field `") {
        let path =
            if path.ends_with(&format!(".{field}")) { path } else { format!("{path}.{field}") };
        return Violation { message: unknown_field(field, &known), path };
    }
    if let Some((word, known)) = named(text, "unknown variant `") {
        let hint = nearest(word, &known)
            .map_or_else(String::new, |near| format!("; did you mean {near}?"));
        let message = format!("\"{word}\" is not one of {}{hint}", known.join(", "));
        return Violation { path, message };
    }
    if let Some(field) =
        text.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'))
    {
        return Violation {
            path: format!("{path}.{field}"),
            message: "is missing; add it".to_owned(),
        };
    }
    for (serde, ours) in EXPECTED {
        if let Some(start) = text.strip_suffix(serde) {
            return Violation { path, message: format!("{start}{ours}") };
        }
    }
    if let Some((start, _)) = text.split_once("expected struct ") {
        return Violation { path, message: format!("{start}expected a mapping") };
    }
    Violation { path, message: text.to_owned() }
}

/// The name that is refused and those that are known, out of serde's sentence.
fn named<'a>(text: &'a str, start: &str) -> Option<(&'a str, Vec<&'a str>)> {
    let rest = text.strip_prefix(start)?;
    let (name, known) =
        rest.split_once("`, expected ").or_else(|| rest.split_once("`, there are"))?;
    // Every second piece stands between backticks.
    Some((name, known.split('`').skip(1).step_by(2).collect()))
}

/// Says what an unknown field might have been.
pub(super) fn unknown_field(field: &str, known: &[&str]) -> String {
    match nearest(field, known) {
        Some(near) => format!("unknown field \"{field}\"; did you mean \"{near}\"?"),
        None => format!("unknown field \"{field}\"; known are {}", known.join(", ")),
    }
}

/// The known name that was probably meant.
pub(super) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['_', '-'], "");
    let name = plain(name);
    known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(&name, &plain(known)), *known))
        .min()
        .filter(|(distance, known)| *distance <= known.len() / 3)
        .map(|(_, known)| known)
}

/// A key of a mapping as text.
pub(super) fn key(key: &Value) -> String {
    match key {
        Value::String(text) => text.clone(),
        other => serde_yaml::to_string(other).unwrap_or_default().trim_end().to_owned(),
    }
}
