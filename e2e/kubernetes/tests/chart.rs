//! The chart on a real API server.

use rollwright_e2e_kubernetes::{RELEASE, install_release, succeed, test};

#[test]
fn the_chart_lives_and_gives_no_more_rights_than_are_written_down() -> anyhow::Result<()> {
    test("chart", async |namespace| {
        let cluster = namespace.cluster();
        // A cluster that another run used has what this one brings.
        let mut uninstall = cluster.program("/usr/bin/env");
        uninstall.args(["helm", "uninstall", "rollwright", "--namespace", RELEASE]);
        succeed(uninstall.arg("--ignore-not-found")).await?;
        for definition in ["manifests/crds", "helm/rollwright/files/admission"] {
            let mut delete = cluster.program("/usr/bin/env");
            delete.args(["kubectl", "delete", "--ignore-not-found", "--filename", definition]);
            succeed(&mut delete).await?;
        }
        succeed(&mut cluster.program("helm/rollwright/tests/lifecycle.sh")).await?;
        install_release(cluster).await?;
        succeed(&mut cluster.program("helm/rollwright/tests/rights.sh")).await
    })
}
