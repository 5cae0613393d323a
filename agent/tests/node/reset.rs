//! Each part of a reset fails with a fault of its own, and nothing stays.

use std::time::Duration;

use rollwright_proto::v1::SetupCommand;
use rollwright_proto::v1::fault::Kind;

use crate::common::{TestNode, shell, spec};

#[tokio::test]
async fn every_part_has_its_fault() {
    let Some(mut node) = TestNode::start().await else { return };
    let mut unknown = spec();
    unknown.image = "rollwright-test/no-such-image:1".into();
    let fault = node.open("image", unknown).await.unwrap_err();
    assert_eq!((fault.kind(), fault.reason.as_str()), (Kind::User, "ImageNotFound"));
    assert!(fault.message.contains("pull"));

    let mut hasty = spec();
    hasty.start_timeout = Some(Duration::from_nanos(1).try_into().unwrap());
    let fault = node.open("start", hasty).await.unwrap_err();
    assert_eq!((fault.kind(), fault.reason.as_str()), (Kind::Timeout, "StartTimeout"));

    let setup = |line: &str, timeout: Option<Duration>| {
        let mut template = spec();
        let timeout = timeout.map(|timeout| timeout.try_into().unwrap());
        template.setup = vec![SetupCommand { command: Some(shell(line)), timeout }];
        template
    };
    let fault = node.open("fails", setup("echo broken; false", None)).await.unwrap_err();
    assert_eq!((fault.kind(), fault.reason.as_str()), (Kind::Action, "SetupFailed"));
    assert!(fault.message.contains("broken") && fault.message.contains("exit code 1"));

    let slow = setup("sleep 1000", Some(Duration::from_millis(100)));
    let fault = node.open("slow", slow).await.unwrap_err();
    assert_eq!((fault.kind(), fault.reason.as_str()), (Kind::Timeout, "SetupTimeout"));

    node.until_containers(0).await;
    let ready = node.open("good", setup("echo fine > file", None)).await.unwrap();
    assert!(ready.times.unwrap().setup_s > 0.0);
    let text = node.metrics.render();
    for series in [
        "rollwright_agent_reset_seconds_count{part=\"setup\",template=\"test\"} 1",
        "rollwright_agent_reset_failures_total{reason=\"SetupTimeout\"} 1",
    ] {
        assert!(text.contains(series), "{series} is not in\n{text}");
    }
    node.finish().await;
}

#[tokio::test]
async fn a_pull_that_no_registry_answers_is_shared_and_typed() {
    let Some(node) = TestNode::start().await else { return };
    let engine = node.node.engine().clone();
    let ledger = rollwright_agent::images::gc::Ledger::open(None);
    let images = rollwright_agent::images::Images::new(engine, ledger, None);
    let image = "localhost:1/rollwright-test/nothing:1";
    let (a, b) = tokio::join!(
        images.ensure(image, true, crate::common::LIMIT),
        images.ensure(image, true, crate::common::LIMIT)
    );
    assert_eq!(a, b);
    assert_eq!(a.unwrap_err().reason, "ImagePullFailed");
    let impatient = images.ensure(image, true, Duration::ZERO).await.unwrap_err();
    assert_eq!(impatient.reason, "ImagePullTimeout");
    node.finish().await;
}
