//! What idle sandboxes cost the agent.

use std::time::{Duration, Instant};

use rollwright_proto::v1::OpenSandbox;
use rollwright_proto::v1::agent_message::Message as FromAgent;
use rollwright_proto::v1::queue_message::Message as FromQueue;

use crate::common::{TestNode, spec};

/// CPU seconds of this process, from clock ticks.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}

fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default().to_owned()
}

/// Prints the figures; asserts nothing but that all open.
#[tokio::test]
#[ignore = "a measurement: 200 containers for a minute"]
async fn two_hundred_idle_sandboxes() {
    let Some(mut node) = TestNode::start().await else { return };
    let begun = Instant::now();
    for i in 0..200 {
        let open = OpenSandbox { trajectory_id: format!("t{i}"), spec: Some(spec()) };
        node.say(FromQueue::OpenSandbox(open)).await;
    }
    for _ in 0..200 {
        node.expect(|m| matches!(m, FromAgent::SandboxReady(_)).then_some(())).await;
    }
    println!("200 open in {:.1} s", begun.elapsed().as_secs_f64());
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (cpu, begun) = (cpu_s(), Instant::now());
    tokio::time::sleep(Duration::from_secs(20)).await;
    let cores = (cpu_s() - cpu) / begun.elapsed().as_secs_f64();
    println!("idle: {cores:.4} cores, {}", resident());
    node.finish().await;
}
