//! Agents as the controllers know them: which sorts there are, and what a pod of each asks for.

use std::collections::BTreeMap;
use std::str::FromStr;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity::{milli, units};

/// What the names of the agents' DaemonSets begin with; the sort follows.
const DAEMON_SET: &str = "rollwright-agent-";

/// A sort of agent: a DaemonSet of the chart, and a value of the nodes' label
/// [`AGENT`](crate::labels::AGENT).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AgentMode {
    /// Sandboxes on the node's own Docker.
    Host,
    /// Sandboxes on a Docker in a sidecar.
    Dind,
    /// Reward services on the node's GPUs, and sandboxes on its own Docker.
    Gpu,
}

impl AgentMode {
    const ALL: [Self; 3] = [Self::Host, Self::Dind, Self::Gpu];

    /// Value of the label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Dind => "dind",
            Self::Gpu => "gpu",
        }
    }
}

/// What a container of an agent's pod asks for: `host:100m:64Mi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentRequest {
    /// Of which sort.
    pub mode: AgentMode,
    /// Thousandths of cores.
    pub milli: u64,
    /// Bytes.
    pub memory: u64,
}

/// A text is no [`AgentRequest`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is not MODE:CPU:MEMORY with MODE one of host, dind and gpu, for example \"host:100m:64Mi\""
)]
pub struct InvalidAgentRequest(String);

impl FromStr for AgentRequest {
    type Err = InvalidAgentRequest;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = || {
            let [mode, cpu, memory] = text.split(':').collect::<Vec<_>>().try_into().ok()?;
            let mode = AgentMode::ALL.into_iter().find(|known| known.as_str() == mode)?;
            let (cpu, memory) = (Quantity(cpu.to_owned()), Quantity(memory.to_owned()));
            Some(Self { mode, milli: milli(&cpu)?, memory: units(&memory)? })
        };
        read().ok_or_else(|| InvalidAgentRequest(text.to_owned()))
    }
}

/// What the pods of agents ask for, by their sort.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentRequests(BTreeMap<AgentMode, (u64, u64)>);

impl AgentRequests {
    /// Thousandths of cores and bytes; nothing where nobody said.
    pub fn of(&self, mode: AgentMode) -> (u64, u64) {
        self.0.get(&mode).copied().unwrap_or_default()
    }
}

/// The containers of a pod add up.
impl FromIterator<AgentRequest> for AgentRequests {
    fn from_iter<I: IntoIterator<Item = AgentRequest>>(all: I) -> Self {
        let mut sums = BTreeMap::<_, (u64, u64)>::new();
        for AgentRequest { mode, milli, memory } in all {
            let sum = sums.entry(mode).or_default();
            *sum = (sum.0.saturating_add(milli), sum.1.saturating_add(memory));
        }
        Self(sums)
    }
}

/// Whether a pod is an agent of the release that its namespace has.
pub(crate) fn is_agent(pod: &Pod) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.kind == "DaemonSet" && owner.name.starts_with(DAEMON_SET))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_containers_of_a_pod_add_up() {
        let texts = ["host:100m:64Mi", "dind:100m:64Mi", "dind:1:1Gi"];
        let requests: AgentRequests =
            texts.iter().map(|text| text.parse::<AgentRequest>().unwrap()).collect();
        assert_eq!(requests.of(AgentMode::Host), (100, 64 << 20));
        assert_eq!(requests.of(AgentMode::Dind), (1100, (1 << 30) + (64 << 20)));
        assert_eq!(requests.of(AgentMode::Gpu), (0, 0));
        for wrong in ["", "host", "host:1", "host:1:1:1", "node:1:1", "host:x:1", "host:1:-1"] {
            assert!(wrong.parse::<AgentRequest>().is_err(), "{wrong}");
        }
    }
}
