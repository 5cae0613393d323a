//! The plain mode: `docker update` and `docker exec`.

use std::time::Duration;

use rollwright_proto::v1::ExecMode;
use rollwright_proto::v1::fault::Kind;

use crate::common::{TestNode, action, fault, finished, spec};

#[tokio::test]
async fn actions_run_through_dockers_own_calls() {
    let Some(mut node) = TestNode::start().await else { return };
    let mut template = spec();
    template.exec_mode = ExecMode::Docker.into();
    node.open("t", template).await.unwrap();
    let line = "id -u; echo $FROM_IMAGE $ROLLWRIGHT_CPUS; exit 5";
    let (output, ended) = node.run(action("a", "t", line)).await;
    assert_eq!(output, "1000\nyes 1\n");
    assert_eq!(finished(&ended).exit_code, Some(5));
    assert_eq!(node.inspect("{{.HostConfig.CpusetCpus}} {{.HostConfig.CpuShares}}"), "0 1024");
    let mut slow = action("slow", "t", "setsid sleep 1000 & sleep 1000");
    slow.timeout = Some(Duration::from_millis(500).try_into().unwrap());
    let (_, ended) = node.run(slow).await;
    assert_eq!(fault(&ended).kind(), Kind::Timeout);
    let (output, _) = node.run(action("look", "t", "ps | grep -c '[s]leep 1000'")).await;
    assert_eq!(output, "0\n");
    let mut cut = action("cut", "t", "yes | head -c 100000");
    cut.output_limit = 100;
    let (output, ended) = node.run(cut).await;
    assert_eq!(output.len(), 200);
    assert_eq!(finished(&ended).usage.unwrap().output_dropped_bytes, 99_800);
    node.finish().await;
}
