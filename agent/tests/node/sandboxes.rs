//! What a sandbox is made of, and that it goes.

use rollwright_proto::v1::fault::Kind;
use rollwright_proto::v1::queue_message::Message as FromQueue;
use rollwright_proto::v1::{Tmpfs, WarmSandboxes};

use crate::common::{TestNode, action, env, finished, shell, spec, until};

#[tokio::test]
async fn a_template_becomes_a_confined_container() {
    let Some(mut node) = TestNode::start().await else { return };
    let mut template = spec();
    template.read_only_root = true;
    template.io_write_bps = 10 << 20;
    template.tmpfs = vec![Tmpfs { path: "/scratch".into(), size_bytes: 1 << 20 }];
    let ready = node.open("t", template).await.unwrap();
    assert!(!ready.warm && ready.times.unwrap().start_s > 0.0);
    for (format, wanted) in [
        ("{{.HostConfig.Privileged}}", "false"),
        ("{{.HostConfig.Memory}} {{.HostConfig.MemorySwap}}", "67108864 67108864"),
        ("{{.HostConfig.PidsLimit}}", "64"),
        ("{{.HostConfig.CapDrop}}", "[ALL]"),
        ("{{len .HostConfig.CapAdd}}", "4"),
        ("{{.HostConfig.SecurityOpt}}", "[no-new-privileges:true]"),
        ("{{.HostConfig.ReadonlyRootfs}}", "true"),
        ("{{.HostConfig.NetworkMode}}", "none"),
        ("{{.HostConfig.PidMode}}{{.HostConfig.UTSMode}}", ""),
        ("{{.HostConfig.IpcMode}}", "private"),
        ("{{len .Mounts}}", "2"),
        ("{{index .HostConfig.Tmpfs \"/scratch\"}}", "rw,exec,nosuid,nodev,size=1048576,mode=1777"),
        ("{{(index .HostConfig.BlkioDeviceWriteBps 0).Rate}}", "10485760"),
        ("{{index .Config.Labels \"rollwright.dev/trajectory\"}}", "t"),
    ] {
        assert_eq!(node.inspect(format), wanted, "{format}");
    }
    let line = "id -u; touch w /scratch/x && echo wrote; touch /x 2>/dev/null || echo closed";
    let (output, ended) = node.run(action("a", "t", line)).await;
    assert_eq!(output, "1000\nwrote\nclosed\n");
    assert_eq!(finished(&ended).exit_code, Some(0));
    let (output, _) =
        node.run(action("b", "t", "touch /.rollwright/run/x 2>/dev/null || echo closed")).await;
    assert_eq!(output, "closed\n");
    node.close("t").await;
    assert!(node.containers().is_empty());
    node.finish().await;
}

#[tokio::test]
async fn the_nodes_policy_comes_before_anything() {
    let start = TestNode::start_with(|config| config.policy.images = vec!["safe/*".into()]);
    let Some(mut node) = start.await else { return };
    let fault = node.open("t", spec()).await.unwrap_err();
    assert_eq!((fault.kind(), fault.reason.as_str()), (Kind::User, "PolicyRefused"));
    assert!(node.containers().is_empty());
    let Some(mut other) = TestNode::start().await else { return };
    let mut template = spec();
    template.disk_bytes = 1 << 20;
    let fault = other.open("t", template).await.map(drop);
    // Where the driver can bound the disk this opens; here it says what would be right.
    if let Err(fault) = fault {
        assert_eq!(fault.reason, "DiskLimitUnsupported");
        assert!(fault.message.contains("pquota"));
    }
    other.finish().await;
    node.finish().await;
}

#[tokio::test]
async fn warm_sandboxes_are_taken_refilled_and_given_up() {
    let Some(mut node) = TestNode::start().await else { return };
    let mut template = spec();
    template.env = env(&[("WHO", "template")]);
    template.setup = vec![rollwright_proto::v1::SetupCommand {
        command: Some(shell("echo $WHO > made")),
        timeout: None,
    }];
    let warm = |count| WarmSandboxes { spec: Some(template.clone()), count };
    node.say(FromQueue::WarmSandboxes(warm(2))).await;
    let metrics = std::sync::Arc::clone(&node.metrics);
    let ready = |count| until_gauge(&metrics, "warm", count);
    ready(2).await;
    assert_eq!(node.containers().len(), 2);
    let mut own = template.clone();
    own.env = env(&[("WHO", "trajectory")]);
    assert!(node.open("t", own).await.unwrap().warm);
    let (output, _) = node.run(action("a", "t", "echo $WHO; cat made; echo $FROM_IMAGE")).await;
    assert_eq!(output, "trajectory\ntemplate\nyes\n");
    ready(2).await;
    assert_eq!(node.containers().len(), 3);
    node.say(FromQueue::WarmSandboxes(warm(0))).await;
    node.until_containers(1).await;
    node.finish().await;
}

async fn until_gauge(metrics: &rollwright_agent::metrics::Metrics, state: &str, count: i64) {
    until(|| metrics.sandboxes.with_label_values(&[state]).get() == count).await;
}

#[tokio::test]
async fn an_idle_sandbox_is_closed_and_a_busy_one_is_not() {
    let Some(mut node) = TestNode::start().await else { return };
    let mut template = spec();
    template.idle_ttl = Some(std::time::Duration::from_millis(300).try_into().unwrap());
    node.open("t", template).await.unwrap();
    let (_, ended) = node.run(action("a", "t", "sleep 1")).await;
    assert_eq!(finished(&ended).exit_code, Some(0));
    let fault = node.lost("t").await;
    assert_eq!((fault.kind(), fault.reason.as_str()), (Kind::Timeout, "SandboxIdle"));
    node.until_containers(0).await;
    node.finish().await;
}

#[tokio::test]
async fn a_sandbox_removed_from_under_us_is_one_fault() {
    let Some(mut node) = TestNode::start().await else { return };
    node.open("t", spec()).await.unwrap();
    node.say(FromQueue::StartAction(action("a", "t", "sleep 1000"))).await;
    node.started("a").await;
    let name = node.containers().remove(0);
    crate::common::docker(&["rm", "-f", &name]).unwrap();
    let ended = node.ended("a").await;
    assert_eq!(crate::common::fault(&ended).kind(), Kind::Infrastructure);
    assert!(!ended.not_started);
    assert_eq!(node.lost("t").await.kind(), Kind::Infrastructure);
    // A start that comes too late surely did not run.
    let (_, late) = node.run(action("b", "t", "true")).await;
    assert!(late.not_started);
    node.finish().await;
}

#[tokio::test]
async fn closing_ends_what_runs_and_what_is_being_made() {
    let Some(mut node) = TestNode::start().await else { return };
    node.open("t", spec()).await.unwrap();
    node.say(FromQueue::StartAction(action("a", "t", "sleep 1000"))).await;
    node.started("a").await;
    node.close("t").await;
    assert_eq!(crate::common::fault(&node.ended("a").await).kind(), Kind::Cancelled);
    let mut slow = spec();
    slow.setup = vec![rollwright_proto::v1::SetupCommand {
        command: Some(shell("sleep 1000")),
        timeout: None,
    }];
    let open = rollwright_proto::v1::OpenSandbox { trajectory_id: "u".into(), spec: Some(slow) };
    node.say(FromQueue::OpenSandbox(open)).await;
    node.until_containers(1).await;
    node.close("u").await;
    node.close("never-opened").await;
    node.until_containers(0).await;
    node.finish().await;
}

#[tokio::test]
async fn a_low_disk_ends_the_sandbox_that_wrote_most() {
    // Less than so much is always free: the disk counts as low from the start.
    let start = TestNode::start_with(|config| config.policy.min_free_disk_bytes = u64::MAX);
    let Some(mut node) = start.await else { return };
    node.open("small", spec()).await.unwrap();
    node.open("large", spec()).await.unwrap();
    let fill = "dd if=/dev/zero of=file bs=1M count=8 && sleep 1000";
    node.say(FromQueue::StartAction(action("a", "large", fill))).await;
    let fault = node.lost("large").await;
    assert_eq!((fault.kind(), fault.reason.as_str()), (Kind::Infrastructure, "DiskPressure"));
    assert!(fault.message.contains("diskBytes"), "{}", fault.message);
    node.ended("a").await;
    let (_, ended) = node.run(action("b", "small", "true")).await;
    assert_eq!(finished(&ended).exit_code, Some(0));
    node.finish().await;
}
