//! A real Prometheus that scrapes the product, asked what the dashboards and the alert rules ask.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use kube::api::ListParams;
use rollwright_e2e_kubernetes::{Http, Namespace, RELEASE, succeed, until};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Child;

/// In the cluster's network, where nobody else has it.
const ADDRESS: &str = "127.0.0.1:9090";

/// A Prometheus in the cluster's network.
pub(crate) struct Prometheus<'a> {
    namespace: &'a Namespace,
    process: Child,
    /// Its configuration and its data.
    dir: TempDir,
}

impl<'a> Prometheus<'a> {
    /// Starts the distribution's Prometheus with the configuration that the product brings. The
    /// distribution leaves the discovery of pods out: the test writes what that would find, and
    /// the rules that make labels of it are the product's.
    pub(crate) async fn start(namespace: &'a Namespace) -> anyhow::Result<Self> {
        let cluster = namespace.cluster();
        let dir = tempfile::tempdir()?;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = fs::read_to_string(root.join("manifests/monitoring/prometheus.yaml"))?;
        let mut configuration: Value = serde_yaml::from_str(&text)?;
        let token = dir.path().join("token");
        let release = Api::<Secret>::namespaced(namespace.client(), RELEASE);
        let secret = release.get("rollwright-metrics").await?.data.unwrap_or_default();
        fs::write(&token, &secret.get("token").context("no metrics token")?.0)?;
        let targets = dir.path().join("targets.json");
        fs::write(&targets, json!(targets_of(namespace).await?).to_string())?;
        configuration["global"]["scrape_interval"] = json!("1s");
        configuration["global"]["evaluation_interval"] = json!("1s");
        configuration["rule_files"] = json!([root.join("manifests/alerts/*.yaml")]);
        let scrape = &mut configuration["scrape_configs"][0];
        scrape["authorization"]["credentials_file"] = json!(token);
        let discovery = scrape.as_object_mut().and_then(|it| it.remove("kubernetes_sd_configs"));
        ensure!(discovery.is_some(), "pods are not discovered: {text}");
        scrape["file_sd_configs"] = json!([{"files": [targets]}]);
        let file = dir.path().join("prometheus.yaml");
        fs::write(&file, configuration.to_string())?;
        let log = fs::File::create(cluster.lease().state().join("logs/prometheus.log"))?;
        let process = cluster
            .program("/usr/bin/env")
            .args(["prometheus", &format!("--web.listen-address={ADDRESS}")])
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .stderr(log)
            .spawn()
            .context("Prometheus: apt-get install prometheus")?;
        Ok(Self { namespace, process, dir })
    }

    /// Waits until every query of every dashboard returns a number, every metric of the alert
    /// rules is scraped, and all rules are evaluated; none may fire. `of` says which metrics are
    /// meant, where the cluster does not have all of them.
    pub(crate) async fn shows_everything(mut self, of: [&str; 2]) -> anyhow::Result<()> {
        until("Prometheus shows everything", async || {
            let mut script = self.namespace.cluster().program("scripts/dashboard-queries.py");
            script.args(["--at", &format!("http://{ADDRESS}")]).args(of);
            let asked = succeed(&mut script).await;
            Ok(asked.map_err(|missing| format!("{missing:#}")))
        })
        .await?;
        let client = reqwest::Client::builder().no_proxy().build()?;
        let alerts = client.get(format!("http://{ADDRESS}/api/v1/alerts")).send().await?;
        let alerts: Value = serde_json::from_slice(&alerts.error_for_status()?.bytes().await?)?;
        let all = alerts["data"]["alerts"].as_array().context("no list of alerts")?;
        let firing: Vec<_> = all.iter().filter(|alert| alert["state"] == "firing").collect();
        ensure!(firing.is_empty(), "{firing:#?}");
        self.process.kill().await?;
        Ok(self.dir.close()?)
    }
}

/// The ports of the product's pods with the labels that the discovery of pods gives them.
async fn targets_of(namespace: &Namespace) -> anyhow::Result<Vec<Value>> {
    let ours = ListParams::default().labels("app.kubernetes.io/name=rollwright");
    let pods = Api::<Pod>::all(namespace.client()).list(&ours).await?;
    let mut targets = Vec::new();
    for pod in pods {
        let (meta, spec) = (pod.metadata, pod.spec.unwrap_or_default());
        let status = pod.status.unwrap_or_default();
        let mut labels = json!({
            "__meta_kubernetes_namespace": meta.namespace,
            "__meta_kubernetes_pod_name": meta.name,
            "__meta_kubernetes_pod_node_name": spec.node_name,
            "__meta_kubernetes_pod_phase": status.phase,
        });
        for (name, value) in meta.labels.unwrap_or_default() {
            let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            labels[format!("__meta_kubernetes_pod_label_{name}")] = json!(value);
        }
        let Some(address) = status.pod_ip else { continue };
        for port in spec.containers.into_iter().flat_map(|of| of.ports.unwrap_or_default()) {
            let mut labels = labels.clone();
            labels["__meta_kubernetes_pod_container_port_name"] = json!(port.name);
            let target = format!("{address}:{}", port.container_port);
            targets.push(json!({"targets": [target], "labels": labels}));
        }
    }
    Ok(targets)
}

/// What no rollout that goes well has: a sandbox that cannot be made, a refusal, and updates of the weights.
pub(crate) async fn faults_and_updates(
    namespace: &Namespace,
    job: &str,
    gateway: &Http,
    queue: &Http,
) -> anyhow::Result<()> {
    let job = format!("{}.{job}", namespace.name());
    let broken = json!({"trajectory_id": "broken", "job": job, "template": "broken"});
    ensure!(queue.post("/v1/trajectories", &broken).await.is_err(), "there is no such image");
    let refused = json!({"trajectory_id": "refused", "job": job, "template": "of-another-queue"});
    ensure!(queue.post("/v1/trajectories", &refused).await.is_err(), "there is no such template");
    let [begin, commit] = ["begin", "commit"].map(|step| format!("/rollout/v1/weights/{step}"));
    gateway.post(&begin, &json!({"version": 1, "transfer": "disk"})).await?;
    gateway.post(&commit, &json!({"version": 1, "path": "/var/lib"})).await?;
    gateway.post(&begin, &json!({"version": 2, "transfer": "store"})).await?;
    gateway.put("/rollout/v1/weights/2/buckets/model.safetensors", vec![7; 4096]).await?;
    // Its pod does not see what the gateway has pulled.
    let taken = gateway.post(&commit, &json!({"version": 2})).await;
    ensure!(taken.is_err(), "an engine took weights that it does not see");
    Ok(())
}
