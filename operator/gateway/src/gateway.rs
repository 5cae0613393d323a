//! A gateway from its start to its end.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rollwright_auth::{AuthConfig, AuthError, MetricsError, MetricsListen, MetricsListener};
use rollwright_core::fault::Fault;
use rollwright_core::ids::{InvalidId, Task};
use rollwright_core::rollout::{Event, Rollout};
use rollwright_core::router::Role;
use rollwright_crds::engine::EngineType;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::actions::Actions;
use crate::api;
use crate::config::{GatewayConfig, QueueAddress, RewardConfig, WorkerConfig};
use crate::dispatch::Dispatch;
use crate::driver::{Api, Driver, Order, Parts as DriverParts, initial, recovered};
use crate::engine::endpoint::{Bootstrap, Endpoint};
use crate::events::{EventHub, HubLimits};
use crate::fault::user;
use crate::metrics::Metrics;
use crate::proxy::{self, Listen, ListenError, Server};
use crate::reward::{GpuScorer, SandboxScorer, Scorer, ServerlessScorer};
use crate::store::{Store, StoreConfig, StoreError};
use crate::weights::{BucketStore, Origin, PullConfig, Puller, StoreConfig as BucketConfig};

/// Where `SGLang`'s bootstrap server listens unless it is told otherwise.
const BOOTSTRAP_PORT: u16 = 8998;
/// Changes of engines that wait to be told.
const ENGINE_EVENTS: usize = 1024;
/// Without a byte for so long, a pull is given up.
const PULL_PATIENCE: std::time::Duration = std::time::Duration::from_mins(1);

/// Where a gateway listens.
#[derive(Debug, Clone)]
pub struct Listeners {
    /// Callers.
    pub callers: Listen,
    /// What callers on TCP show.
    pub auth: AuthConfig,
    /// Metrics and health.
    pub metrics: Option<MetricsListen>,
}

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// Callers cannot be told apart.
    #[error("cannot listen on {addr}: {source}; or listen on a Unix socket")]
    Auth {
        /// Address and port.
        addr: SocketAddr,
        /// Why.
        source: AuthError,
    },
    /// The callers' address cannot be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The metrics' address cannot be had.
    #[error(transparent)]
    MetricsListen(#[from] MetricsError),
    /// The metrics cannot be set up.
    #[error("cannot set up metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store has failed while it ran.
    #[error("the store has failed, see the log: start again when its disk is well")]
    StoreBroke,
    /// A name is no id.
    #[error(transparent)]
    Id(#[from] InvalidId),
    /// Something that is configured cannot be.
    #[error("{}", .0.message)]
    Refused(Fault),
    /// A reward in a sandbox without a queue to make it.
    #[error(
        "RewardService `{0}` scores in a sandbox, and the gateway knows no action queue: name one in spec.actionQueue and give its address"
    )]
    NoQueue(String),
    /// A reward model without an address.
    #[error(
        "RewardService `{0}` is a model on GPUs, and the gateway knows no action queue: name one in spec.actionQueue and give its address, or give the URL that it always runs at (--reward-url {0}=URL)"
    )]
    NoRewardUrl(String),
    /// A reward service that is nothing.
    #[error("RewardService `{0}` has none of gpu, serverless and sandbox: set exactly one")]
    NoBackend(String),
}

/// A gateway that listens.
pub struct Gateway {
    server: Server,
    driver: Arc<Driver>,
    dispatch: Arc<Dispatch>,
    hub: Arc<EventHub>,
    store: Store,
    actions: Option<Actions>,
    metrics: Option<MetricsListener>,
    tasks: JoinSet<()>,
}

impl Gateway {
    /// Opens the store, takes up what was there, listens, and begins to ask the engines.
    pub async fn start(config: GatewayConfig, listeners: Listeners) -> Result<Self, GatewayError> {
        let auth = match &listeners.callers {
            Listen::Tcp(addr) => {
                let auth = listeners.auth.open(SystemTime::now());
                Some(auth.map_err(|source| GatewayError::Auth { addr: *addr, source })?)
            }
            Listen::Unix(_) => None,
        };
        let metrics_listener = match &listeners.metrics {
            Some(listen) => Some(listen.bind().await?),
            None => None,
        };
        let metrics = Arc::new(Metrics::new()?);
        let data_metrics = proxy::Metrics::new(metrics.registry())?;
        let (store, found) = Store::open(StoreConfig::new(config.state_dir.join("buffer"))).await?;
        let (buckets, puller) = weights(&config).await?;
        let actions = config.queue.as_ref().map(|queue| connect(queue, &config)).transpose()?;
        let scorers = config.rewards.iter().map(|reward| scorer(reward, actions.as_ref()));
        let scorers = scorers.collect::<Result<_, _>>()?;

        let (orders_tx, orders) = mpsc::unbounded_channel::<Order>();
        let core = Rollout::new(config.rollout.clone());
        let dispatch = Dispatch::new(core, orders_tx.clone());
        let hub = EventHub::new(micros(), HubLimits::default());
        let (engines_tx, engines) = mpsc::channel(ENGINE_EVENTS);
        let workers = initial(&config).await.map_err(GatewayError::Refused)?;
        let models = vec![config.model.clone()];
        let (job, limits) = (config.job_id()?, config.limits.clone());
        let driver = Driver::new(DriverParts {
            config,
            dispatch: Arc::clone(&dispatch),
            orders_tx,
            store: store.clone(),
            hub: Arc::clone(&hub),
            buckets,
            puller,
            workers,
            engines_tx,
            scorers,
            actions: actions.clone(),
            metrics,
        });

        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&driver).run(orders));
        let recovered = Event::Recovered(recovered(found).map_err(GatewayError::Refused)?);
        dispatch.event(recovered).map_err(GatewayError::Refused)?;
        tasks.spawn(Arc::clone(&driver).observe(engines));
        let ticking = Arc::clone(&dispatch);
        tasks.spawn(async move { ticking.run().await });

        let parts = proxy::Parts {
            job,
            auth,
            dispatch: Arc::clone(&dispatch),
            api: api::routes(Arc::new(Api(Arc::clone(&driver)))),
            api_runtime: tokio::runtime::Handle::current(),
            metrics: data_metrics,
            limits,
            task: Task::new("default")?,
            models,
        };
        let server = Server::start(&listeners.callers, parts)?;
        Ok(Self { server, driver, dispatch, hub, store, actions, metrics: metrics_listener, tasks })
    }

    /// Where callers connect, with the port that was taken.
    pub fn address(&self) -> &Listen {
        self.server.address()
    }

    /// Address of the metrics listener.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(MetricsListener::addr)
    }

    /// Serves until `stop`; then requests in flight may end, and everything that was
    /// accepted is on disk.
    pub async fn serve(self, stop: CancellationToken) -> Result<(), GatewayError> {
        let Self { server, driver, dispatch, hub, store, actions, metrics, mut tasks } = self;
        if let Some(listener) = metrics {
            let read = Arc::clone(&dispatch);
            let shown = Arc::clone(driver.metrics());
            let render = move || {
                read.view(|core| shown.read(core, read.now()));
                shown.render()
            };
            let probes = axum::Router::new().route("/healthz", axum::routing::get(async || "ok"));
            tasks.spawn(listener.serve(render, probes, stop.clone().cancelled_owned()));
        }
        let broke = tokio::select! {
            () = stop.cancelled() => false,
            () = driver.broke() => true,
        };
        hub.close();
        driver.stop();
        server.shutdown().await;
        driver.finish().await;
        if let Some(actions) = actions {
            actions.released().await;
        }
        store.close().await;
        tasks.shutdown().await;
        if broke { Err(GatewayError::StoreBroke) } else { Ok(()) }
    }
}

impl GatewayConfig {
    /// Where buckets of weights are pulled to.
    pub(crate) fn pulled_dir(&self) -> PathBuf {
        self.state_dir.join("pulled")
    }

    /// Where the set of workers is kept for the next process.
    pub(crate) fn workers_file(&self) -> PathBuf {
        self.state_dir.join("workers.json")
    }

    /// A worker as the data path sees it; a fault says what of it cannot be.
    pub(crate) fn endpoint(&self, worker: &WorkerConfig, index: u32) -> Result<Endpoint, Fault> {
        let invalid = |message: String| user("InvalidWorker", message);
        let endpoint = Endpoint::new(worker.worker.clone(), index, &worker.url);
        let mut endpoint = endpoint.map_err(|error| invalid(error.to_string()))?;
        let (name, role) = (&worker.worker, worker.spec.role);
        if self.kind == EngineType::OpenAI && role != Role::Mixed {
            return Err(invalid(format!(
                "worker `{name}` cannot be for {} alone: only vLLM and SGLang hand their KV over; give it the role mixed",
                role.as_str()
            )));
        }
        if self.kind == EngineType::SGLang && role == Role::Prefill {
            let port = worker.bootstrap_port.map_or(BOOTSTRAP_PORT, NonZeroU16::get);
            endpoint.bootstrap = Bootstrap::new(&endpoint.address, port);
            if endpoint.bootstrap.is_none() {
                return Err(invalid(format!(
                    "worker `{name}` prefills on a Unix socket, where no decode worker finds its bootstrap server: give http://HOST:PORT"
                )));
            }
        }
        endpoint.kind = self.kind;
        endpoint.takes_priority = self.takes_priority;
        endpoint.authorization = self.engine_key.as_ref().and_then(|key| {
            let mut value =
                http::HeaderValue::from_str(&format!("Bearer {}", key.expose())).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        Ok(endpoint)
    }
}

/// Grows from one start of the gateway to the next.
fn micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as u64
}

async fn weights(config: &GatewayConfig) -> Result<(BucketStore, Puller), GatewayError> {
    let buckets = BucketStore::open(BucketConfig {
        dir: config.state_dir.join("buckets"),
        max_bucket: config.max_bucket,
        max_version: config.max_bucket.saturating_mul(4096),
        max_buckets: 4096,
    });
    let buckets = buckets.await.map_err(GatewayError::Refused)?;
    let pull = PullConfig {
        dir: config.pulled_dir(),
        bandwidth: None,
        parallel: 4,
        patience: PULL_PATIENCE,
    };
    let puller = Puller::new(Origin::Store(buckets.clone()), pull);
    Ok((buckets, puller))
}

fn connect(queue: &QueueAddress, config: &GatewayConfig) -> Result<Actions, GatewayError> {
    let job = config.job_id()?;
    match queue {
        QueueAddress::Unix(socket) => Ok(Actions::unix(socket, job.as_str())),
        QueueAddress::Tcp { address, credential } => {
            Actions::tcp(address, credential, job.as_str()).map_err(GatewayError::Refused)
        }
    }
}

fn scorer(reward: &RewardConfig, actions: Option<&Actions>) -> Result<Scorer, GatewayError> {
    if let Some(sandbox) = &reward.spec.sandbox {
        let actions = actions.ok_or_else(|| GatewayError::NoQueue(reward.name.clone()))?;
        return Ok(Scorer::Sandbox(SandboxScorer::new(actions.clone(), sandbox)));
    }
    if let Some(http) = &reward.spec.serverless {
        let secret = reward.secret_file.clone();
        let scorer = ServerlessScorer::new(&http.url, secret, http.timeout.into());
        return scorer.map(Scorer::Serverless).map_err(GatewayError::Refused);
    }
    let Some(gpu) = &reward.spec.gpu else {
        return Err(GatewayError::NoBackend(reward.name.clone()));
    };
    let name = &reward.name;
    let scorer = match (&reward.url, actions) {
        (Some(url), _) => GpuScorer::at(url, name, gpu).map_err(GatewayError::Refused)?,
        (None, Some(actions)) => GpuScorer::queued(actions.clone(), name, gpu),
        (None, None) => return Err(GatewayError::NoRewardUrl(name.clone())),
    };
    Ok(Scorer::Gpu(scorer))
}
