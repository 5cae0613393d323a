//! Labels of our containers and networks: enough to find them again after a restart.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;
use rollwright_proto::v1::SandboxSpec;

/// Marks what is ours; its value is the sort of object (`sandbox`, `network`).
pub const MANAGED: &str = "rollwright.dev/managed";
/// Node name of the agent that made it.
pub const AGENT: &str = "rollwright.dev/agent";
/// Random id of the agent's state directory: two agents may go by one node name.
pub const AGENT_ID: &str = "rollwright.dev/agent-id";
/// Trajectory that it was made for; absent on a warm sandbox.
pub const TRAJECTORY: &str = "rollwright.dev/trajectory";
/// Template's name.
pub const TEMPLATE: &str = "rollwright.dev/template";
/// Memory in bytes.
pub const MEMORY: &str = "rollwright.dev/memory";
/// The whole `SandboxSpec`, as base64 of its protobuf form.
pub const SPEC: &str = "rollwright.dev/spec";

/// Value of [`MANAGED`] on containers.
pub const SANDBOX: &str = "sandbox";
/// Value of [`MANAGED`] on networks.
pub const NETWORK: &str = "network";

/// Whose a container or network is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Node name of the agent.
    pub node: String,
    /// Id of its state directory.
    pub id: String,
}

/// The labels of anything of this sort.
pub fn of(owner: &Owner, sort: &str) -> HashMap<String, String> {
    HashMap::from([
        (MANAGED.to_owned(), sort.to_owned()),
        (AGENT.to_owned(), owner.node.clone()),
        (AGENT_ID.to_owned(), owner.id.clone()),
    ])
}

/// The labels of a sandbox; `trajectory` is absent for a warm one.
pub fn of_sandbox(
    owner: &Owner,
    trajectory: Option<&str>,
    spec: &SandboxSpec,
) -> HashMap<String, String> {
    let mut labels = of(owner, SANDBOX);
    labels.extend([
        (TEMPLATE.to_owned(), spec.template.clone()),
        (MEMORY.to_owned(), spec.memory_bytes.to_string()),
        (SPEC.to_owned(), STANDARD.encode(spec.encode_to_vec())),
    ]);
    if let Some(trajectory) = trajectory {
        labels.insert(TRAJECTORY.to_owned(), trajectory.to_owned());
    }
    labels
}

/// The spec that a sandbox was made from; `None` when the labels are not ours.
pub fn spec_of<S: std::hash::BuildHasher>(
    labels: &HashMap<String, String, S>,
) -> Option<SandboxSpec> {
    let bytes = STANDARD.decode(labels.get(SPEC)?).ok()?;
    SandboxSpec::decode(bytes.as_slice()).ok()
}

/// Docker's label filters for everything of one agent and sort.
pub fn filter(owner: &Owner, sort: &str) -> HashMap<String, Vec<String>> {
    let labels = of(owner, sort).into_iter().map(|(label, value)| format!("{label}={value}"));
    HashMap::from([("label".to_owned(), labels.collect())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spec_survives_in_the_labels() {
        let spec = SandboxSpec {
            template: "swe".into(),
            image: "python:3".into(),
            memory_bytes: 5,
            env: [("A".to_owned(), "ü=\n".to_owned())].into(),
            ..Default::default()
        };
        let labels = of_sandbox(&Owner { node: "node".into(), id: "i".into() }, Some("t/1"), &spec);
        assert_eq!(spec_of(&labels), Some(spec));
        assert_eq!(labels.get(TRAJECTORY).map(String::as_str), Some("t/1"));
        let broken = HashMap::from([(SPEC.to_owned(), "%%%".to_owned())]);
        assert_eq!(spec_of(&broken), None);
    }
}
