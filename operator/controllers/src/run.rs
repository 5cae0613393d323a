//! Wiring of the controllers' process.

use std::sync::Arc;

use futures::future::BoxFuture;
use kube::{Client, Config};
use rollwright_auth::MetricsError;
use tokio::sync::watch as cell;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::apply::Memory;
use crate::backoff::Backoffs;
use crate::call::Calls;
use crate::context::Context;
use crate::controller::{self, Controller};
use crate::dirty::Dirty;
use crate::events::Events;
use crate::identity;
use crate::job::RolloutJobs;
use crate::leader::{Leader, Lost};
use crate::links;
use crate::metrics::Metrics;
use crate::node::Nodes;
use crate::pool::Pools;
use crate::queue::Queues;
use crate::reward::Rewards;
use crate::server;
use crate::settings::Options;
use crate::startup::{self, Watches};
use crate::token::Tokens;
use crate::watch::{Change, Listener, Listeners, What};

/// Why the controllers ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no API server to speak to.
    #[error("cannot find the API server: {0}; run in a pod, or set KUBECONFIG")]
    NoCluster(#[from] kube::config::InferConfigError),
    /// Its address or credentials cannot be used.
    #[error("cannot use the API server's configuration: {0}")]
    Client(#[from] kube::Error),
    /// The metrics endpoint cannot be served.
    #[error(transparent)]
    Serve(#[from] MetricsError),
    /// Metrics cannot be made.
    #[error("cannot make metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The Lease was lost; the process ends, so that two never act.
    #[error("{0}")]
    Lost(#[from] Lost),
    /// A watch ended, which it never does.
    #[error("a watch ended")]
    WatchEnded,
}

/// Runs the controllers against the cluster that the environment names, until `stop`.
pub async fn run(options: Options, stop: CancellationToken) -> Result<(), RunError> {
    let client = Client::try_from(Config::infer().await?)?;
    run_with(client, options, stop).await
}

/// The same with a client.
pub async fn run_with(
    client: Client,
    options: Options,
    stop: CancellationToken,
) -> Result<(), RunError> {
    let metrics = Arc::new(Metrics::new()?);
    let calls = Calls::new(Arc::clone(&metrics));
    let (watches, stores) = Watches::open();
    let (issuer_tx, issuer_rx) = cell::channel(None);
    let tokens = Tokens::new(client.clone(), calls.clone(), &options.settings.namespace);
    let tokens = Arc::new(tokens);
    let context = Arc::new(Context {
        client: client.clone(),
        settings: options.settings.clone(),
        stores: stores.clone(),
        calls: calls.clone(),
        events: Events::new(client.clone(), options.identity.clone(), calls.clone()),
        memory: Arc::new(Memory::default()),
        backoffs: Arc::new(Backoffs::default()),
        jobs: Arc::default(),
        agents_changed: Arc::default(),
        observed: Arc::default(),
        metrics: Arc::clone(&metrics),
        issuer_rx,
        tokens: Arc::clone(&tokens),
        read_kubelet: options.read_kubelet,
    });

    let registered = vec![
        register::<Pools>(&context),
        register::<Queues>(&context),
        register::<RolloutJobs>(&context),
        register::<Rewards>(&context),
        register::<Nodes>(&context),
        register_links(&context),
    ];
    let (mut told, mut work): (Vec<Listener>, Vec<Work>) = registered.into_iter().unzip();
    told.push(housekeeping(&context));
    let caches = stores.clone();
    // Before the controllers that use it.
    told.insert(0, Box::new(move |change| caches.index.follow(change, &caches)));
    let listeners = Listeners::new(told);
    let namespace = options.settings.namespace.clone();
    let mut tasks = watches.run(&client, &stores, &metrics, &listeners);
    let everything = move || listeners.tell(What::Everything, false);
    tasks.spawn(identity::follow(client.clone(), calls.clone(), tokens, issuer_tx, everything));
    if let Some(addr) = options.metrics {
        let file = options.metrics_token_file.clone();
        tasks.spawn(server::serve(addr, file, Arc::clone(&metrics), stop.clone()).await?);
    }

    let mut leader = Leader::new(client, calls, &namespace, &options.lease, &options.identity);
    let acquired = async {
        startup::filled(&stores).await.map_err(|_| RunError::WatchEnded)?;
        tracing::info!(lease = options.lease, "the caches are filled; waiting for the Lease");
        Ok::<_, RunError>(leader.acquire().await)
    };
    let result = tokio::select! {
        acquired = acquired => acquired.map(Some),
        () = stop.cancelled() => Ok(None),
    };
    let result = match result {
        Ok(Some(begun)) => {
            tracing::info!(identity = options.identity, "this replica acts");
            metrics.leads(true);
            // Tasks of their own: the Lease is renewed however busy they are, and dropping them
            // ends them.
            let mut acting = JoinSet::new();
            for work in work.drain(..) {
                acting.spawn(work(stop.clone()));
            }
            let kept = tokio::select! {
                lost = leader.keep(begun) => Err(lost),
                _ = acting.join_all() => Ok(()),
            };
            metrics.leads(false);
            if kept.is_ok() {
                leader.release().await;
            }
            kept.map_err(RunError::Lost)
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    tasks.shutdown().await;
    result
}

/// The work of one controller while this replica leads, until it is told to stop.
type Work = Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, ()> + Send>;

/// A controller's ear and its hands.
fn register<C: Controller>(context: &Arc<Context>) -> (Listener, Work) {
    let dirty = Dirty::default();
    let listener = controller::listener::<C>(dirty.clone(), context.stores.clone());
    let context = Arc::clone(context);
    (listener, Box::new(move |stop| Box::pin(controller::run::<C>(context, dirty, stop))))
}

/// The same for the one Secret of the agents.
fn register_links(context: &Arc<Context>) -> (Listener, Work) {
    let changed = Arc::clone(&context.agents_changed);
    let listener = links::listener(Arc::clone(&changed), context.settings.namespace.clone());
    let context = Arc::clone(context);
    (listener, Box::new(move |stop| Box::pin(links::run(context, changed, stop))))
}

/// Forgets what is remembered of objects that are no more.
fn housekeeping(context: &Arc<Context>) -> Listener {
    let context = Arc::clone(context);
    Box::new(move |change: &Change<'_>| {
        if !change.gone {
            return;
        }
        let (kind, meta) = match change.what {
            What::Pool(object) | What::PoolFigures(object) => ("ResourcePool", &object.metadata),
            What::Job(object) => ("RolloutJob", &object.metadata),
            What::Queue(object) => ("ActionQueue", &object.metadata),
            What::Reward(object) => ("RewardService", &object.metadata),
            What::Node(object) => ("Node", &object.metadata),
            What::Pod(object) => ("Pod", &object.metadata),
            What::Owned(kind, meta) => (kind, meta),
            What::Everything => return,
        };
        context.memory.forget(kind, meta);
        if let Some(uid) = &meta.uid {
            context.backoffs.clear(uid);
        }
        let name = meta.name.clone().unwrap_or_default();
        match (kind, &meta.namespace) {
            ("Node", _) => context.observed.kubelets.remove(&name),
            ("ActionQueue", Some(namespace)) => {
                let key = (namespace.clone(), name);
                context.observed.asked.remove(&key);
                context.observed.queues.remove(&key);
            }
            _ => {}
        }
    })
}
