//! The gateway of a job and what belongs to it: pure.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolumeClaim, PersistentVolumeClaimSpec, Secret, Service, ServicePort,
    ServiceSpec, VolumeResourceRequirements,
};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rollwright_crds::{ActionQueue, ResourcePool, RewardService, RolloutJobSpec};

use crate::identity::Issuer;
use crate::labels::{self, Component};
use crate::settings::{Settings, Storage};

mod fence;
mod manifests;
mod pod;

/// Port for trainers and agents.
pub const PORT: u16 = 9470;
/// Port of `/metrics` and `/healthz`.
pub const METRICS_PORT: u16 = 9466;
/// What a gateway keeps: its buffer, and weights on their way.
const DISK: &str = "20Gi";
/// Key of a job's API key in its Secret.
pub const API_KEY: &str = "api-key";

/// What a gateway is built from.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Namespace of the job.
    pub namespace: &'a str,
    /// Name of the job.
    pub job: &'a str,
    /// The job as owner.
    pub owner: &'a OwnerReference,
    /// What it asks for.
    pub spec: &'a RolloutJobSpec,
    /// The pools that it names.
    pub pools: &'a [ResourcePool],
    /// What scores for it.
    pub rewards: &'a [RewardService],
    /// Queues and pools that its rewards name.
    pub queues: &'a [ActionQueue],
    /// The pools of those queues.
    pub queue_pools: &'a [ResourcePool],
    /// Who signs tokens.
    pub issuer: &'a Issuer,
    /// The job's API key.
    pub api_key: &'a [u8],
    /// Token of `/metrics`, where the release has one.
    pub metrics_token: Option<&'a [u8]>,
    /// What the controllers were told.
    pub settings: &'a Settings,
}

/// All objects of a gateway; to be applied in this order.
#[derive(Clone, Debug, PartialEq)]
pub struct Objects {
    /// What it keeps, where it is to survive the pod.
    pub claim: Option<PersistentVolumeClaim>,
    /// What it reads at its start.
    pub config: ConfigMap,
    /// Where callers find it.
    pub service: Service,
    /// Who reaches the workers: it alone.
    pub fence: NetworkPolicy,
    /// The process.
    pub stateful_set: StatefulSet,
}

/// What a gateway reads while it runs, to know its callers: kept up to date also while nothing
/// else of it can be built.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    /// The keys of tokens.
    pub config: ConfigMap,
    /// `JOB:KEY` of its callers.
    pub keys: Secret,
    /// Token of `/metrics`.
    pub metrics: Option<Secret>,
}

/// Name of the gateway's objects.
pub fn name(job: &str) -> String {
    format!("{job}-gateway")
}

/// Name of the ConfigMap with the keys of tokens.
fn identity_name(job: &str) -> String {
    format!("{}-identity", name(job))
}

/// Name of the Secret with the job's API key.
pub fn api_key_name(job: &str) -> String {
    format!("{job}-api-key")
}

/// Where callers in the cluster find it: `HOST:PORT`.
pub fn endpoint(namespace: &str, job: &str) -> String {
    format!("{}.{namespace}.svc:{PORT}", name(job))
}

/// Builds all of it.
pub fn build(facts: &Facts<'_>) -> Result<Objects, serde_yaml::Error> {
    let documents = manifests::documents(facts)?;
    let hash = short_hash(&documents);
    Ok(Objects {
        claim: facts.claim(),
        config: facts.config(documents),
        service: facts.service(),
        fence: fence::workers(facts),
        stateful_set: facts.stateful_set(&hash),
    })
}

/// Builds what it reads while it runs.
pub fn identity(facts: &Facts<'_>) -> Identity {
    Identity {
        config: facts.issuer.config_map(facts.metadata(identity_name(facts.job))),
        keys: facts.secret("keys", "api-keys", facts.key_line()),
        metrics: facts.metrics_token.map(|token| facts.secret("metrics", "token", token.to_vec())),
    }
}

/// The Secret with a new API key: made once, and then the user's to change.
pub fn api_key(namespace: &str, job: &str, owner: &OwnerReference, key: Vec<u8>) -> Secret {
    let metadata = ObjectMeta {
        name: Some(api_key_name(job)),
        namespace: Some(namespace.to_owned()),
        labels: Some(labels::of(Component::Gateway, job)),
        owner_references: Some(vec![owner.clone()]),
        ..ObjectMeta::default()
    };
    let data = BTreeMap::from([(API_KEY.to_owned(), ByteString(key))]);
    Secret { metadata, data: Some(data), ..Secret::default() }
}

/// The beginning of a hash of what is built, in hexadecimal.
pub(super) fn short_hash<T: serde::Serialize>(built: &T) -> String {
    let first = crate::apply::hash(built).first_chunk().copied().unwrap_or_default();
    format!("{:016x}", u64::from_be_bytes(first))
}

impl Facts<'_> {
    fn metadata(&self, name: String) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.namespace.to_owned()),
            labels: Some(labels::of(Component::Gateway, self.job)),
            owner_references: Some(vec![self.owner.clone()]),
            ..ObjectMeta::default()
        }
    }

    fn selector(&self) -> LabelSelector {
        LabelSelector {
            match_labels: Some(labels::selector(Component::Gateway, self.job)),
            ..LabelSelector::default()
        }
    }

    fn claim(&self) -> Option<PersistentVolumeClaim> {
        let class = match &self.settings.storage {
            Storage::DefaultClass => None,
            Storage::Class(class) => Some(class.clone()),
            Storage::Ephemeral => return None,
        };
        Some(PersistentVolumeClaim {
            metadata: self.metadata(name(self.job)),
            spec: Some(PersistentVolumeClaimSpec {
                access_modes: Some(vec!["ReadWriteOnce".into()]),
                storage_class_name: class,
                resources: Some(VolumeResourceRequirements {
                    requests: Some([("storage".to_owned(), Quantity(DISK.into()))].into()),
                    limits: None,
                }),
                ..PersistentVolumeClaimSpec::default()
            }),
            status: None,
        })
    }

    fn config(&self, documents: String) -> ConfigMap {
        ConfigMap {
            metadata: self.metadata(name(self.job)),
            data: Some([(manifests::FILE.to_owned(), documents)].into()),
            ..ConfigMap::default()
        }
    }

    /// As the gateway reads it: `JOB:KEY`.
    fn key_line(&self) -> Vec<u8> {
        let mut line = format!("{}:", self.job).into_bytes();
        line.extend(self.api_key.trim_ascii());
        line.push(b'\n');
        line
    }

    fn secret(&self, suffix: &str, key: &str, value: Vec<u8>) -> Secret {
        Secret {
            metadata: self.metadata(format!("{}-{suffix}", name(self.job))),
            data: Some([(key.to_owned(), ByteString(value))].into()),
            ..Secret::default()
        }
    }

    fn service(&self) -> Service {
        Service {
            metadata: self.metadata(name(self.job)),
            spec: Some(ServiceSpec {
                selector: Some(labels::selector(Component::Gateway, self.job)),
                ports: Some(vec![ServicePort {
                    name: Some("http".into()),
                    port: PORT.into(),
                    target_port: Some(IntOrString::String("http".into())),
                    ..ServicePort::default()
                }]),
                ..ServiceSpec::default()
            }),
            status: None,
        }
    }

    /// Two at once would be two books over the same workers and the same disk: of a StatefulSet
    /// there is at most one pod, also while its node cannot be asked whether that still runs.
    fn stateful_set(&self, hash: &str) -> StatefulSet {
        StatefulSet {
            metadata: self.metadata(name(self.job)),
            spec: Some(StatefulSetSpec {
                replicas: Some(1),
                // Of a pod that never gets ready a mended template takes the place at once.
                pod_management_policy: Some("Parallel".into()),
                service_name: Some(name(self.job)),
                selector: self.selector(),
                template: self.pod(hash),
                ..StatefulSetSpec::default()
            }),
            status: None,
        }
    }
}

#[cfg(test)]
mod tests;
