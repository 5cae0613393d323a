//! Images of the machine's Docker engine, carried to the cluster.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tokio::process::Command;

use crate::cluster::Cluster;
use crate::command::succeed;

/// Makes an image for pods, `name`, of another one and a file at a path, and gives it to the node.
pub async fn pod_image(
    cluster: &Cluster,
    name: &str,
    from: &str,
    file: &Path,
    to: &str,
) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    fs::copy(file, dir.path().join("file")).with_context(|| format!("{}", file.display()))?;
    let recipe = format!("FROM {from}\nCOPY file {to}\n");
    fs::write(dir.path().join("Dockerfile"), recipe)?;
    let mut build = cluster.program("/usr/bin/env");
    succeed(build.args(["docker", "build", "-q", "-t", name]).arg(dir.path())).await?;
    to_pods(cluster, name).await
}

/// Gives an image to the node, for pods.
pub async fn to_pods(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let (_dir, archive) = save(cluster, name).await?;
    import(cluster, &archive).await
}

/// Gives an image to the node's own Docker engine, for sandboxes.
pub async fn to_sandboxes(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let (_dir, archive) = save(cluster, name).await?;
    load(cluster, &archive).await
}

async fn save(cluster: &Cluster, name: &str) -> anyhow::Result<(tempfile::TempDir, PathBuf)> {
    let dir = tempfile::tempdir()?;
    let archive = dir.path().join("image.tar");
    let mut save = cluster.program("/usr/bin/env");
    succeed(save.args(["docker", "save", "-o"]).arg(&archive).arg(name)).await?;
    Ok((dir, archive))
}

/// Imports an archive where the kubelet looks for images.
pub(crate) async fn import(cluster: &Cluster, archive: &Path) -> anyhow::Result<()> {
    let mut import = Command::from(cluster.lease().command("ctr"));
    succeed(import.args(["--namespace=k8s.io", "images", "import"]).arg(archive)).await
}

/// Loads an archive into the node's Docker engine.
pub(crate) async fn load(cluster: &Cluster, archive: &Path) -> anyhow::Result<()> {
    let mut load = Command::from(cluster.lease().command("docker"));
    succeed(load.args(["load", "--input"]).arg(archive)).await
}
