//! An engine, as the GPUs that it is on see it.

use super::chunk::{Chunk, Degree};
use crate::time::Time;

/// An engine: one service at one degree on one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub u64);

/// A reward service, by its place in [`super::Config::services`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceIndex(pub usize);

/// A service at a degree. At another degree it is another resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// The service.
    pub service: ServiceIndex,
    /// GPUs of one of its engines.
    pub degree: Degree,
}

/// A place in the line of those that wait: the least is served first.
pub type Turn = u64;

/// Where an engine is on its way to the device and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its memory is promised to it, once it is there and nothing else is moved.
    Reserved {
        /// It is to be launched, and has nothing yet; else it sleeps.
        launch: bool,
    },
    /// It is being launched or woken.
    Restoring {
        /// It is launched.
        launch: bool,
    },
    /// It can serve.
    Resident,
    /// It is to sleep for others, once nothing else is moved.
    Yielding,
    /// It is being put to sleep.
    Evicting,
    /// It sleeps.
    Asleep,
    /// Its process is being ended.
    Leaving {
        /// Its state is unknown.
        failed: bool,
    },
}

/// What is known of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Tenant {
    /// What it serves.
    pub kind: Kind,
    /// Where.
    pub chunk: Chunk,
    /// Its state.
    pub state: State,
    /// Bytes that it has on each of its GPUs when it can serve.
    pub device: u64,
    /// Bytes that it keeps of these when it sleeps.
    pub residue: u64,
    /// It was found bound to no GPU as it fell asleep: see [`super::Proof::is_unbound`].
    pub movable: bool,
    /// Actions run on it.
    pub executing: bool,
    /// It was restored, and has run nothing since.
    pub fresh: bool,
    /// It has served since it was restored, for less time than it takes to put it to
    /// sleep and to wake it again.
    pub on_term: bool,
    /// The first that waits for its kind.
    pub wanted: Option<Turn>,
    /// It is not to be moved to make room.
    pub pinned: bool,
    /// When its last action ended.
    pub used: Time,
}

impl Tenant {
    /// Bytes that it may have on each GPU at this moment. What is moved has all of them until
    /// it is proven otherwise.
    pub fn held(&self) -> u64 {
        match self.state {
            State::Reserved { launch: true } => 0,
            State::Reserved { launch: false } | State::Asleep => self.kept(),
            State::Restoring { .. }
            | State::Resident
            | State::Yielding
            | State::Evicting
            | State::Leaving { .. } => self.device,
        }
    }

    /// Bytes that it has when all that was decided is done.
    pub fn planned(&self) -> u64 {
        match self.state {
            State::Reserved { .. } | State::Restoring { .. } | State::Resident => self.device,
            State::Yielding | State::Evicting => self.residue,
            State::Asleep => self.kept(),
            State::Leaving { .. } => 0,
        }
    }

    /// Bytes that it keeps of each GPU while it sleeps.
    pub(super) fn kept(&self) -> u64 {
        if self.movable { 0 } else { self.residue }
    }

    /// It sleeps, and may be restored to any chunk of its node.
    pub fn is_unbound(&self) -> bool {
        self.state == State::Asleep && self.movable
    }

    /// Its memory is being moved.
    pub fn is_moving(&self) -> bool {
        matches!(self.state, State::Restoring { .. } | State::Evicting)
    }

    /// Its GPUs are given to nobody: what it does there is unknown until it is gone.
    pub fn is_leaving(&self) -> bool {
        matches!(self.state, State::Leaving { .. })
    }

    /// It is on its way to the device, or there and about to run what it was restored for.
    pub fn is_coming(&self) -> bool {
        match self.state {
            State::Reserved { .. } | State::Restoring { .. } => true,
            State::Resident => self.fresh && self.wanted.is_some(),
            _ => false,
        }
    }

    /// It serves those that wait for it before it makes room, whoever came before them. Were it
    /// to go after each, calls of two services in turn would cost a restore each; and who waits
    /// for its room waits for one more of its actions, at most, once its term is over.
    pub(super) fn serves_first(&self) -> bool {
        self.state == State::Resident && (self.fresh || self.on_term) && self.wanted.is_some()
    }

    /// Others may have its memory, for one whose turn is `turn`: it idles, and nobody who
    /// came before waits for it.
    pub(super) fn yields_to(&self, turn: Turn) -> bool {
        matches!(self.state, State::Resident | State::Asleep)
            && !self.executing
            && !self.pinned
            && !self.serves_first()
            && self.wanted.is_none_or(|wanted| wanted > turn)
    }
}
