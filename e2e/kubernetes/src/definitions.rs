//! Our custom resources on the cluster.

use std::path::Path;

use crate::kubectl::Kubectl;

/// Applies `manifests/crds` and waits until the API server serves them.
pub async fn install_definitions(kubectl: &Kubectl) -> anyhow::Result<()> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/crds");
    let dir = format!("--filename={}", dir.display());
    kubectl.run(&["apply", "--server-side", &dir]).await?;
    kubectl.run(&["wait", "--for=condition=Established", "--timeout=5m", &dir]).await?;
    Ok(())
}
