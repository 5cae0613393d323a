//! Step three: the objects of a queue. Pure.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Resource;
use rollwright_crds::ActionQueue;
use serde_json::json;

use super::certificates::{Certificates, bytes};
use super::fetch::Names;
use super::stateful_set;
use super::validate::Validated;
use crate::identity::Issuer;
use crate::labels::{self, Component};
use crate::owner;
use crate::resources::{Prepared, State};
use crate::settings::Settings;

/// Ports of a queue.
pub(super) const CALLERS: i32 = 9460;
pub(super) const AGENTS: i32 = 9461;
pub(super) const METRICS: i32 = 9465;

/// By what a queue is known, and whom it knows. Kept current whatever else stands in its way.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) authority: Secret,
    pub(super) server: Secret,
    pub(super) agents: Secret,
    /// Keys of callers' tokens, once they are known.
    pub(super) keys: Option<ConfigMap>,
}

/// Everything that belongs to a queue.
#[derive(Debug)]
pub(super) struct QueueResources<S: State> {
    pub(super) identity: Identity,
    pub(super) metrics: Secret,
    pub(super) config: ConfigMap,
    pub(super) service: Service,
    pub(super) network_policy: NetworkPolicy,
    pub(super) stateful_set: StatefulSet,
    pub(super) state: S,
}

pub(super) fn identity(
    queue: &ActionQueue,
    certificates: &Certificates,
    issuer: Option<&Issuer>,
) -> Identity {
    let namespace = queue.metadata.namespace.as_deref().unwrap_or_default();
    let names = Names::of(queue.metadata.name.as_deref().unwrap_or_default());
    let meta = |name: &str| owner::metadata(queue, Component::Queue, namespace, name.to_owned());
    let bundle = certificates.authority.bundle();
    let leaf = |name: &str, leaf: &crate::pki::Leaf| Secret {
        metadata: ObjectMeta { annotations: Some(leaf.annotations()), ..meta(name) },
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(data([
            ("tls.crt", bytes(&leaf.certificate)),
            ("tls.key", bytes(&leaf.key)),
            ("ca.crt", bytes(&bundle)),
        ])),
        ..Secret::default()
    };
    Identity {
        authority: Secret {
            metadata: meta(&names.authority),
            type_: Some("kubernetes.io/tls".to_owned()),
            data: Some(certificates.authority.write()),
            ..Secret::default()
        },
        server: leaf(&names.server, &certificates.server),
        agents: leaf(&names.agents, &certificates.agents),
        keys: issuer.map(|issuer| issuer.config_map(meta(&names.keys))),
    }
}

pub(super) fn build(
    of: &Validated<'_>,
    certificates: &Certificates,
    settings: &Settings,
) -> Result<QueueResources<Prepared>, serde_yaml::Error> {
    let names = Names::of(of.name);
    let meta =
        |name: &str| owner::metadata(of.queue, Component::Queue, of.namespace, name.to_owned());
    let manifests = manifests(of)?;
    Ok(QueueResources {
        identity: identity(of.queue, certificates, Some(of.issuer)),
        metrics: Secret {
            metadata: meta(&names.metrics),
            data: Some(data([("token", ByteString(of.metrics_token.to_vec()))])),
            ..Secret::default()
        },
        config: ConfigMap {
            metadata: meta(&names.queue),
            data: Some([("manifests.yaml".to_owned(), manifests.clone())].into()),
            ..ConfigMap::default()
        },
        service: service(of, meta(&names.queue)),
        network_policy: network_policy(of, meta(&names.queue)),
        stateful_set: stateful_set::build(of, &names, meta(&names.queue), &manifests, settings),
        state: Prepared,
    })
}

fn data<const N: usize>(entries: [(&str, ByteString); N]) -> BTreeMap<String, ByteString> {
    entries.map(|(key, value)| (key.to_owned(), value)).into()
}

/// What the queue reads at its start: itself, its pools and its reward services, without metadata
/// that changes.
fn manifests(of: &Validated<'_>) -> Result<String, serde_yaml::Error> {
    let queue = json!({
        "apiVersion": rollwright_crds::ActionQueue::api_version(&()),
        "kind": "ActionQueue",
        "metadata": {"name": of.name, "namespace": of.namespace},
        "spec": of.queue.spec,
    });
    let pools = of.pools.iter().map(|pool| {
        json!({
            "apiVersion": rollwright_crds::ResourcePool::api_version(&()),
            "kind": "ResourcePool",
            "metadata": {"name": pool.metadata.name},
            "spec": pool.spec,
        })
    });
    let rewards = of.rewards.iter().map(|service| {
        json!({
            "apiVersion": rollwright_crds::RewardService::api_version(&()),
            "kind": "RewardService",
            "metadata": {"name": service.metadata.name, "namespace": of.namespace},
            "spec": service.spec,
        })
    });
    let documents = std::iter::once(queue).chain(pools).chain(rewards);
    let documents = documents.map(|of| serde_yaml::to_string(&of));
    Ok(documents.collect::<Result<Vec<_>, _>>()?.join("---\n"))
}

fn service(of: &Validated<'_>, metadata: ObjectMeta) -> Service {
    let port = |name: &str, port: i32| ServicePort {
        name: Some(name.to_owned()),
        port,
        target_port: Some(IntOrString::String(name.to_owned())),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    };
    Service {
        metadata,
        spec: Some(ServiceSpec {
            selector: Some(labels::selector(Component::Queue, of.name)),
            ports: Some(vec![
                port("callers", CALLERS),
                port("agents", AGENTS),
                port("metrics", METRICS),
            ]),
            type_: Some("ClusterIP".to_owned()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// Callers are pods of the cluster with a token. Agents are on the host network, so nothing can
/// be said of where they come from: they show a certificate. The queue itself dials nobody.
fn network_policy(of: &Validated<'_>, metadata: ObjectMeta) -> NetworkPolicy {
    let port = |port: &str| NetworkPolicyPort {
        port: Some(IntOrString::String(port.to_owned())),
        protocol: Some("TCP".to_owned()),
        end_port: None,
    };
    let pods = NetworkPolicyPeer {
        namespace_selector: Some(LabelSelector::default()),
        ..NetworkPolicyPeer::default()
    };
    NetworkPolicy {
        metadata,
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector {
                match_labels: Some(labels::selector(Component::Queue, of.name)),
                match_expressions: None,
            }),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: Some(vec![
                NetworkPolicyIngressRule {
                    ports: Some(vec![port("callers")]),
                    from: Some(vec![pods]),
                },
                NetworkPolicyIngressRule {
                    ports: Some(vec![port("agents"), port("metrics")]),
                    from: None,
                },
            ]),
            egress: Some(Vec::new()),
        }),
    }
}
