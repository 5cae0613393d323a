//! Runs one controller: which objects it looks at, how often, and what its failures mean.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use kube::Resource;
use kube::runtime::controller::{self, Action, Config};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::utils::CancelableJoinHandle;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::call;
use crate::context::Context;
use crate::dirty::Dirty;
use crate::error::{Categorised, TERMINATING};
use crate::stores::Stores;
use crate::watch::{Change, Listener};

/// Reconciliations of one controller at one moment.
const CONCURRENCY: u16 = 16;

/// A controller of one kind.
pub trait Controller: Send + Sync + 'static {
    /// The kind.
    type Object: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static;
    /// What can go wrong.
    type Error: Categorised + Send + Sync + 'static;

    /// Its name in logs and metrics: `resourcepool`.
    const NAME: &'static str;
    /// How long changes are gathered before objects are looked at.
    const GATHER: Duration = Duration::from_millis(100);

    /// The objects.
    fn store(stores: &Stores) -> &Store<Self::Object>;

    /// Which of them a change concerns. Pure, and asked for every change: it is to be quick.
    fn affected(change: &Change<'_>, stores: &Stores) -> Vec<ObjectRef<Self::Object>>;

    /// Brings one of them closer to its spec. Deleted objects are not given: what belongs to
    /// them goes by its owner reference.
    fn reconcile(
        object: Arc<Self::Object>,
        context: Arc<Context>,
    ) -> impl Future<Output = Result<Action, Self::Error>> + Send;
}

/// The listener that marks what a change concerns.
pub(crate) fn listener<C: Controller>(dirty: Dirty<C::Object>, stores: Stores) -> Listener {
    Box::new(move |change| {
        let affected = C::affected(change, &stores);
        if !affected.is_empty() {
            dirty.mark(affected);
        }
    })
}

/// All objects of a store.
pub fn all<K>(store: &Store<K>) -> Vec<ObjectRef<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    those(store, |_| true)
}

/// The objects of a store for which `which` holds.
pub fn those<K>(store: &Store<K>, which: impl Fn(&K) -> bool) -> Vec<ObjectRef<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store.state_filter(which).iter().map(|object| ObjectRef::from_obj(&**object)).collect()
}

/// Runs until `stop`.
pub(crate) async fn run<C: Controller>(
    context: Arc<Context>,
    dirty: Dirty<C::Object>,
    stop: CancellationToken,
) {
    let store = C::store(&context.stores).clone();
    dirty.mark(all(&store));
    let config = Config::default().concurrency(CONCURRENCY);
    let queue = dirty.stream(C::GATHER).take_until(stop.cancelled_owned());
    // A task each: they use all cores, and one that computes holds up no other.
    let reconcile = |object, context| {
        let work = reconcile::<C>(object, context).in_current_span();
        CancelableJoinHandle::spawn(work, &Handle::current())
    };
    let results =
        controller::applier(reconcile, on_error::<C>, context, store, Box::pin(queue), config);
    results
        .for_each(|result| async move {
            match result {
                // Failures are told of where they are met; what is gone was marked before.
                Ok(_)
                | Err(
                    controller::Error::ReconcilerFailed(..) | controller::Error::ObjectNotFound(_),
                ) => {}
                Err(error) => tracing::error!(controller = C::NAME, %error, "a controller failed"),
            }
        })
        .await;
}

async fn reconcile<C: Controller>(
    object: Arc<C::Object>,
    context: Arc<Context>,
) -> Result<Action, C::Error> {
    if object.meta().deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let begun = Instant::now();
    let uid = object.meta().uid.clone().unwrap_or_default();
    let (result, outside) = call::timed(C::reconcile(object, Arc::clone(&context))).await;
    context.metrics.reconciled(C::NAME, begun.elapsed(), outside);
    match result {
        // Its namespace is on its way out, and takes all of it along.
        Err(error) if error.category() == TERMINATING => Ok(Action::await_change()),
        Err(error) => Err(error),
        Ok(action) => {
            context.backoffs.clear(&uid);
            Ok(action)
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as kube's applier calls it")]
fn on_error<C: Controller>(
    object: Arc<C::Object>,
    error: &C::Error,
    context: Arc<Context>,
) -> Action {
    let meta = object.meta();
    let category = error.category();
    let wait = context.backoffs.failed(meta.uid.as_deref().unwrap_or_default());
    context.metrics.failed(C::NAME, category);
    tracing::warn!(
        controller = C::NAME, namespace = meta.namespace, name = meta.name, category, %error,
        again_in_s = wait.as_secs(), "a reconciliation failed"
    );
    Action::requeue(wait)
}
