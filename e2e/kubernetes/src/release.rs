//! The product as a user installs it: images, and the chart by helm.

use std::env;
use std::path::PathBuf;

use anyhow::Context as _;
use tokio::sync::OnceCell;

use crate::cluster::Cluster;
use crate::command::succeed;
use crate::images;

/// The namespace of the release.
pub const RELEASE: &str = "rollwright-system";
/// The tag of the images.
const TAG: &str = "e2e";

/// Installs the chart from this checkout, with images of the programs beside this test, once
/// per test program; waits for nothing.
pub async fn install_release(cluster: &Cluster) -> anyhow::Result<()> {
    static ONCE: OnceCell<()> = OnceCell::const_new();
    ONCE.get_or_try_init(|| install(cluster)).await.copied()
}

async fn install(cluster: &Cluster) -> anyhow::Result<()> {
    let state = cluster.lease().state();
    let mut images = cluster.outside("e2e/kubernetes/product-images.sh");
    succeed(images.arg(programs()?).arg(state)).await?;
    images::import(cluster, &state.join("product.tar")).await?;
    images::load(cluster, &sandbox_archive(cluster)).await?;
    install_chart(cluster).await
}

/// The archive with the image of sandboxes, once the release was installed.
pub fn sandbox_archive(cluster: &Cluster) -> PathBuf {
    cluster.lease().state().join("sandboxes.tar")
}

/// Installs the chart from this checkout; waits for nothing, not even that its images are there.
pub async fn install_chart(cluster: &Cluster) -> anyhow::Result<()> {
    let mut helm = cluster.program("/usr/bin/env");
    helm.args(["helm", "upgrade", "--install", "rollwright", "helm/rollwright"])
        // Other tests may have brought the definitions.
        .args(["--namespace", RELEASE, "--create-namespace", "--take-ownership"])
        .args(["--set", "image.repository=rollwright/rollwright"])
        .args(["--set", "agent.image.repository=rollwright/rollwright-agent"])
        .args(["--set", "agent.dind.image.repository=rollwright/dind"])
        .arg(format!("--set=image.tag={TAG},agent.image.tag={TAG},agent.dind.image.tag={TAG}"))
        // The node's own disk is a layer over the machine's, on which no engine can make others.
        .args(["--set", "agent.dind.data.emptyDir.sizeLimit=4Gi"])
        // The cluster has no volumes to give.
        .args(["--set", "controllers.ephemeralStorage=true"])
        // Nor GPUs: reward services have a fake of them.
        .args(["--set", "agent.gpu.fake=8:80Gi"]);
    succeed(&mut helm).await
}

/// Where cargo put the programs: beside the folder of this one.
fn programs() -> anyhow::Result<PathBuf> {
    if let Some(dir) = env::var_os("ROLLWRIGHT_PROGRAMS") {
        return Ok(dir.into());
    }
    let this = env::current_exe()?;
    let deps = this.parent().context("a program is in a folder")?;
    Ok(deps.parent().context("a test is in a folder of its own")?.to_owned())
}
