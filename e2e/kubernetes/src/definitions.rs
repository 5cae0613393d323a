//! Our custom resources on the cluster.

use std::path::Path;

use crate::kubectl::Kubectl;
use crate::wait::until;

/// What the last of the policies refuses: once it does, all of them are in force.
const REFUSED: &str = "
apiVersion: rollwright.dev/v1alpha1
kind: ActionQueue
metadata: {name: probe}
spec:
  pools: [probe]
  templates: [{name: probe, image: probe, memory: 64Mi, env: {\"\": \"\"}}]
";

/// Applies the definitions and the chart's admission policies, and waits until the API server
/// goes by them.
pub async fn install_definitions(kubectl: &Kubectl) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let crds = format!("--filename={}", root.join("manifests/crds").display());
    // The chart may have brought them before.
    let apply = ["apply", "--server-side", "--force-conflicts"];
    kubectl.run(&[&apply[..], &[&crds]].concat()).await?;
    kubectl.run(&["wait", "--for=condition=Established", "--timeout=5m", &crds]).await?;
    let policies = root.join("helm/rollwright/files/admission");
    let policies = format!("--filename={}", policies.display());
    kubectl.run(&[&apply[..], &[&policies]].concat()).await?;
    until("the admission policies are in force", async || {
        Ok(match kubectl.apply_dry(REFUSED).await {
            Err(refusal) if refusal.to_string().contains("ValidatingAdmissionPolicy") => Ok(()),
            Err(other) => Err(format!("{other:#}")),
            Ok(_) => Err("not refused".into()),
        })
    })
    .await
}
