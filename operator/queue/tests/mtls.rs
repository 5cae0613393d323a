//! The agents' listener over TCP: mutual TLS or nothing, and certificates that are
//! exchanged under a stream.
// Helpers of tests may fail as tests do.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

mod common;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use common::simulated_agent::SimulatedAgent;
use common::{client, config, listeners, open, run};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::agent_link_client::AgentLinkClient;
use rollwright_queue::{AgentListen, CancellationToken, QueueError, QueueServer, TlsFiles};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// What all agents of the queue are called in their certificates.
const AGENT: &str = "agent.team.q";

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Certificate and key of a leaf.
    fn leaf(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

/// The queue's side of the link, with files to rotate.
struct Server {
    addr: SocketAddr,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), QueueError>>,
}

/// Puts the queue's files in place, each whole as the kubelet does.
fn issue(dir: &Path, of: &Authority, trusted: &[&Authority]) {
    let (cert, key) = of.leaf("queue");
    let bundle: String = trusted.iter().map(|authority| authority.0.pem()).collect();
    for (name, text) in [("tls.crt", cert), ("tls.key", key), ("ca.crt", bundle)] {
        let fresh = dir.join("fresh");
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(&fresh, dir.join(name)).unwrap();
    }
}

impl Server {
    async fn start(dir: &Path, agent_name: Option<&str>) -> Self {
        let tls = TlsFiles {
            cert: dir.join("tls.crt"),
            key: dir.join("tls.key"),
            client_ca: dir.join("ca.crt"),
        };
        let mut listeners = listeners(dir);
        let (addr, agent_name) = (([127, 0, 0, 1], 0).into(), agent_name.map(str::to_owned));
        listeners.agents = AgentListen::Tcp { addr, tls: Some(tls), agent_name };
        let server = QueueServer::start(config(dir), listeners).await.unwrap();
        let addr = server.agents_addr().unwrap();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(server.serve(shutdown.clone()));
        Self { addr, shutdown, task }
    }

    async fn dial(
        &self,
        trusting: &Authority,
        leaf: Option<(String, String)>,
    ) -> Result<Channel, String> {
        let mut tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(trusting.0.pem()))
            .domain_name("queue");
        if let Some((cert, key)) = leaf {
            tls = tls.identity(Identity::from_pem(cert, key));
        }
        let endpoint = Endpoint::from_shared(format!("https://{}", self.addr)).unwrap();
        let channel = endpoint.tls_config(tls).unwrap().connect().await;
        channel.map_err(|error| error.to_string())
    }

    /// Dials and says hello as `node`: the queue's first message.
    async fn link(
        &self,
        node: &str,
        trusting: &Authority,
        leaf: Option<(String, String)>,
    ) -> Result<pb::QueueBatch, String> {
        let channel = self.dial(trusting, leaf).await?;
        let hello = pb::Hello {
            node: node.to_owned(),
            numa: vec![pb::NumaNode { cores: vec![0] }],
            ..pb::Hello::default()
        };
        let hello = pb::agent_message::Message::Hello(hello);
        let batch = pb::AgentBatch { messages: vec![pb::AgentMessage { message: Some(hello) }] };
        let linked = AgentLinkClient::new(channel).link(futures::stream::iter([batch])).await;
        let mut link = linked.map_err(|status| status.to_string())?.into_inner();
        let first = link.message().await.map_err(|status| status.to_string())?;
        first.ok_or_else(|| "closed".to_owned())
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn only_certificates_of_our_authority_link() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (Authority::new(), Authority::new());
    issue(dir.path(), &ours, &[&ours]);
    let server = Server::start(dir.path(), None).await;
    let welcome = server.link("node-1", &ours, Some(ours.leaf("node-1"))).await.unwrap();
    let first = welcome.messages.into_iter().next().and_then(|first| first.message);
    assert!(matches!(first, Some(pb::queue_message::Message::Welcome(_))));
    let stranger = server.link("node-1", &ours, Some(ours.leaf("node-2"))).await.unwrap_err();
    assert!(stranger.contains("does not name `node-1`"), "{stranger}");
    server.link("node-1", &ours, None).await.unwrap_err();
    server.link("node-1", &ours, Some(theirs.leaf("node-1"))).await.unwrap_err();
    server.stop().await;
}

#[tokio::test]
async fn a_queue_takes_only_its_own_agents() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new();
    issue(dir.path(), &ours, &[&ours]);
    let server = Server::start(dir.path(), Some(AGENT)).await;
    server.link("node-1", &ours, Some(ours.leaf(AGENT))).await.unwrap();
    for other in ["agent.team.p", "agent.other.q", "node-1"] {
        let refused = server.link("node-1", &ours, Some(ours.leaf(other))).await.unwrap_err();
        assert!(refused.contains("does not name `agent.team.q`"), "{refused}");
    }
    server.stop().await;
}

#[tokio::test]
async fn certificates_rotate_under_a_live_stream() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new(), Authority::new());
    issue(dir.path(), &old, &[&old]);
    let server = Server::start(dir.path(), Some(AGENT)).await;
    let channel = server.dial(&old, Some(old.leaf(AGENT))).await.unwrap();
    let agent = SimulatedAgent::over(channel, "node-1", 2, Arc::default()).await;
    let mut caller = client(dir.path()).await;
    open(&mut caller, "t", "job").await;
    let held = caller.execute(common::action("held", "t", "hold")).await.unwrap();
    agent.wait_started("held").await;

    // The new authority signs the queue; agents of either are taken.
    issue(dir.path(), &new, &[&old, &new]);
    let server = &server;
    let taken = |trusting, by: &Authority| {
        let leaf = by.leaf(AGENT);
        async move { server.link("probe", trusting, Some(leaf)).await.ok() }
    };
    common::until(|| taken(&new, &new)).await;
    assert!(taken(&new, &old).await.is_some(), "the old authority is still in the bundle");
    assert!(taken(&old, &old).await.is_none(), "the old certificate is no longer shown");

    // The old authority leaves the bundle.
    issue(dir.path(), &new, &[&new]);
    common::until(|| async { taken(&new, &old).await.is_none().then_some(()) }).await;
    assert!(taken(&new, &new).await.is_some());

    // All the while the first stream stood: its action goes on, and another one runs.
    assert!(!agent.task.is_finished());
    agent.release("held", 0);
    let mut events = held.into_inner();
    let mut last = None;
    while let Some(event) = events.message().await.unwrap() {
        last = event.event;
    }
    assert!(matches!(last, Some(pb::action_event::Event::Finished(_))), "{last:?}");
    let (_, output) = run(&mut caller, common::action("next", "t", "echo on")).await.unwrap();
    assert_eq!(output, b"on");
    drop((caller, agent));
}
