//! The role as a whole: store, scheduler and listeners, from start to shutdown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::serve::ListenerExt as _;
use rollwright_proto::v1::action_service_server::ActionServiceServer;
use rollwright_proto::v1::agent_link_server::AgentLinkServer;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::config::QueueConfig;
use crate::fault::status;
use crate::gpu::{self, Gpu, GpuHandle};
use crate::grpc::{ActionApi, LinkApi};
use crate::http;
use crate::http::ApiError;
use crate::listen::{AgentBound, AgentListen, Bound, Listen, ListenError};
use crate::lookups::{LastWords, spawn_lookups};
use crate::mailbox::Budget;
use crate::metrics::Metrics;
use crate::scheduler::{Handle, INBOX, Input, Parts, Scheduler};
use crate::store::{Durable, Retention, Store, StoreError, Writer};
use crate::tls;
use rollwright_auth::{Authenticator, Caller, MetricsListen, MetricsListener};

/// Time for open streams to end at a shutdown.
const DRAIN: Duration = Duration::from_secs(5);
/// Largest message taken: a hello of a node with many actions.
const MAX_MESSAGE: usize = 16 << 20;
/// Bytes in flight on one HTTP/2 stream of an agent.
const LINK_WINDOW: u32 = 4 << 20;

/// Where a queue listens.
#[derive(Debug, Clone)]
pub struct Listeners {
    /// For callers: gRPC and HTTP.
    pub callers: Listen,
    /// For agents.
    pub agents: AgentListen,
    /// For Prometheus and probes; `None`: nowhere.
    pub metrics: Option<MetricsListen>,
}

/// Why a queue did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// It cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Its store cannot be used, or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its metrics cannot be set up.
    #[error("cannot set up metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The agents' listener failed.
    #[error("cannot serve agents: {0}")]
    Agents(#[from] tonic::transport::Error),
    /// A thread or a listener failed.
    #[error("the queue failed: {0}")]
    Io(#[from] std::io::Error),
    /// A task ended as it must not.
    #[error("a task of the queue ended unexpectedly: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// A queue that listens but does not answer yet.
pub struct QueueServer {
    scheduler: Scheduler,
    inbox: mpsc::Receiver<Input>,
    pools: Gpu,
    gpu_inbox: mpsc::Receiver<gpu::Input>,
    handle: Handle,
    heartbeat: Duration,
    callers: (Bound, Option<Authenticator>),
    agents: AgentBound,
    agent_name: Option<String>,
    metrics: Option<MetricsListener>,
    stopped: CancellationToken,
}

/// Opens the store, listens, and serves until `shutdown`.
pub async fn run(
    config: QueueConfig,
    listeners: Listeners,
    shutdown: CancellationToken,
) -> Result<(), QueueError> {
    QueueServer::start(config, listeners).await?.serve(shutdown).await
}

impl QueueServer {
    /// Opens the store, takes up what was unfinished, and listens.
    pub async fn start(config: QueueConfig, listeners: Listeners) -> Result<Self, QueueError> {
        let callers = listeners.callers.bind().await?;
        let agents = listeners.agents.bind().await?;
        let agent_name = listeners.agents.agent_name();
        let metrics_listener = match &listeners.metrics {
            Some(listen) => Some(listen.bind().await.map_err(ListenError::from)?),
            None => None,
        };
        let clock = Clock::new();
        let metrics = Arc::new(Metrics::new()?);
        let budget = Arc::new(Budget::default());
        let retention = Retention {
            keep_for: config.keep_for,
            max_results: config.max_results,
            max_bytes: config.max_result_bytes,
        };
        let dir = config.store_dir.clone();
        let opened =
            tokio::task::spawn_blocking(move || Store::open(&dir, retention, clock.now())).await?;
        let (store, mut recovered) = opened?;
        let store = Arc::new(store);

        let (inbox_tx, inbox) = mpsc::channel(INBOX);
        // After a shutdown nobody needs to know what became durable.
        let last = LastWords { inbox: inbox_tx.clone(), thread: "store-writer" };
        let (gpu_tx, gpu_inbox) = mpsc::channel(gpu::INBOX);
        let answers = gpu_tx.clone();
        let notify = move |outcome: Result<Vec<Durable>, StoreError>| {
            for durable in outcome.iter().flatten() {
                let told = match durable {
                    Durable::Started(action) => gpu::Input::Started(action.clone()),
                    Durable::Answered { action, .. } => gpu::Input::Answered(action.clone()),
                    _ => continue,
                };
                drop(answers.blocking_send(told));
            }
            let LastWords { inbox, .. } = &last;
            drop(inbox.blocking_send(Input::Stored(outcome)));
        };
        let writer = Writer::spawn(Arc::clone(&store), clock, Arc::clone(&metrics), notify)?;
        let most = config.max_buffered_bytes;
        let lookups =
            spawn_lookups(Arc::clone(&store), clock, inbox_tx.clone(), Arc::clone(&budget), most)?;
        let stopped = CancellationToken::new();
        let parts = gpu::Parts {
            pools: config.gpu_pools.clone(),
            namespaced: config.namespaced,
            epoch: recovered.epoch,
            clock,
            store: Arc::clone(&store),
            pusher: writer.pusher(),
            budget: Arc::clone(&budget),
            max_buffered_bytes: config.max_buffered_bytes,
            node_grace: config.core.node_grace,
            metrics: Arc::clone(&metrics),
            inbox: gpu_tx.clone(),
        };
        let pools = Gpu::new(parts, std::mem::take(&mut recovered.calls))?;
        let handle = Handle {
            gpu: GpuHandle { inbox: gpu_tx },
            inbox: inbox_tx,
            store,
            clock,
            budget: Arc::clone(&budget),
            max_buffered_bytes: config.max_buffered_bytes,
            numbers: Arc::default(),
            metrics: Arc::clone(&metrics),
            stopped: stopped.clone(),
        };
        let heartbeat = config.heartbeat;
        let parts = Parts { config, clock, metrics, budget, writer, lookups };
        let scheduler = Scheduler::new(parts, recovered)?;
        let metrics = metrics_listener;
        Ok(Self {
            scheduler,
            inbox,
            pools,
            gpu_inbox,
            handle,
            heartbeat,
            callers,
            agents,
            agent_name,
            metrics,
            stopped,
        })
    }

    /// Address of the callers' listener, where it is a TCP one.
    pub fn callers_addr(&self) -> Option<SocketAddr> {
        self.callers.0.addr()
    }

    /// Address of the agents' listener, where it is a TCP one.
    pub fn agents_addr(&self) -> Option<SocketAddr> {
        self.agents.addr()
    }

    /// Address of the metrics listener.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(MetricsListener::addr)
    }

    /// Serves until `shutdown`, or until the store or a listener fails.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<(), QueueError> {
        let stopped = self.stopped;
        let mut servers: JoinSet<Result<(), QueueError>> = JoinSet::new();
        let (bound, auth) = self.callers;
        servers.spawn(serve_callers(bound, caller_routes(&self.handle, auth), stopped.clone()));
        let link = LinkApi::new(self.handle.clone(), self.heartbeat, self.agent_name);
        servers.spawn(serve_agents(self.agents, link, stopped.clone()));
        if let Some(listener) = self.metrics {
            let metrics = Arc::clone(&self.handle.metrics);
            let probes = http::probes(self.handle.clone());
            let until = stopped.clone().cancelled_owned();
            servers.spawn(async move {
                listener.serve(move || metrics.render(), probes, until).await;
                Ok(())
            });
        }
        drop(self.handle);
        let pools = tokio::spawn(self.pools.run(self.gpu_inbox, stopped.clone()));
        let mut scheduler = tokio::spawn(self.scheduler.run(self.inbox, stopped.clone()));
        let mut ran = None;
        let early = tokio::select! {
            () = shutdown.cancelled() => None,
            ended = &mut scheduler => {
                ran = Some(ended);
                None
            }
            ended = servers.join_next() => {
                Some(ended.unwrap_or(Ok(Ok(()))).map_err(QueueError::from).and_then(|ran| ran))
            }
        };
        stopped.cancel();
        let ran = match ran {
            Some(ended) => ended,
            None => scheduler.await,
        };
        let drained = tokio::time::timeout(DRAIN, async {
            while let Some(ended) = servers.join_next().await {
                if let Ok(Err(error)) = ended {
                    tracing::warn!(%error, "a listener failed while stopping");
                }
            }
        });
        if drained.await.is_err() {
            tracing::warn!("some connections did not end within {DRAIN:?}");
        }
        // It ends with the token alone, so an error is a panic.
        pools.await?;
        ran??;
        early.unwrap_or(Ok(()))
    }
}

fn caller_routes(handle: &Handle, auth: Option<Authenticator>) -> Router {
    let service = ActionServiceServer::new(ActionApi::new(handle.clone()))
        .max_decoding_message_size(MAX_MESSAGE);
    tonic::service::Routes::new(service)
        .prepare()
        .into_axum_router()
        .merge(http::routes(handle.clone()))
        .layer(middleware::from_fn_with_state(Arc::new(auth), authenticate))
        .merge(http::probes(handle.clone()))
        .fallback(unknown_route)
}

async fn unknown_route(request: Request) -> Response {
    if is_grpc(&request) {
        return tonic::Status::unimplemented("there is no such method").into_http();
    }
    ApiError(crate::fault::user("RouteNotFound", "there is no such route")).into_response()
}

fn is_grpc(request: &Request) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Finds out who calls, in front of every route.
async fn authenticate(
    State(auth): State<Arc<Option<Authenticator>>>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = match auth.as_ref() {
        None => Ok(Caller::local()),
        Some(auth) => {
            let header = request.headers().get(header::AUTHORIZATION);
            auth.authenticate(header.and_then(|value| value.to_str().ok()), SystemTime::now())
        }
    };
    match caller {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(fault) => {
            if is_grpc(&request) {
                status(&fault).into_http()
            } else {
                ApiError(fault).into_response()
            }
        }
    }
}

async fn serve_callers(
    bound: Bound,
    routes: Router,
    stopped: CancellationToken,
) -> Result<(), QueueError> {
    match bound {
        Bound::Unix(listener, path) => {
            axum::serve(listener, routes).with_graceful_shutdown(stopped.cancelled_owned()).await?;
            remove_socket(&path);
        }
        Bound::Tcp(listener) => {
            let listener = listener.tap_io(|stream| {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "cannot set TCP_NODELAY");
                }
            });
            axum::serve(listener, routes).with_graceful_shutdown(stopped.cancelled_owned()).await?;
        }
    }
    Ok(())
}

async fn serve_agents(
    bound: AgentBound,
    link: LinkApi,
    stopped: CancellationToken,
) -> Result<(), QueueError> {
    let service = AgentLinkServer::new(link).max_decoding_message_size(MAX_MESSAGE);
    let router = tonic::transport::Server::builder()
        .initial_stream_window_size(LINK_WINDOW)
        .initial_connection_window_size(2 * LINK_WINDOW)
        .add_service(service);
    let until = stopped.clone().cancelled_owned();
    match bound {
        AgentBound::Unix(listener, path) => {
            let incoming = UnixListenerStream::new(listener);
            router.serve_with_incoming_shutdown(incoming, until).await?;
            remove_socket(&path);
        }
        AgentBound::Tls(listener, config) => {
            let incoming = tls::incoming(listener, config, stopped);
            router.serve_with_incoming_shutdown(incoming, until).await?;
        }
    }
    Ok(())
}

fn remove_socket(path: &std::path::Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::debug!(%error, path = %path.display(), "cannot remove the socket");
    }
}
