//! Sandboxes with network, against listeners on this machine.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use rollwright_proto::v1::Network;

use crate::common::{TestNode, action, docker, spec, until};

/// Says `hello` to whoever connects.
fn listen() -> u16 {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.write_all(b"hello\n");
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read(&mut [0; 16]);
        }
    });
    port
}

fn template(allow: &[String]) -> rollwright_proto::v1::SandboxSpec {
    let network = Some(Network { enabled: true, allow: allow.to_vec() });
    rollwright_proto::v1::SandboxSpec { network, ..spec() }
}

#[tokio::test]
async fn the_policys_dns_server_is_given_and_open() {
    let server = std::net::Ipv4Addr::new(10, 11, 12, 13);
    let start = TestNode::start_with(|config| config.policy.dns_servers = vec![server]);
    let Some(mut node) = start.await else { return };
    node.open("t", template(&[])).await.unwrap();
    assert_eq!(node.inspect("{{.HostConfig.Dns}}"), "[10.11.12.13]");
    let bridge = node.inspect("{{.HostConfig.NetworkMode}}");
    let rules = std::process::Command::new("iptables").arg("-S").output().unwrap();
    let rules = String::from_utf8_lossy(&rules.stdout).into_owned();
    let rule = format!("-A RW-FWD-{bridge} -d 10.11.12.13/32 -p udp -m udp --dport 53 -j RETURN");
    assert!(rules.contains(&rule), "{rules}");
    node.finish().await;
}

#[tokio::test]
async fn the_node_is_closed_unless_named_and_rules_go_with_their_users() {
    let Some(mut node) = TestNode::start().await else { return };
    let port = listen();
    node.open("t", template(&[])).await.unwrap();
    let bridge = node.inspect("{{.HostConfig.NetworkMode}}");
    let gateway =
        docker(&["network", "inspect", "-f", "{{(index .IPAM.Config 0).Gateway}}", &bridge])
            .unwrap();
    let ask = format!("nc -w 3 {gateway} {port} </dev/null 2>/dev/null || echo closed");
    let (output, _) = node.run(action("closed", "t", &ask)).await;
    assert_eq!(output, "closed\n");
    let (output, _) = node
        .run(action(
            "meta",
            "t",
            "nc -w 3 169.254.169.254 80 </dev/null 2>/dev/null || echo closed",
        ))
        .await;
    assert_eq!(output, "closed\n");

    node.open("u", template(&[format!("{gateway}/32:{port}")])).await.unwrap();
    let (output, _) = node.run(action("open", "u", &ask)).await;
    assert_eq!(output, "hello\n");
    node.close("t").await;
    node.close("u").await;
    until(|| docker(&["network", "inspect", &bridge]).is_none()).await;
    let rules = std::process::Command::new("iptables").arg("-S").output().unwrap();
    let rules = String::from_utf8_lossy(&rules.stdout).into_owned();
    assert!(!rules.contains(&bridge), "{rules}");
    node.finish().await;
}
