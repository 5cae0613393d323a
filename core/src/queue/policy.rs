//! How many units an action gets, and when it may start.
//!
//! What the elastic policy says of a whole line is in `elastic.rs`.

use crate::cpu::NodeCpu;
use crate::elastic::Elastic;
use crate::resources::{UnitChoice, Units};

/// The scheduling policy of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// As many units as make the sum of completion times least, by
    /// [`Elastic`](crate::elastic::Elastic); short actions first, with ageing.
    #[default]
    Elastic,
    /// As `Elastic`, for an end of all trajectories as early as possible: those first whose
    /// trajectory will go on for longest, with ageing ([`Remaining`](crate::elastic::Remaining)).
    ElasticTrajectory,
    /// First come first served; each action gets the largest of its units that is
    /// at most `dop`, else its smallest.
    FixedDop {
        /// The degree of parallelism.
        dop: Units,
    },
    /// Every trajectory holds `cores` from its opening to its end, as a pod does;
    /// its actions run on those. The baseline.
    Static {
        /// Cores of each trajectory.
        cores: u16,
    },
}

/// What a policy says of the next action in a node's line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Start it with these units.
    Start(Units),
    /// It waits, and what is behind it with it.
    Wait,
}

impl Policy {
    /// True where a line is served as a whole.
    pub(super) fn is_elastic(self) -> bool {
        matches!(self, Self::Elastic | Self::ElasticTrajectory)
    }

    /// What decides on the lines of a node.
    pub(super) fn elastic(self) -> Elastic {
        if self == Self::ElasticTrajectory { Elastic::for_makespan() } else { Elastic::default() }
    }

    /// Decides on the next action of a node's line, given the node's free cores and
    /// whether the action's trajectory holds cores for life. One that does not, under
    /// the static policy, was opened under another. Not for the elastic policies, which
    /// decide on lines: it says the least units.
    pub fn decide(self, choice: &UnitChoice, node: &NodeCpu, held: bool) -> Decision {
        let dop = match self {
            Self::Static { cores } if held => {
                return Decision::Start(choice.at_most(Units::cores(cores)));
            }
            Self::Static { cores } => Units::cores(cores),
            Self::FixedDop { dop } => dop,
            Self::Elastic | Self::ElasticTrajectory => choice.smallest(),
        };
        // A node smaller than the degree still serves: it gives what it has.
        let most = node.exclusive_capacity().min(usize::from(u16::MAX)) as u16;
        let units = choice.at_most(dop.min(Units::cores(most)));
        if node.fits(units) { Decision::Start(units) } else { Decision::Wait }
    }
}
