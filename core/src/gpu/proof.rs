//! What makes a state believed, and what is wrong where it is not.

use super::chunk::Chunk;
use super::config::Footprint;
use crate::fault::{Fault, FaultKind};

/// What was found after an order, each by its own means. That a call returned proves
/// nothing: engines have answered 200 to a sleep and kept the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// The engine says that it sleeps.
    pub asleep: bool,
    /// Bytes that it has on the fullest of its GPUs, by the device's account.
    pub held: u64,
    /// It answered a request of its service's kind. Not asked of one that sleeps.
    pub answers: bool,
    /// Its agent can bring it back on other GPUs of its node than those that it left.
    pub movable: bool,
}

impl Proof {
    /// Whether it is resident.
    pub fn resident(&self, footprint: &Footprint) -> Result<(), Trouble> {
        if self.asleep {
            return Err(Trouble::StillAsleep);
        }
        if self.held <= footprint.residue && footprint.device > footprint.residue {
            return Err(Trouble::NotLoaded { held: self.held });
        }
        if self.held > footprint.device {
            return Err(Trouble::Outgrown { held: self.held, declared: footprint.device });
        }
        if self.answers { Ok(()) } else { Err(Trouble::NoAnswer) }
    }

    /// Whether it is bound to no GPU: it sleeps, keeps nothing of any, and can be moved.
    pub fn is_unbound(&self) -> bool {
        self.asleep && self.movable && self.held == 0
    }

    /// Whether it sleeps and its memory is back.
    pub fn evicted(&self, footprint: &Footprint) -> Result<(), Trouble> {
        if !self.asleep {
            return Err(Trouble::SleepLied);
        }
        if self.held > footprint.residue {
            return Err(Trouble::MemoryKept { held: self.held, declared: footprint.residue });
        }
        Ok(())
    }
}

/// What is wrong with an engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// An order was not carried out in time.
    #[error("it did not {0} in time")]
    TimedOut(Order),
    /// It was put to sleep without an error, and says that it is awake.
    #[error("it accepted to sleep and says that it is awake")]
    SleepLied,
    /// It says that it sleeps, and its memory is not free.
    #[error("it sleeps, but keeps {held} bytes of a GPU where {declared} are declared")]
    MemoryKept {
        /// Bytes on the fullest GPU.
        held: u64,
        /// What a sleeping engine may keep.
        declared: u64,
    },
    /// It was woken without an error, and says that it sleeps.
    #[error("it was woken and says that it sleeps")]
    StillAsleep,
    /// It says that it is awake, and has no memory.
    #[error("it says that it is awake, but has only {held} bytes of a GPU")]
    NotLoaded {
        /// Bytes on the fullest GPU.
        held: u64,
    },
    /// It took more than the books say.
    #[error("it holds {held} bytes of a GPU where {declared} are declared: declare more")]
    Outgrown {
        /// Bytes on the fullest GPU.
        held: u64,
        /// What a resident engine may hold.
        declared: u64,
    },
    /// A request of its service's kind failed.
    #[error("it is awake, but answered no request")]
    NoAnswer,
    /// It refused an order.
    #[error("it refused to {0}: {1}")]
    Refused(Order, String),
    /// Its process is gone.
    #[error("it died: {0}")]
    Died(String),
    /// One of its GPUs fell off.
    #[error("one of its GPUs fell off")]
    GpuLost,
    /// The node had no memory left for it.
    #[error("its node has too little memory: {0}")]
    HostMemoryShort(String),
    /// It took more of the node's memory than it may.
    #[error("it ran out of the node's memory: {0}")]
    HostOutgrown(String),
    /// Nothing is known of it, so nothing is believed.
    #[error("what it holds is not known: {0}")]
    Unknown(String),
    /// Its node's agent came back without it.
    #[error("its node's agent lost it")]
    AgentLost,
    /// An action on it did not end when it was cancelled.
    #[error("an action on it could not be ended")]
    Hung,
}

/// What an agent is told to do with an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// Start it and load its model.
    Launch,
    /// Bring it back from sleep.
    Wake,
    /// Put it to sleep.
    Evict,
    /// End its process.
    Stop,
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Launch => "start",
            Self::Wake => "wake up",
            Self::Evict => "go to sleep",
            Self::Stop => "end",
        })
    }
}

impl Trouble {
    /// The words of [`Self::reason`], for counters that begin at 0. `StopTimedOut` is not among
    /// them: an engine that is not gone in time has failed before.
    pub const REASONS: [&'static str; 17] = [
        "LaunchTimedOut",
        "WakeTimedOut",
        "EvictTimedOut",
        "SleepLied",
        "MemoryKept",
        "WakeLied",
        "NotLoaded",
        "DeviceMemoryOutgrown",
        "EngineMute",
        "EngineRefused",
        "EngineDied",
        "GpuLost",
        "HostMemoryShort",
        "HostMemoryOutgrown",
        "EngineUnknown",
        "AgentLost",
        "EngineHung",
    ];

    /// A stable word for programs.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::TimedOut(Order::Launch) => "LaunchTimedOut",
            Self::TimedOut(Order::Wake) => "WakeTimedOut",
            Self::TimedOut(Order::Evict) => "EvictTimedOut",
            Self::TimedOut(Order::Stop) => "StopTimedOut",
            Self::SleepLied => "SleepLied",
            Self::MemoryKept { .. } => "MemoryKept",
            Self::StillAsleep => "WakeLied",
            Self::NotLoaded { .. } => "NotLoaded",
            Self::Outgrown { .. } => "DeviceMemoryOutgrown",
            Self::NoAnswer => "EngineMute",
            Self::Refused(..) => "EngineRefused",
            Self::Died(_) => "EngineDied",
            Self::GpuLost => "GpuLost",
            Self::HostMemoryShort(_) => "HostMemoryShort",
            Self::HostOutgrown(_) => "HostMemoryOutgrown",
            Self::Unknown(_) => "EngineUnknown",
            Self::AgentLost => "AgentLost",
            Self::Hung => "EngineHung",
        }
    }

    /// As it reaches the callers of a service.
    pub(super) fn fault(&self, service: &str, node: &str, chunk: Chunk) -> Fault {
        let message = format!("reward service `{service}` on {chunk} of node `{node}`: {self}");
        Fault::new(FaultKind::Infrastructure, self.reason(), message)
    }
}
