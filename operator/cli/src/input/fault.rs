//! Where and why an input is refused.

use std::fmt::{self, Write as _};
use std::path::Path;

/// Longest part of an input that a message repeats, in characters.
const LONGEST_QUOTE: usize = 60;

/// What is wrong with a value, and the way to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// From the value outwards.
    path: Vec<Segment>,
    what: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Field(String),
    Index(usize),
}

impl Fault {
    /// `what` is wrong and what would be right, about a value whose way is added by
    /// [`Self::in_field`] and [`Self::at`].
    pub fn new(what: impl Into<String>) -> Self {
        Self { path: Vec::new(), what: what.into() }
    }

    /// The value stands in this field of an object.
    #[must_use]
    pub fn in_field(mut self, name: &str) -> Self {
        self.path.push(Segment::Field(name.to_owned()));
        self
    }

    /// The value stands at this place of a list.
    #[must_use]
    pub fn at(mut self, index: usize) -> Self {
        self.path.push(Segment::Index(index));
        self
    }

    /// The way as a JSON path.
    fn json_path(&self) -> String {
        let mut path = String::from("$");
        for segment in self.path.iter().rev() {
            // Writing into text cannot fail.
            let _ = match segment {
                Segment::Index(index) => write!(path, "[{index}]"),
                Segment::Field(name) if is_plain(name) => write!(path, ".{name}"),
                Segment::Field(name) => write!(path, "[{}]", quote(name)),
            };
        }
        path
    }

    /// In a file that is one JSON value.
    pub fn in_file(self, file: &Path) -> InputError {
        InputError { file: name_of(file), place: self.json_path(), what: one_line(&self.what) }
    }

    /// In a file of one JSON value for each line, counted from 1.
    pub fn on_line(self, file: &Path, line: usize) -> InputError {
        let what = one_line(&format!("{}: {}", self.json_path(), self.what));
        InputError { file: name_of(file), place: line.to_string(), what }
    }
}

/// A refused input, in one line: file, place, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputError {
    file: String,
    place: String,
    what: String,
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.place, self.what)
    }
}

impl std::error::Error for InputError {}

fn name_of(file: &Path) -> String {
    one_line(&file.to_string_lossy())
}

fn is_plain(name: &str) -> bool {
    let mut chars = name.chars();
    name.len() <= LONGEST_QUOTE
        && chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Text of an input as a message repeats it: in quotes, short and in one line.
pub(crate) fn quote(text: &str) -> String {
    let mut start: String = text.chars().take(LONGEST_QUOTE).collect();
    if start.len() < text.len() {
        start.push_str("...");
    }
    format!("{start:?}")
}

/// Without what would break the line or move the cursor.
fn one_line(text: &str) -> String {
    text.chars().fold(String::new(), |mut line, c| {
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
        line
    })
}
