//! The StatefulSet of a queue. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{
    StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec,
};
use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, KeyToPath,
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PodSpec, PodTemplateSpec,
    ResourceRequirements, SecretVolumeSource, Volume, VolumeMount, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use super::build::{AGENTS, CALLERS, METRICS};
use super::certificates::agent_name;
use super::fetch::Names;
use super::validate::Validated;
use crate::apply::{hash, hex};
use crate::audience;
use crate::hardening;
use crate::labels::{self, CONFIG_HASH, Component, POOLS};
use crate::settings::{Settings, Storage};

/// Size of the claim for accepted actions and results.
const STATE_SIZE: &str = "10Gi";
/// Memory beside what the queue's own limit allows for outputs.
const BASE_MEMORY: u64 = 512 << 20;

pub(super) fn build(
    of: &Validated<'_>,
    names: &Names,
    metadata: ObjectMeta,
    manifests: &str,
    settings: &Settings,
) -> StatefulSet {
    let claims = of.claims.map_or_else(|| Vec::from_iter(claim(settings)), <[_]>::to_vec);
    let pools = of.queue.spec.pools.iter().map(ToString::to_string).collect::<Vec<_>>();
    let pools = (POOLS.to_owned(), pools.join(","));
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels::of(Component::Queue, of.name)),
            // A queue reads its manifests once: a change of them is a new pod.
            annotations: Some(
                [pools.clone(), (CONFIG_HASH.to_owned(), hex(&hash(&manifests)))].into(),
            ),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            containers: vec![container(of, settings)],
            security_context: Some(hardening::pod()),
            termination_grace_period_seconds: Some(30),
            volumes: Some(volumes(names, claims.is_empty())),
            ..PodSpec::default()
        }),
    };
    StatefulSet {
        metadata: ObjectMeta { annotations: Some([pools].into()), ..metadata },
        spec: Some(StatefulSetSpec {
            replicas: Some(1),
            // Of a pod that never gets ready a mended template takes the place at once.
            pod_management_policy: Some("Parallel".to_owned()),
            service_name: Some(names.queue.clone()),
            selector: LabelSelector {
                match_labels: Some(labels::selector(Component::Queue, of.name)),
                match_expressions: None,
            },
            template,
            volume_claim_templates: Some(claims).filter(|claims| !claims.is_empty()),
            // Results have no meaning without their queue.
            persistent_volume_claim_retention_policy: Some(
                StatefulSetPersistentVolumeClaimRetentionPolicy {
                    when_deleted: Some("Delete".to_owned()),
                    when_scaled: Some("Retain".to_owned()),
                },
            ),
            ..StatefulSetSpec::default()
        }),
        status: None,
    }
}

fn container(of: &Validated<'_>, settings: &Settings) -> Container {
    let port = |name: &str, port: i32| ContainerPort {
        name: Some(name.to_owned()),
        container_port: port,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    };
    let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    };
    let quantities = |cpu: Option<&str>, memory: u64| -> BTreeMap<String, Quantity> {
        let cpu = cpu.map(|cpu| ("cpu".to_owned(), Quantity(cpu.to_owned())));
        let memory = ("memory".to_owned(), Quantity(format!("{}Mi", memory.div_ceil(1 << 20))));
        cpu.into_iter().chain([memory]).collect()
    };
    let buffered = of.queue.spec.limits.max_buffered_bytes.bytes();
    Container {
        name: "queue".to_owned(),
        image: Some(settings.image.clone()),
        image_pull_policy: Some(settings.image_pull_policy.clone()),
        args: Some(args(of, settings)),
        ports: Some(vec![
            port("callers", CALLERS),
            port("agents", AGENTS),
            port("metrics", METRICS),
        ]),
        volume_mounts: Some(vec![
            mount("manifests", "/etc/rollwright/manifests", true),
            mount("identity", "/etc/rollwright/identity", true),
            mount("tls", "/etc/rollwright/tls", true),
            mount("metrics", "/etc/rollwright/metrics", true),
            mount("state", "/var/lib/rollwright", false),
        ]),
        resources: Some(ResourceRequirements {
            requests: Some(quantities(Some("250m"), 256 << 20)),
            limits: Some(quantities(None, BASE_MEMORY.saturating_add(buffered))),
            ..ResourceRequirements::default()
        }),
        // Its store is read at the start, which may take a while.
        startup_probe: Some(hardening::health_probe("metrics", 2, 150)),
        readiness_probe: Some(hardening::health_probe("metrics", 5, 3)),
        liveness_probe: Some(hardening::health_probe("metrics", 20, 3)),
        security_context: Some(hardening::container()),
        ..Container::default()
    }
}

fn args(of: &Validated<'_>, settings: &Settings) -> Vec<String> {
    let mut args = vec!["queue".to_owned()];
    let pairs = [
        ("--filename", "/etc/rollwright/manifests".to_owned()),
        ("--listen", format!("0.0.0.0:{CALLERS}")),
        ("--jwks", "/etc/rollwright/identity/jwks.json".to_owned()),
        ("--issuer", of.issuer.url.clone()),
        ("--own-audience", audience::of_queue(of.namespace, of.name)),
        ("--operator", settings.operator()),
        ("--link", format!("0.0.0.0:{AGENTS}")),
        ("--tls-cert", "/etc/rollwright/tls/tls.crt".to_owned()),
        ("--tls-key", "/etc/rollwright/tls/tls.key".to_owned()),
        ("--tls-client-ca", "/etc/rollwright/tls/ca.crt".to_owned()),
        ("--agent-name", agent_name(of.namespace, of.name)),
        ("--state-dir", "/var/lib/rollwright/queue".to_owned()),
        ("--metrics-addr", format!("0.0.0.0:{METRICS}")),
        ("--metrics-token-file", "/etc/rollwright/metrics/token".to_owned()),
        ("--log-format", "json".to_owned()),
    ];
    args.extend(pairs.into_iter().map(|(flag, value)| format!("{flag}={value}")));
    args
}

fn volumes(names: &Names, ephemeral: bool) -> Vec<Volume> {
    let config = |volume: &str, name: &str, key: &str| Volume {
        name: volume.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: name.to_owned(),
            items: Some(vec![KeyToPath { key: key.to_owned(), path: key.to_owned(), mode: None }]),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    };
    let secret = |volume: &str, name: &str| Volume {
        name: volume.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(name.to_owned()),
            default_mode: Some(0o440),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    };
    let mut volumes = vec![
        config("manifests", &names.queue, "manifests.yaml"),
        config("identity", &names.keys, "jwks.json"),
        secret("tls", &names.server),
        secret("metrics", &names.metrics),
    ];
    if ephemeral {
        volumes.push(Volume {
            name: "state".to_owned(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..Volume::default()
        });
    }
    volumes
}

fn claim(settings: &Settings) -> Option<PersistentVolumeClaim> {
    let storage_class_name = match &settings.storage {
        Storage::Ephemeral => return None,
        Storage::DefaultClass => None,
        Storage::Class(class) => Some(class.clone()),
    };
    let size: BTreeMap<String, Quantity> =
        [("storage".to_owned(), Quantity(STATE_SIZE.to_owned()))].into();
    Some(PersistentVolumeClaim {
        metadata: ObjectMeta { name: Some("state".to_owned()), ..ObjectMeta::default() },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            resources: Some(VolumeResourceRequirements { requests: Some(size), limits: None }),
            storage_class_name,
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    })
}
