//! The agents' listener over TCP: mutual TLS or nothing.
// Helpers of tests may fail as tests do.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

mod common;

use common::{config, listeners};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::agent_link_client::AgentLinkClient;
use rollwright_queue::{AgentListen, CancellationToken, QueueServer, TlsFiles};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

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

async fn link(
    addr: std::net::SocketAddr,
    authority: &Authority,
    leaf: Option<(String, String)>,
) -> Result<pb::QueueBatch, String> {
    let mut tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authority.0.pem()))
        .domain_name("queue");
    if let Some((cert, key)) = leaf {
        tls = tls.identity(Identity::from_pem(cert, key));
    }
    let endpoint = Endpoint::from_shared(format!("https://{addr}")).unwrap();
    let channel = endpoint.tls_config(tls).unwrap().connect().await;
    let channel = channel.map_err(|error| error.to_string())?;
    let hello = pb::Hello {
        node: "node-1".to_owned(),
        numa: vec![pb::NumaNode { cores: vec![0] }],
        ..pb::Hello::default()
    };
    let hello = pb::agent_message::Message::Hello(hello);
    let batch = pb::AgentBatch { messages: vec![pb::AgentMessage { message: Some(hello) }] };
    let stream = futures::stream::iter([batch]);
    let linked = AgentLinkClient::new(channel).link(stream).await;
    let mut link = linked.map_err(|status| status.to_string())?.into_inner();
    link.message().await.map_err(|status| status.to_string())?.ok_or_else(|| "closed".to_owned())
}

#[tokio::test]
async fn only_certificates_of_our_authority_link() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (cert, key) = ours.leaf("queue");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let tls = TlsFiles {
        cert: file("cert.pem", &cert),
        key: file("key.pem", &key),
        client_ca: file("ca.pem", &ours.0.pem()),
    };
    let mut listeners = listeners(dir.path());
    let addr = ([127, 0, 0, 1], 0).into();
    listeners.agents = AgentListen::Tcp { addr, tls: Some(tls), agent_name: None };
    let server = QueueServer::start(config(dir.path()), listeners).await.unwrap();
    let addr = server.agents_addr().unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(server.serve(shutdown.clone()));

    let welcome = link(addr, &ours, Some(ours.leaf("node-1"))).await.unwrap();
    let first = welcome.messages.into_iter().next().and_then(|first| first.message);
    assert!(matches!(first, Some(pb::queue_message::Message::Welcome(_))));
    let stranger = link(addr, &ours, Some(ours.leaf("node-2"))).await.unwrap_err();
    assert!(stranger.contains("does not name `node-1`"), "{stranger}");
    link(addr, &ours, None).await.unwrap_err();
    link(addr, &ours, Some(theirs.leaf("node-1"))).await.unwrap_err();
    shutdown.cancel();
    task.await.unwrap().unwrap();
}
