//! The workers that are wished, and what runs for each of them.
//!
//! The core hears of a worker when its engine has first answered. One that is left out is
//! drained, and dropped when nothing is in flight on it.

mod file;
mod wish;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rollwright_core::fault::Fault;
use rollwright_core::ids::WorkerId;
use rollwright_core::rollout::{Event, Rollout};
use rollwright_core::router;
use rollwright_core::version::Version;
use rollwright_core::weights;
use tokio::sync::mpsc;

pub(crate) use self::wish::Wish;
use super::Driver;
use crate::api::types::{WishedWorker, WorkerSet, WorkerStates, WorkerStatus, WorkerUrl};
use crate::config::{GatewayConfig, WorkerConfig};
use crate::dispatch::Dispatch;
use crate::engine::control::Control;
use crate::fault::{infrastructure, user};
use crate::workers::{Watch, WorkerEvent};

/// Every worker that is known here.
pub(super) struct Fleet {
    members: BTreeMap<WorkerId, Member>,
    /// Numbers of members that were dropped.
    free: BTreeSet<u32>,
    /// The next watch.
    watches: u64,
    /// Watchers --what they see--> the driver.
    engines_tx: mpsc::Sender<WorkerEvent>,
}

/// One worker.
pub(super) struct Member {
    config: WorkerConfig,
    /// Its number: the label of its metrics.
    index: u32,
    pub(super) control: Control,
    pub(super) watch: Arc<Watch>,
    /// Tells what this watch has seen from what an earlier one of the same name had.
    watch_number: u64,
    /// The core knows it.
    joined: bool,
    then: Then,
}

/// What is to become of a worker.
#[derive(Clone)]
enum Then {
    /// It serves.
    Serve,
    /// It is drained, and stays.
    Drain,
    /// It is drained, and dropped; another one of its name may take its place.
    Leave(Option<Box<Wish>>),
}

impl Fleet {
    pub(super) fn new(engines_tx: mpsc::Sender<WorkerEvent>) -> Self {
        let (members, free) = (BTreeMap::new(), BTreeSet::new());
        Self { members, free, watches: 0, engines_tx }
    }

    pub(super) fn get(&self, worker: &WorkerId) -> Option<&Member> {
        self.members.get(worker)
    }

    /// Where the workers are.
    pub(super) fn urls(&self) -> Vec<WorkerUrl> {
        let url = |member: &Member| WorkerUrl {
            id: member.config.worker.to_string(),
            url: member.config.url.clone(),
        };
        self.members.values().map(url).collect()
    }

    /// Begins to watch a worker.
    pub(super) fn add(&mut self, wish: Wish, config: &GatewayConfig) {
        let index = self.free.pop_first().unwrap_or(self.members.len() as u32);
        self.watches += 1;
        let Wish { config: worker, control, drain } = wish;
        let watch = Watch::start(
            worker.worker.clone(),
            self.watches,
            control.clone(),
            config.watch,
            self.engines_tx.clone(),
        );
        let member = Member {
            index,
            control,
            watch: Arc::new(watch),
            watch_number: self.watches,
            joined: false,
            then: if drain { Then::Drain } else { Then::Serve },
            config: worker,
        };
        self.members.insert(member.config.worker.clone(), member);
    }

    /// The member that a watch saw something at, unless it has gone or was replaced.
    pub(super) fn seen(&mut self, event: &WorkerEvent) -> Option<&mut Member> {
        let member = self.members.get_mut(&event.worker)?;
        (member.watch_number == event.watch).then_some(member)
    }

    fn remove(&mut self, worker: &WorkerId) -> Option<Member> {
        let member = self.members.remove(worker)?;
        self.free.insert(member.index);
        Some(member)
    }

    fn states(&self, core: &Rollout) -> WorkerStates {
        let routed: BTreeMap<_, _> = core.router().workers().map(|view| (view.id, view)).collect();
        let weights: BTreeMap<_, _> =
            core.weights().workers().map(|view| (view.id, view.state)).collect();
        let state = |(id, member): (&WorkerId, &Member)| {
            let view = routed.get(id).filter(|_| member.joined);
            let drains = !matches!(member.then, Then::Serve);
            WorkerStatus {
                name: id.to_string(),
                state: state(view, weights.get(id).copied(), drains).to_owned(),
                in_flight: view.map_or(0, |view| view.running as u32),
                version: view.and_then(|view| view.version).map(|Version(version)| version),
            }
        };
        WorkerStates { workers: self.members.iter().map(state).collect() }
    }
}

/// One word for what the router and the weights know of a worker.
fn state(
    routed: Option<&router::WorkerView<'_>>,
    weights: Option<weights::WorkerState>,
    drains: bool,
) -> &'static str {
    let Some(view) = routed else { return if drains { "drained" } else { "joining" } };
    match view.state {
        router::WorkerState::Draining if view.running == 0 => "drained",
        router::WorkerState::Held => match weights {
            Some(weights::WorkerState::Serving) | None => weights::WorkerState::Updating.as_str(),
            Some(state) => state.as_str(),
        },
        router::WorkerState::Ready => match weights {
            Some(state) => state.as_str(),
            None => weights::WorkerState::Serving.as_str(),
        },
        other => other.as_str(),
    }
}

impl Member {
    /// The core is told of the worker when its engine has first answered.
    pub(super) fn fresh(
        &mut self,
        version: Option<Version>,
        config: &GatewayConfig,
        dispatch: &Dispatch,
    ) -> Result<(), Fault> {
        let worker = &self.config.worker;
        if self.joined {
            tracing::warn!(%worker, ?version, "the engine was started anew");
            return dispatch.event(Event::WorkerRestarted { worker: worker.clone(), version });
        }
        let endpoint = config.endpoint(&self.config, self.index)?;
        let spec = router::WorkerSpec { version, ..self.config.spec.clone() };
        tracing::info!(%worker, url = self.config.url, ?version, "the engine answers");
        dispatch.join(endpoint, spec)?;
        self.joined = true;
        if matches!(self.then, Then::Serve) {
            return Ok(());
        }
        dispatch.event(Event::WorkerDrains(self.config.worker.clone()))
    }

    pub(super) fn joined(&self) -> bool {
        self.joined
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// What follows from what is to become of it now.
    fn turn(&mut self, then: Then, dispatch: &Dispatch) -> Result<(), Fault> {
        let (before, worker) = (std::mem::replace(&mut self.then, then), &self.config.worker);
        let (drained, drains) = (!matches!(before, Then::Serve), !matches!(self.then, Then::Serve));
        match (drained, drains) {
            _ if !self.joined => Ok(()),
            (false, true) => dispatch.event(Event::WorkerDrains(worker.clone())),
            (true, false) => dispatch.event(Event::WorkerStays(worker.clone())),
            _ => Ok(()),
        }
    }

    /// Takes over what can be changed while it serves; false when it takes another worker.
    fn change(&mut self, wish: &Wish, dispatch: &Dispatch) -> Result<bool, Fault> {
        let (worker, slots) = (wish.config.worker.clone(), wish.config.spec.slots);
        let resized = WorkerConfig {
            spec: router::WorkerSpec { slots, ..self.config.spec.clone() },
            ..self.config.clone()
        };
        if resized != wish.config {
            return Ok(false);
        }
        if self.joined && self.config != resized {
            dispatch.event(Event::WorkerResized { worker, slots })?;
        }
        self.config = resized;
        Ok(true)
    }
}

impl Driver {
    /// The workers are to be these. What is written is what a restart finds, so it comes
    /// first. Goes on though the caller has left: the file and what runs stay the same set.
    pub(super) async fn set_workers(
        self: &Arc<Self>,
        set: WorkerSet,
    ) -> Result<WorkerStates, Fault> {
        if !self.config.workers_api {
            let message = "this gateway was started with its engines: start it with --workers-api to name them here";
            return Err(user("WorkersFixed", message));
        }
        let driver = Arc::clone(self);
        let turn = Arc::clone(&self.wishing).lock_owned().await;
        let taken = tokio::spawn(async move {
            let _turn = turn;
            let wishes = set.workers.iter().map(|worker| Wish::new(worker, &driver.config));
            let wishes = wishes.collect::<Result<Vec<_>, _>>()?;
            file::write(driver.config.workers_file(), set).await?;
            driver.wish(wishes)?;
            Ok(driver.worker_states())
        });
        taken.await.unwrap_or_else(|error| {
            let message = format!("the set of workers was not taken to its end: {error}");
            Err(infrastructure("WorkersNotKept", message))
        })
    }

    pub(super) fn worker_states(&self) -> WorkerStates {
        let fleet = self.fleet();
        self.view(|core| fleet.states(core))
    }

    fn wish(&self, wishes: Vec<Wish>) -> Result<(), Fault> {
        let mut fleet = self.fleet();
        let mut left: BTreeSet<WorkerId> = fleet.members.keys().cloned().collect();
        for wish in wishes {
            left.remove(&wish.config.worker);
            let Some(member) = fleet.members.get_mut(&wish.config.worker) else {
                fleet.add(wish, &self.config);
                continue;
            };
            let then = if !member.change(&wish, &self.dispatch)? {
                Then::Leave(Some(Box::new(wish)))
            } else if wish.drain {
                Then::Drain
            } else {
                Then::Serve
            };
            member.turn(then, &self.dispatch)?;
        }
        for worker in left {
            if let Some(member) = fleet.members.get_mut(&worker) {
                member.turn(Then::Leave(None), &self.dispatch)?;
            }
        }
        let leaving = |(id, member): (&WorkerId, &Member)| {
            matches!(member.then, Then::Leave(_)).then(|| id.clone())
        };
        for worker in fleet.members.iter().filter_map(leaving).collect::<Vec<_>>() {
            self.drop_drained(&mut fleet, &worker)?;
        }
        Ok(())
    }

    /// A worker that drains has nothing in flight any more.
    pub(super) fn drained(&self, worker: &WorkerId) {
        tracing::info!(%worker, "drained");
        if let Err(fault) = self.drop_drained(&mut self.fleet(), worker) {
            tracing::error!(%worker, %fault, "the worker that was drained is not dropped");
        }
    }

    /// Drops a worker that is to leave, if it has nothing in flight.
    fn drop_drained(&self, fleet: &mut Fleet, worker: &WorkerId) -> Result<(), Fault> {
        let Some(Member { then: Then::Leave(_), joined, .. }) = fleet.members.get(worker) else {
            return Ok(());
        };
        if *joined {
            let busy =
                |core: &Rollout| core.router().worker(worker).is_some_and(|view| view.running > 0);
            if self.view(busy) {
                return Ok(());
            }
            self.dispatch.leave(worker)?;
        }
        tracing::info!(%worker, "the worker has left");
        let next = fleet.remove(worker).map(|member| member.then);
        self.metrics.worker_left(worker);
        if let Some(Then::Leave(Some(wish))) = next {
            fleet.add(*wish, &self.config);
        }
        Ok(())
    }
}

/// The workers that a gateway starts with: those of its last set, else those of its settings.
///
/// What was kept is a help and not the truth: whoever named the workers names them again, so
/// what cannot be used of it is left out, and a gateway that could not start would never hear.
pub(crate) async fn initial(config: &GatewayConfig) -> Result<Vec<Wish>, Fault> {
    let kept = if config.workers_api { file::read(config.workers_file()).await } else { None };
    let Some(set) = kept else {
        let workers = config.workers.iter();
        return workers.map(|worker| Wish::of(worker.clone(), false, config)).collect();
    };
    let usable = |worker: &WishedWorker| match Wish::new(worker, config) {
        Ok(wish) => Some(wish),
        Err(fault) => {
            tracing::warn!(worker = %worker.name, %fault, "a worker of the last set cannot be used: it is left out until it is named again");
            None
        }
    };
    Ok(set.workers.iter().filter_map(usable).collect())
}
