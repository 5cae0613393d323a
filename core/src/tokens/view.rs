//! What a trainer gets of a log.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::TokenLog;
use crate::version::Version;

/// Tokens that one version generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionRange {
    /// Index of the first.
    pub start: usize,
    /// Index after the last.
    pub end: usize,
    /// The policy version.
    pub version: Version,
}

impl VersionRange {
    /// How many tokens.
    pub(super) const fn len(&self) -> usize {
        self.end - self.start
    }
}

impl Serialize for VersionRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut range = serializer.serialize_struct("VersionRange", 3)?;
        range.serialize_field("start", &self.start)?;
        range.serialize_field("end", &self.end)?;
        range.serialize_field("version", &self.version.0)?;
        range.end()
    }
}

impl TokenLog {
    /// Ranges of generated tokens, in their order.
    pub fn versions(&self) -> &[VersionRange] {
        &self.spans
    }

    /// 1 for each generated token, 0 for each observed one.
    pub fn loss_mask(&self) -> impl Iterator<Item = u8> + Clone + '_ {
        self.runs().flat_map(|(generated, len)| std::iter::repeat_n(u8::from(generated), len))
    }

    /// The log-probability of each generated token, `None` for each observed one.
    pub fn logprobs(&self) -> impl Iterator<Item = Option<f32>> + Clone + '_ {
        let mut given = self.logprobs.iter().copied();
        self.loss_mask().map(move |mask| if mask == 1 { given.next() } else { None })
    }

    /// The fields of a batch, to be serialised without a copy.
    pub const fn training_view(&self) -> TrainingView<'_> {
        TrainingView(self)
    }

    /// Lengths of observed and generated stretches, in turn.
    fn runs(&self) -> impl Iterator<Item = (bool, usize)> + Clone + '_ {
        let starts = std::iter::once(0).chain(self.spans.iter().map(|span| span.end));
        let observed = starts
            .zip(self.spans.iter().map(|span| span.start).chain([self.ids.len()]))
            .map(|(start, end)| (false, end - start));
        let generated = self.spans.iter().map(|span| (true, span.len())).chain([(true, 0)]);
        observed.zip(generated).flat_map(|(observed, generated)| [observed, generated])
    }
}

/// `token_ids`, `logprobs`, `loss_mask` and `versions` of a trajectory in a batch.
#[derive(Debug, Clone, Copy)]
pub struct TrainingView<'a>(&'a TokenLog);

impl Serialize for TrainingView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let log = self.0;
        let mut view = serializer.serialize_struct("TrainingView", 4)?;
        view.serialize_field("token_ids", &log.ids)?;
        view.serialize_field("logprobs", &Sequence(log.logprobs()))?;
        view.serialize_field("loss_mask", &Sequence(log.loss_mask()))?;
        view.serialize_field("versions", &log.spans)?;
        view.end()
    }
}

struct Sequence<I>(I);

impl<I> Serialize for Sequence<I>
where
    I: Iterator<Item: Serialize> + Clone,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}
