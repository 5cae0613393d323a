//! The pod of a worker: pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource,
    HTTPGetAction, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    ObjectFieldSelector, PersistentVolumeClaimVolumeSource, Pod, PodSecurityContext, PodSpec,
    PodTemplateSpec, Probe, ResourceRequirements, SeccompProfile, SecretKeySelector,
    SecurityContext, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rollwright_crds::Name;
use rollwright_crds::engine::{Engine, Model};
use sha2::{Digest as _, Sha256};

use super::engine::{self, Place};
use super::fleet::{Kind, Pool};
use super::plan::Placement;
use crate::labels::{self, Component};
use crate::pool::GPU;
use rollwright_core::router::Role;

/// On workers: hash of what they were made from; another one is replaced.
pub const TEMPLATE: &str = "rollwright.dev/template";
/// On workers: the nodes that they are for, with commas between them.
pub const NODES: &str = "rollwright.dev/nodes";
/// On workers: class of their GPUs, also when their pool is gone.
pub const CLASS: &str = "rollwright.dev/class";
/// On workers: since when they are drained (RFC 3339).
pub const DRAINING: &str = "rollwright.dev/draining-since";
/// Labels with this prefix pass from the job to its workers.
const KUEUE: &str = "kueue.x-k8s.io/";
/// The engine's container.
pub const CONTAINER: &str = "engine";
/// Path on which an engine says that it can serve.
const HEALTH: &str = "/health";
/// Loading a large model from a slow disk takes this long at most, in seconds.
const LONGEST_START: i32 = 3600;
/// Between two probes, in seconds.
const PROBE_PERIOD: i32 = 5;

/// What all workers of a job are made from.
#[derive(Clone, Debug)]
pub struct Template<'a> {
    /// Namespace of the job.
    pub namespace: &'a str,
    /// Name of the job.
    pub job: &'a str,
    /// The job as owner.
    pub owner: &'a OwnerReference,
    /// Labels of the job.
    pub labels: &'a BTreeMap<String, String>,
    /// What is served.
    pub model: &'a Model,
    /// What serves it.
    pub engine: &'a Engine,
    /// The job's pools.
    pub pools: &'a BTreeMap<Name, Pool>,
}

/// Which part of a worker a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// The first of so many nodes.
    Leader(usize),
    /// Another of so many nodes.
    Follower(usize),
}

impl Template<'_> {
    /// Hash of what a worker of this kind is made from.
    pub fn hash(&self, kind: &Kind) -> String {
        let facts = serde_json::json!([
            self.model,
            self.engine_facts(),
            self.kueue(),
            kind.degree,
            kind.role.as_str()
        ]);
        super::gateway::short_hash(&facts)
    }

    /// What of the engine a worker's pod depends on: `slots` and `reloadPath` are the gateway's.
    fn engine_facts(&self) -> serde_json::Value {
        let Engine {
            kind,
            image,
            args,
            env,
            secret_env,
            quantization,
            port,
            slots: _,
            reload_path: _,
        } = self.engine;
        serde_json::json!([kind, image, args, env, secret_env, quantization, port])
    }

    /// The labels by which Kueue admits the workers.
    fn kueue(&self) -> BTreeMap<&String, &String> {
        self.labels.iter().filter(|(key, _)| key.starts_with(KUEUE)).collect()
    }

    /// Labels of a worker's objects.
    pub fn labels_of(&self, kind: &Kind) -> BTreeMap<String, String> {
        let mut all = labels::of(Component::Worker, self.job);
        let own = [
            (labels::JOB, self.job.to_owned()),
            (labels::POOL, kind.pool.to_string()),
            (labels::DEGREE, kind.degree.to_string()),
            (labels::ROLE, kind.role.as_str().to_owned()),
            (TEMPLATE, self.hash(kind)),
        ];
        all.extend(own.map(|(key, value)| (key.to_owned(), value)));
        all.extend(self.kueue().into_iter().map(|(key, value)| (key.clone(), value.clone())));
        all
    }

    /// Annotations of a worker's objects.
    pub fn annotations_of(&self, placement: &Placement) -> BTreeMap<String, String> {
        let class = self.pools.get(&placement.kind.pool).map(|pool| pool.class.to_string());
        let nodes = (NODES.to_owned(), placement.nodes.join(","));
        class.map(|class| (CLASS.to_owned(), class)).into_iter().chain([nodes]).collect()
    }

    /// The pod of a worker on one node.
    pub fn pod(&self, name: &str, placement: &Placement) -> Pod {
        let template = self.pod_template(placement, Part::Whole);
        let mut metadata = template.metadata.unwrap_or_default();
        metadata.name = Some(name.to_owned());
        metadata.namespace = Some(self.namespace.to_owned());
        metadata.owner_references = Some(vec![self.owner.clone()]);
        Pod { metadata, spec: template.spec, status: None }
    }

    /// The pod of one node of a worker.
    pub fn pod_template(&self, placement: &Placement, part: Part) -> PodTemplateSpec {
        let kind = &placement.kind;
        PodTemplateSpec {
            metadata: Some(ObjectMeta {
                labels: Some(self.labels_of(kind)),
                annotations: Some(self.annotations_of(placement)),
                ..ObjectMeta::default()
            }),
            spec: Some(PodSpec {
                containers: vec![self.container(kind, part)],
                affinity: Some(on_nodes(&placement.nodes)),
                automount_service_account_token: Some(false),
                enable_service_links: Some(false),
                // A worker that fails starts again on its GPUs, ever later.
                restart_policy: Some("Always".into()),
                security_context: Some(PodSecurityContext {
                    seccomp_profile: Some(SeccompProfile {
                        type_: "RuntimeDefault".into(),
                        localhost_profile: None,
                    }),
                    ..PodSecurityContext::default()
                }),
                // It was drained before it is deleted.
                termination_grace_period_seconds: Some(30),
                tolerations: Some(vec![Toleration {
                    key: Some(GPU.into()),
                    operator: Some("Exists".into()),
                    ..Toleration::default()
                }]),
                volumes: Some(self.volumes()),
                ..PodSpec::default()
            }),
        }
    }

    fn container(&self, kind: &Kind, part: Part) -> Container {
        let (nodes, leads) = match part {
            Part::Whole => (1, true),
            Part::Leader(nodes) => (nodes, true),
            Part::Follower(nodes) => (nodes, false),
        };
        let place = Place { degree: kind.degree, role: kind.role, nodes, leads };
        let line = engine::command_line(self.model, self.engine, place);
        let gpus = Quantity((kind.degree / nodes.max(1) as u32).to_string());
        let gpus = BTreeMap::from([(GPU.to_owned(), gpus)]);
        Container {
            name: CONTAINER.into(),
            image: Some(self.engine.image.clone()),
            command: Some(line.command).filter(|command| !command.is_empty()),
            args: Some(line.args).filter(|args| !args.is_empty()),
            env: Some(self.env(line.env)),
            ports: Some(ports(self.engine.port, kind.role, leads)),
            readiness_probe: leads.then(|| probe(self.engine.port, 2)),
            // Loading takes long; until it is through, nothing else is asked.
            startup_probe: leads.then(|| probe(self.engine.port, LONGEST_START / PROBE_PERIOD)),
            // A full queue answers late: only one that says nothing for 2 minutes is ended.
            liveness_probe: leads.then(|| Probe {
                timeout_seconds: Some(10),
                period_seconds: Some(20),
                ..probe(self.engine.port, 6)
            }),
            resources: Some(ResourceRequirements {
                limits: Some(gpus.clone()),
                requests: Some(gpus),
                ..ResourceRequirements::default()
            }),
            // The images are others': they choose their user and write where they like.
            security_context: Some(SecurityContext {
                allow_privilege_escalation: Some(false),
                capabilities: Some(Capabilities {
                    drop: Some(vec!["ALL".into()]),
                    ..Capabilities::default()
                }),
                ..SecurityContext::default()
            }),
            volume_mounts: Some(self.mounts()),
            ..Container::default()
        }
    }

    /// The user's variables come last: the later of two counts.
    fn env(&self, ours: Vec<(&'static str, String)>) -> Vec<EnvVar> {
        let plain = |name: &str, value: String| EnvVar {
            name: name.to_owned(),
            value: Some(value),
            value_from: None,
        };
        let address = EnvVar {
            name: "POD_IP".into(),
            value: None,
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    field_path: "status.podIP".into(),
                    ..ObjectFieldSelector::default()
                }),
                ..EnvVarSource::default()
            }),
        };
        let secret = self.engine.secret_env.iter().map(|(name, of)| EnvVar {
            name: name.clone(),
            value: None,
            value_from: Some(EnvVarSource {
                secret_key_ref: Some(SecretKeySelector {
                    name: of.name.to_string(),
                    key: of.key.clone(),
                    optional: None,
                }),
                ..EnvVarSource::default()
            }),
        });
        let theirs = self.engine.env.iter().map(|(name, value)| plain(name, value.clone()));
        let ours = ours.into_iter().map(|(name, value)| plain(name, value));
        let mut all: Vec<EnvVar> = std::iter::once(address).chain(ours).collect();
        for variable in theirs.chain(secret) {
            all.retain(|other| other.name != variable.name);
            all.push(variable);
        }
        all
    }

    fn volumes(&self) -> Vec<Volume> {
        // The processes of one engine share memory; Docker's 64 MiB are too little.
        let memory = EmptyDirVolumeSource { medium: Some("Memory".into()), size_limit: None };
        let mut volumes =
            vec![Volume { name: "shm".into(), empty_dir: Some(memory), ..Volume::default() }];
        if let Some(volume) = &self.model.volume {
            volumes.push(Volume {
                name: "model".into(),
                persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                    claim_name: volume.claim.to_string(),
                    read_only: Some(true),
                }),
                ..Volume::default()
            });
        }
        volumes
    }

    fn mounts(&self) -> Vec<VolumeMount> {
        let mount = |name: &str, path: &str, read_only| VolumeMount {
            name: name.to_owned(),
            mount_path: path.to_owned(),
            read_only,
            ..VolumeMount::default()
        };
        let model = self.model.volume.iter();
        let model = model.map(|volume| mount("model", &volume.mount_path, Some(true)));
        std::iter::once(mount("shm", "/dev/shm", None)).chain(model).collect()
    }
}

fn ports(port: u16, role: Role, leads: bool) -> Vec<ContainerPort> {
    let named = |name: &str, port: u16| ContainerPort {
        name: Some(name.to_owned()),
        container_port: port.into(),
        ..ContainerPort::default()
    };
    let mut ports = Vec::new();
    if leads {
        ports.push(named("http", port));
    }
    if role != Role::Mixed {
        ports.push(named("handshake", engine::HANDSHAKE_PORT));
        ports.push(named("bootstrap", engine::BOOTSTRAP_PORT));
    }
    ports
}

fn probe(port: u16, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(HEALTH.into()),
            port: IntOrString::Int(port.into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(PROBE_PERIOD),
        timeout_seconds: Some(5),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

/// On these nodes and no others. The scheduler still has the last word on whether there is room.
fn on_nodes(nodes: &[String]) -> Affinity {
    let term = |node: &String| NodeSelectorTerm {
        match_fields: Some(vec![NodeSelectorRequirement {
            key: "metadata.name".into(),
            operator: "In".into(),
            values: Some(vec![node.clone()]),
        }]),
        ..NodeSelectorTerm::default()
    };
    Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: nodes.iter().map(term).collect(),
            }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    }
}

/// A name for a new worker: `nonce` is different at each attempt, so that a worker that comes
/// after another is never taken for it.
pub fn name(job: &str, uid: &str, nonce: i128, index: usize) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let digest = Sha256::digest(format!("{uid}/{nonce}/{index}"));
    let letters = digest[..8].iter().map(|byte| char::from(ALPHABET[usize::from(byte & 31)]));
    format!("{job}-worker-{}", letters.collect::<String>())
}

#[cfg(test)]
mod tests;
