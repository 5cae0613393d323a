//! Who reaches the workers. Engines guard only `/v1` by a key: their paths that put them to
//! sleep or change their weights are open to whoever reaches the port.

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::Facts;
use crate::labels::{self, Component};

/// The job's gateway reaches the engines' port; workers of the job reach each other, for the
/// cache of prompts and for workers over several nodes; nobody else anything. (The kubelet's
/// probes are not subject to policies.)
pub(super) fn workers(facts: &Facts<'_>) -> NetworkPolicy {
    let pods = |component| LabelSelector {
        match_labels: Some(labels::selector(component, facts.job)),
        ..LabelSelector::default()
    };
    let from = |component| {
        Some(vec![NetworkPolicyPeer {
            pod_selector: Some(pods(component)),
            ..NetworkPolicyPeer::default()
        }])
    };
    let ports = vec![NetworkPolicyPort {
        port: Some(IntOrString::Int(facts.spec.engine.port.into())),
        protocol: Some("TCP".into()),
        end_port: None,
    }];
    NetworkPolicy {
        metadata: facts.metadata(format!("{}-workers", facts.job)),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(pods(Component::Worker)),
            policy_types: Some(vec!["Ingress".into()]),
            ingress: Some(vec![
                NetworkPolicyIngressRule { from: from(Component::Gateway), ports: Some(ports) },
                NetworkPolicyIngressRule { from: from(Component::Worker), ports: None },
            ]),
            egress: None,
        }),
    }
}
