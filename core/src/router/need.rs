//! Which versions of the weights may generate a request.

use super::event::Ask;
use crate::version::Version;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// Any from this one on; `None` is any, known or not.
    AtLeast(Option<Version>),
    /// This one only.
    Exactly(Version),
}

impl Need {
    pub(super) fn of(ask: &Ask) -> Self {
        ask.pinned.map_or(Self::AtLeast(ask.at_least), Self::Exactly)
    }

    pub(super) fn met_by(self, version: Option<Version>) -> bool {
        match self {
            Self::AtLeast(None) => true,
            Self::AtLeast(least) => version >= least,
            Self::Exactly(pinned) => version == Some(pinned),
        }
    }

    /// After a worker with this version has generated some of it.
    pub(super) fn raised(self, version: Option<Version>) -> Self {
        match self {
            Self::AtLeast(least) => Self::AtLeast(least.max(version)),
            Self::Exactly(_) => self,
        }
    }
}
