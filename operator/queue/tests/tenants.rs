//! Callers with service account tokens: each reaches what is its namespace's.
// Helpers of tests may fail as tests do.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;

use common::simulated_agent::SimulatedAgent;
use common::{action, config, http_on, listeners};
use rollwright_auth::AUDIENCE;
use rollwright_auth::simulated_issuer::{OWN_AUDIENCE, SimulatedIssuer};
use rollwright_core::ids::QuotaName;
use rollwright_core::quota::QuotaLimit;
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::action_service_client::ActionServiceClient;
use rollwright_queue::{AuthConfig, CancellationToken, Listen, MetricsListen, QueueServer};
use tokio::net::TcpStream;
use tonic::metadata::AsciiMetadataValue;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

const OPERATOR: (&str, &str) = ("rollwright", "rollwright-controllers");

/// A queue on TCP, an agent, and an API server that it trusts.
struct Cluster {
    dir: tempfile::TempDir,
    issuer: SimulatedIssuer,
    callers: SocketAddr,
    metrics: SocketAddr,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), rollwright_queue::QueueError>>,
    agent: SimulatedAgent,
}

impl Cluster {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let issuer = SimulatedIssuer::new("https://kubernetes.default.svc");
        let (jwks, token) = (dir.path().join("jwks.json"), dir.path().join("metrics-token"));
        std::fs::write(&jwks, issuer.jwks()).unwrap();
        std::fs::write(&token, "scraper").unwrap();
        let mut listeners = listeners(dir.path());
        let addr = ([127, 0, 0, 1], 0).into();
        let operator = format!("system:serviceaccount:{}:{}", OPERATOR.0, OPERATOR.1);
        let tokens = Some(issuer.trusted(jwks, &[&operator]));
        let auth = AuthConfig { tokens, ..AuthConfig::default() };
        listeners.callers = Listen::Tcp { addr, auth };
        listeners.metrics = Some(MetricsListen { addr, token_file: Some(token) });
        let mut config = config(dir.path());
        let limit = QuotaLimit { concurrency: Some(1), rate: None };
        config.core.quotas.insert(QuotaName::new("api").unwrap(), limit);
        let server = QueueServer::start(config, listeners).await.unwrap();
        let (callers, metrics) = (server.callers_addr().unwrap(), server.metrics_addr().unwrap());
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(server.serve(shutdown.clone()));
        let agent = SimulatedAgent::connect(dir.path(), "node-1", 4, Arc::default()).await;
        Self { dir, issuer, callers, metrics, shutdown, task, agent }
    }

    async fn as_account(&self, namespace: &str, account: &str) -> Client {
        // The controllers have one for this queue alone.
        let audience = if account == OPERATOR.1 { OWN_AUDIENCE } else { AUDIENCE };
        let token = self.issuer.token_for(namespace, account, &[audience]);
        let bearer = format!("Bearer {token}");
        let bearer = AsciiMetadataValue::try_from(bearer).unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{}", self.callers)).unwrap();
        let channel = endpoint.connect().await.unwrap();
        ActionServiceClient::with_interceptor(channel, Bearer(bearer))
    }

    async fn http(&self, of: Option<&str>, method: &str, path: &str, body: &str) -> u16 {
        let bearer = |namespace| self.issuer.token(namespace, "trainer");
        let header = of.map(|of| format!("authorization: Bearer {}\r\n", bearer(of)));
        let stream = TcpStream::connect(self.callers).await.unwrap();
        http_on(stream, method, path, &header.unwrap_or_default(), body.as_bytes()).await.0
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
        drop(self.dir);
    }
}

#[derive(Clone)]
struct Bearer(AsciiMetadataValue);

impl tonic::service::Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

type Client = ActionServiceClient<InterceptedService<Channel, Bearer>>;

fn opening(trajectory: &str, job: &str) -> pb::OpenTrajectoryRequest {
    pb::OpenTrajectoryRequest {
        trajectory_id: trajectory.to_owned(),
        job: job.to_owned(),
        template: "box".to_owned(),
        ..pb::OpenTrajectoryRequest::default()
    }
}

fn permit(id: &str, job: &str) -> pb::AcquireRequest {
    pb::AcquireRequest {
        permit_id: id.to_owned(),
        job: job.to_owned(),
        quota: "api".to_owned(),
        ..pb::AcquireRequest::default()
    }
}

#[tokio::test]
async fn a_namespace_reaches_nothing_of_another() {
    let cluster = Cluster::start().await;
    let mut ours = cluster.as_account("team", "gateway").await;
    let mut theirs = cluster.as_account("other", "gateway").await;
    let code = |answer: Result<(), Status>| answer.unwrap_err().code();

    ours.open_trajectory(opening("t", "team.math")).await.unwrap();
    for stolen in ["team.math", "math", "rollwright.x", "team"] {
        let refused = theirs.open_trajectory(opening("u", stolen)).await.map(drop);
        assert_eq!(code(refused), Code::PermissionDenied, "{stolen}");
    }
    let mut done = ours.execute(action("done", "t", "true")).await.unwrap().into_inner();
    while done.message().await.unwrap().is_some() {}
    let _held = ours.execute(action("held", "t", "hold")).await.unwrap();
    cluster.agent.wait_started("held").await;
    ours.acquire(permit("p", "team.math")).await.unwrap();

    // Opening, executing, following, results.
    let taken = theirs.open_trajectory(opening("t", "other.math")).await.map(drop);
    assert_eq!(code(taken), Code::AlreadyExists);
    let ran = theirs.execute(action("new", "t", "true")).await.map(drop);
    assert_eq!(code(ran), Code::NotFound);
    for known in ["done", "held"] {
        let followed = theirs.execute(action(known, "t", "true")).await.map(drop);
        assert_eq!(code(followed), Code::AlreadyExists, "{known}");
        let path = format!("/v1/actions/{known}");
        assert_eq!(cluster.http(Some("other"), "GET", &path, "").await, 404, "{known}");
        assert_eq!(cluster.http(Some("team"), "GET", &path, "").await, 200, "{known}");
    }
    // Files.
    let file =
        pb::GetFileRequest { trajectory_id: "t".to_owned(), path: "/f".to_owned(), tar: false };
    let read = theirs.get_file(file).await.map(drop);
    assert_eq!(code(read), Code::NotFound);
    assert_eq!(cluster.http(Some("other"), "GET", "/v1/trajectories/t", "").await, 404);
    // What ends things is answered as for unknown ids, and ends nothing.
    let cancel = pb::CancelRequest { action_id: "held".to_owned(), job: String::new() };
    assert!(!theirs.cancel(cancel).await.unwrap().into_inner().cancelled);
    theirs
        .close_trajectory(pb::CloseTrajectoryRequest {
            trajectory_id: "t".to_owned(),
            job: String::new(),
        })
        .await
        .unwrap();
    let release =
        pb::ReleaseRequest { permit_id: "p".to_owned(), retry_after: None, job: String::new() };
    theirs.release(release).await.unwrap();
    let again = theirs.acquire(permit("p", "other.math")).await.map(drop);
    assert_eq!(code(again), Code::AlreadyExists);
    let refused = theirs.acquire(permit("q", "team.math")).await.map(drop);
    assert_eq!(code(refused), Code::PermissionDenied);

    // One job of a namespace ends nothing of another either, where it says which it is.
    let job = || "team.code".to_owned();
    let cancel = pb::CancelRequest { action_id: "held".to_owned(), job: job() };
    assert!(!ours.cancel(cancel).await.unwrap().into_inner().cancelled);
    let close = pb::CloseTrajectoryRequest { trajectory_id: "t".to_owned(), job: job() };
    ours.close_trajectory(close).await.unwrap();
    let release = pb::ReleaseRequest { permit_id: "p".to_owned(), retry_after: None, job: job() };
    ours.release(release).await.unwrap();

    // Counts are of one's own; nodes and quotas are the operator's.
    let stats = theirs.stats(pb::StatsRequest {}).await.unwrap().into_inner();
    assert_eq!(stats, pb::StatsResponse::default());
    let stats = ours.stats(pb::StatsRequest {}).await.unwrap().into_inner();
    assert_eq!((stats.trajectories, stats.running, stats.waiting), (1, 1, 0));
    assert!(stats.nodes.is_empty() && stats.quotas.is_empty());
    let mut operator = cluster.as_account(OPERATOR.0, OPERATOR.1).await;
    let stats = operator.stats(pb::StatsRequest {}).await.unwrap().into_inner();
    assert_eq!((stats.trajectories, stats.running, stats.nodes.len()), (1, 1, 1));
    assert_eq!(stats.quotas[0].running, 1, "the permit is still held");

    // What is its own it ends, by its name or without one.
    for job in [String::new(), "team.math".to_owned()] {
        ours.open_trajectory(opening("own", "team.math")).await.unwrap();
        let close = pb::CloseTrajectoryRequest { trajectory_id: "own".to_owned(), job };
        ours.close_trajectory(close).await.unwrap();
        let stats = ours.stats(pb::StatsRequest {}).await.unwrap().into_inner();
        assert_eq!(stats.trajectories, 1);
    }

    // The operator may end what it likes.
    let cancel = pb::CancelRequest { action_id: "held".to_owned(), job: String::new() };
    assert!(operator.cancel(cancel).await.unwrap().into_inner().cancelled);
    cluster.stop().await;
}

#[tokio::test]
async fn probes_need_no_token_and_metrics_do() {
    let cluster = Cluster::start().await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(cluster.http(None, "GET", path, "").await, 200, "{path}");
    }
    for path in ["/v1/stats", "/v1/actions/x"] {
        assert_eq!(cluster.http(None, "GET", path, "").await, 401, "{path}");
    }
    let ask = async |path: &str, headers: &str| {
        let stream = TcpStream::connect(cluster.metrics).await.unwrap();
        let (status, _, body) = http_on(stream, "GET", path, headers, b"").await;
        (status, String::from_utf8(body).unwrap())
    };
    for (path, expected) in [("/healthz", "ok\n"), ("/readyz", "ready\n")] {
        assert_eq!(ask(path, "").await, (200, expected.to_owned()));
    }
    assert_eq!(ask("/metrics", "").await, (401, String::new()));
    assert_eq!(ask("/metrics", "authorization: Bearer scraped\r\n").await.0, 401);
    let (status, text) = ask("/metrics", "authorization: Bearer scraper\r\n").await;
    assert!(status == 200 && text.contains("rollwright_queue_"), "{text}");
    cluster.stop().await;
}
