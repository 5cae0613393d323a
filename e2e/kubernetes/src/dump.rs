//! What is kept of a test that failed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;

use crate::namespace::Namespace;

/// Writes objects (no secrets), events, nodes and logs; returns where.
pub(crate) async fn write(namespace: &Namespace, test: &str) -> anyhow::Result<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let repository = repository.context("the crate is two folders down")?;
    let dir = repository.join("target/e2e-kubernetes").join(test);
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(dir.join("logs"))?;
    let kinds = namespace
        .kubectl()
        .run(&["api-resources", "--namespaced", "--verbs=list", "--output=name"])
        .await?;
    let kinds: Vec<_> =
        kinds.lines().filter(|kind| *kind != "secrets" && !kind.starts_with("events")).collect();
    keep(namespace, &dir, "objects.yaml", &["get", &kinds.join(","), "--output=yaml"]).await?;
    keep(namespace, &dir, "events.txt", &["get", "events", "--sort-by=.lastTimestamp"]).await?;
    keep(namespace, &dir, "pods.txt", &["describe", "pods"]).await?;
    keep(namespace, &dir, "nodes.txt", &["describe", "nodes"]).await?;
    keep(
        namespace,
        &dir,
        "pools.yaml",
        &["get", "resourcepools.rollwright.dev", "--ignore-not-found", "--output=yaml"],
    )
    .await?;
    for pod in namespace.api::<Pod>().list(&ListParams::default()).await? {
        let (Some(name), Some(spec)) = (pod.metadata.name, pod.spec) else { continue };
        for container in spec.init_containers.into_iter().flatten().chain(spec.containers) {
            let of = ["logs", &name, "--container", &container.name];
            let log = format!("logs/{name}-{}", container.name);
            keep(namespace, &dir, &format!("{log}.log"), &of).await?;
            let previous = [&of[..], &["--previous"]].concat();
            keep(namespace, &dir, &format!("{log}-previous.log"), &previous).await?;
        }
    }
    Ok(dir)
}

/// What a reader of the test's output needs first: pods and warnings, the newest last.
pub(crate) async fn summary(namespace: &Namespace) -> anyhow::Result<String> {
    let pods = namespace.kubectl().run(&["get", "pods", "--output=wide"]).await?;
    let warnings = ["get", "events", "--field-selector=type=Warning", "--sort-by=.lastTimestamp"];
    let warnings = namespace.kubectl().run(&warnings).await?;
    let lines: Vec<_> = warnings.lines().collect();
    let last = lines.len().saturating_sub(20);
    Ok([pods.lines().collect(), lines[last..].to_vec()].concat().join("\n"))
}

/// Keeps what `kubectl` says; its errors as well, since they belong to the picture.
async fn keep(
    namespace: &Namespace,
    dir: &Path,
    file: &str,
    arguments: &[&str],
) -> anyhow::Result<()> {
    let output = namespace.kubectl().output(arguments, "").await?;
    let text = [output.stdout, output.stderr].concat();
    if output.status.success() || !file.ends_with("-previous.log") {
        fs::write(dir.join(file), text)?;
    }
    Ok(())
}
