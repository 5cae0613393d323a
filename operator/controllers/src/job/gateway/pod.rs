//! The pod of a gateway.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, HTTPGetAction,
    KeyToPath, PersistentVolumeClaimVolumeSource, PodSpec, PodTemplateSpec, Probe,
    ResourceRequirements, SecretVolumeSource, TCPSocketAction, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rollwright_crds::reward::SecretKey;

use super::{Facts, METRICS_PORT, PORT, identity_name, manifests, name};
use crate::audience::{self, AUDIENCE};
use crate::hardening;
use crate::labels::{self, Component};

const STATE: &str = "/var/lib/rollwright/gateway";
const MANIFESTS: &str = "/etc/rollwright/manifests";
const IDENTITY: &str = "/etc/rollwright/identity";
const KEYS: &str = "/etc/rollwright/keys";
const METRICS: &str = "/etc/rollwright/metrics";
const TOKEN: &str = "/var/run/secrets/rollwright";
const REWARDS: &str = "/etc/rollwright/rewards";

impl Facts<'_> {
    /// The pod; `hash` is of what the process reads only at its start.
    pub(super) fn pod(&self, hash: &str) -> PodTemplateSpec {
        PodTemplateSpec {
            metadata: Some(ObjectMeta {
                labels: Some(labels::of(Component::Gateway, self.job)),
                annotations: Some([(labels::CONFIG_HASH.to_owned(), hash.to_owned())].into()),
                ..ObjectMeta::default()
            }),
            spec: Some(PodSpec {
                containers: vec![self.container()],
                // It has no rights; its token shows a queue which namespace asks.
                service_account_name: Some("default".into()),
                automount_service_account_token: Some(false),
                enable_service_links: Some(false),
                security_context: Some(hardening::pod()),
                termination_grace_period_seconds: Some(60),
                volumes: Some(self.volumes()),
                ..PodSpec::default()
            }),
        }
    }

    fn container(&self) -> Container {
        let port = |name: &str, port: u16| ContainerPort {
            name: Some(name.to_owned()),
            container_port: port.into(),
            ..ContainerPort::default()
        };
        let mut ports = vec![port("http", PORT)];
        if self.metrics_token.is_some() {
            ports.push(port("metrics", METRICS_PORT));
        }
        let quantities = |cpu: &str, memory: &str| {
            let pairs = [("cpu", cpu), ("memory", memory)];
            Some(pairs.map(|(what, much)| (what.to_owned(), Quantity(much.to_owned()))).into())
        };
        Container {
            name: "gateway".into(),
            image: Some(self.settings.image.clone()),
            image_pull_policy: Some(self.settings.image_pull_policy.clone()),
            args: Some(self.args()),
            ports: Some(ports),
            // Reading back a large buffer takes its time.
            startup_probe: Some(Probe { failure_threshold: Some(150), ..self.probe(2) }),
            readiness_probe: Some(self.probe(5)),
            liveness_probe: Some(Probe { failure_threshold: Some(6), ..self.probe(10) }),
            resources: Some(ResourceRequirements {
                requests: quantities("100m", "256Mi"),
                ..ResourceRequirements::default()
            }),
            security_context: Some(hardening::container()),
            volume_mounts: Some(self.mounts()),
            ..Container::default()
        }
    }

    fn args(&self) -> Vec<String> {
        let mut args: Vec<String> = [
            "gateway",
            &format!("--filename={MANIFESTS}"),
            &format!("--job={}", self.job),
            &format!("--namespace={}", self.namespace),
            &format!("--listen=0.0.0.0:{PORT}"),
            &format!("--api-keys={KEYS}/api-keys"),
            &format!("--jwks={IDENTITY}/jwks.json"),
            &format!("--issuer={}", self.issuer.url),
            &format!("--audience={AUDIENCE}"),
            &format!("--own-audience={}", audience::of_gateway(self.namespace, self.job)),
            &format!("--operator={}", self.settings.operator()),
            &format!("--state-dir={STATE}"),
            "--workers-api",
        ]
        .map(str::to_owned)
        .into();
        if self.metrics_token.is_some() {
            args.push(format!("--metrics-addr=0.0.0.0:{METRICS_PORT}"));
            args.push(format!("--metrics-token-file={METRICS}/token"));
        }
        if let Some((namespace, queue)) = self.queue() {
            args.push(format!("--action-queue={queue}-queue.{namespace}.svc:9460"));
            args.push(format!("--queue-token-file={TOKEN}/token"));
        }
        for (reward, _) in self.reward_secrets() {
            args.push(format!("--reward-secret={reward}={REWARDS}/{reward}/token"));
        }
        args
    }

    /// Namespace and name of the queue that it calls.
    fn queue(&self) -> Option<(&str, &str)> {
        let queue = self.spec.action_queue.as_ref()?;
        Some((queue.namespace.as_deref().unwrap_or(self.namespace), &queue.name))
    }

    /// Rewards that show somebody a token, and where it is.
    fn reward_secrets(&self) -> impl Iterator<Item = (&str, &SecretKey)> {
        self.rewards.iter().filter_map(|reward| {
            let secret = reward.spec.serverless.as_ref()?.auth_secret.as_ref()?;
            Some((reward.metadata.name.as_deref()?, secret))
        })
    }

    fn probe(&self, period: i32) -> Probe {
        let mut probe =
            Probe { period_seconds: Some(period), timeout_seconds: Some(3), ..Probe::default() };
        if self.metrics_token.is_some() {
            probe.http_get = Some(HTTPGetAction {
                path: Some("/healthz".into()),
                port: IntOrString::String("metrics".into()),
                ..HTTPGetAction::default()
            });
        } else {
            let port = IntOrString::String("http".into());
            probe.tcp_socket = Some(TCPSocketAction { port, host: None });
        }
        probe
    }

    fn volumes(&self) -> Vec<Volume> {
        let of = |name: &str| Volume { name: name.to_owned(), ..Volume::default() };
        let item = |key: &str| KeyToPath { key: key.into(), path: key.into(), mode: None };
        let config = |name: String, keys: &[&str]| {
            Some(ConfigMapVolumeSource {
                name,
                items: Some(keys.iter().copied().map(item).collect()),
                ..ConfigMapVolumeSource::default()
            })
        };
        let secret = |name: String, items: Option<Vec<KeyToPath>>| {
            Some(SecretVolumeSource {
                secret_name: Some(name),
                items,
                ..SecretVolumeSource::default()
            })
        };
        let mut state = of("state");
        if self.claim().is_some() {
            state.persistent_volume_claim = Some(PersistentVolumeClaimVolumeSource {
                claim_name: name(self.job),
                read_only: None,
            });
        } else {
            state.empty_dir = Some(EmptyDirVolumeSource::default());
        }
        let gateway = name(self.job);
        let keys = secret(format!("{gateway}-keys"), None);
        let mut volumes = vec![
            state,
            // As a directory of its own: the gateway reads every file of it as manifests.
            Volume { config_map: config(name(self.job), &[manifests::FILE]), ..of("manifests") },
            Volume {
                config_map: config(identity_name(self.job), &["jwks.json", "issuer"]),
                ..of("identity")
            },
            Volume { secret: keys, ..of("keys") },
        ];
        // Whose pod stands behind the queue's name may show the token to nobody else.
        volumes.extend(self.queue().map(|(namespace, queue)| {
            hardening::token_volume("token", audience::of_queue(namespace, queue))
        }));
        if self.metrics_token.is_some() {
            let token = secret(format!("{gateway}-metrics"), None);
            volumes.push(Volume { secret: token, ..of("metrics") });
        }
        for (index, (_, key)) in self.reward_secrets().enumerate() {
            let item = KeyToPath { key: key.key.clone(), path: "token".into(), mode: None };
            let source = secret(key.name.to_string(), Some(vec![item]));
            volumes.push(Volume { secret: source, ..of(&format!("reward-{index}")) });
        }
        volumes
    }

    fn mounts(&self) -> Vec<VolumeMount> {
        let mount = |name: &str, path: String, read_only: bool| VolumeMount {
            name: name.to_owned(),
            mount_path: path,
            read_only: Some(read_only),
            ..VolumeMount::default()
        };
        let mut mounts = vec![
            mount("state", STATE.into(), false),
            mount("manifests", MANIFESTS.into(), true),
            mount("identity", IDENTITY.into(), true),
            mount("keys", KEYS.into(), true),
        ];
        if self.queue().is_some() {
            mounts.push(mount("token", TOKEN.into(), true));
        }
        if self.metrics_token.is_some() {
            mounts.push(mount("metrics", METRICS.into(), true));
        }
        for (index, (reward, _)) in self.reward_secrets().enumerate() {
            mounts.push(mount(&format!("reward-{index}"), format!("{REWARDS}/{reward}"), true));
        }
        mounts
    }
}
