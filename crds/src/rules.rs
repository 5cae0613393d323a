//! The rules that the API server checks by schema and CEL, as plain functions: what
//! it would refuse is refused on one machine too.
//!
//! `validate()` of each spec looks at that spec alone; [`references`] looks at what
//! several manifests say together.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::RangeInclusive;

mod job;
mod pool;
mod queue;
mod references;
mod reward;
mod unavailable;

use crate::degrees::Degrees;
pub use references::references;
pub use unavailable::Unavailable;

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct Violation {
    /// Where: `spec.templates[0].memory`.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

/// Collects broken rules below one path.
pub(crate) struct Check<'a> {
    path: String,
    found: &'a mut Vec<Violation>,
}

impl<'a> Check<'a> {
    pub(crate) fn new(path: &str, found: &'a mut Vec<Violation>) -> Self {
        Self { path: path.to_owned(), found }
    }

    /// The same below a field.
    pub(crate) fn field(&mut self, name: &str) -> Check<'_> {
        Check { path: format!("{}.{name}", self.path), found: self.found }
    }

    /// The same below an element of a list.
    pub(crate) fn item(&mut self, name: &str, index: usize) -> Check<'_> {
        Check { path: format!("{}.{name}[{index}]", self.path), found: self.found }
    }

    pub(crate) fn fail(&mut self, message: impl Into<String>) {
        self.found.push(Violation { path: self.path.clone(), message: message.into() });
    }

    pub(crate) fn require(&mut self, holds: bool, message: &str) {
        if !holds {
            self.fail(message);
        }
    }

    /// A whole number within bounds.
    pub(crate) fn within(&mut self, field: &str, value: u32, bounds: RangeInclusive<u32>) {
        if !bounds.contains(&value) {
            let (low, high) = bounds.into_inner();
            self.field(field).fail(format!("{value} must be between {low} and {high}"));
        }
    }

    /// The same where it may be absent.
    pub(crate) fn maybe_within(
        &mut self,
        field: &str,
        value: Option<u32>,
        bounds: RangeInclusive<u32>,
    ) {
        if let Some(value) = value {
            self.within(field, value, bounds);
        }
    }

    /// Number of elements, or of characters, within bounds.
    pub(crate) fn count(&mut self, field: &str, count: usize, bounds: RangeInclusive<usize>) {
        if !bounds.contains(&count) {
            let (low, high) = bounds.into_inner();
            self.field(field)
                .fail(format!("has length {count}, and must have between {low} and {high}"));
        }
    }

    /// No key twice in a list; `key` is the field that the elements are known by, or
    /// empty for a list of plain values.
    pub(crate) fn unique<T: Ord + Display>(
        &mut self,
        field: &str,
        key: &str,
        values: impl IntoIterator<Item = T>,
    ) {
        let mut seen = BTreeSet::new();
        for (index, value) in values.into_iter().enumerate() {
            if seen.contains(&value) {
                let mut item = self.item(field, index);
                let mut at = if key.is_empty() { item.fork() } else { item.field(key) };
                at.fail(format!("\"{value}\" is there twice; each must be different"));
            }
            seen.insert(value);
        }
    }

    fn fork(&mut self) -> Check<'_> {
        Check { path: self.path.clone(), found: self.found }
    }

    /// GPUs of a worker or service in ascending order.
    pub(crate) fn degrees(&mut self, degrees: &Degrees) {
        self.count("degrees", degrees.len(), 1..=4);
        let mut at = self.field("degrees");
        at.require(
            degrees.iter().all(|degree| matches!(degree, 1 | 2 | 4 | 8)),
            "each of degrees is 1, 2, 4 or 8",
        );
        at.require(
            degrees.is_sorted_by(|left, right| left < right),
            "degrees must ascend, for example [1, 2, 4]",
        );
    }

    /// An image reference.
    pub(crate) fn image(&mut self, image: &str, example: &str) {
        self.count("image", image.chars().count(), 1..=512);
        self.field("image").require(
            !image.contains([' ', '\t', '\r', '\n']),
            &format!("image is an image reference without spaces, for example \"{example}\""),
        );
    }

    /// An address of an HTTP service.
    pub(crate) fn url(&mut self, url: &str, example: &str) {
        self.count("url", url.chars().count(), 1..=2048);
        let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        self.field("url").require(
            host.is_some_and(|host| !host.is_empty() && !host.starts_with(['/', ' '])),
            &format!("url begins with http:// or https:// and a host, for example \"{example}\""),
        );
    }
}

impl crate::CommandLine {
    /// Exactly one of the two ways to say what runs.
    pub(crate) fn check(&self, check: &mut Check<'_>) {
        check.require(
            self.shell.is_some() != self.argv.is_some(),
            "set exactly one of shell and argv",
        );
        if let Some(shell) = &self.shell {
            check.count("shell", shell.chars().count(), 1..=65536);
        }
        if let Some(argv) = &self.argv {
            check.count("argv", argv.len(), 1..=1024);
        }
    }
}
