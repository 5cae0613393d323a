//! The loop over instants.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::check::{Misfit, check};
use crate::cluster::{Cluster, PoolKind};
use crate::elastic::ByPromise;
use crate::fixed::Fixed;
use crate::lines::{Discipline, Lines};
use crate::pods::Pods;
use crate::policy::Policy;
use crate::replicas::replicas;
use crate::report::{Decisions, Distribution, Report};
use crate::tangram::Tangram;
use crate::workload::{Action, Phase, Trajectory};
use crate::world::{Event, Record, World};

/// What a policy is told, and when it decides.
pub(crate) trait Scheduler<'a> {
    /// A trajectory arrived. True where it begins at once.
    fn arrived(&mut self, of: usize, world: &mut World<'a>) -> bool;
    /// Which of those that did not begin at once begin now.
    fn admit(&mut self, world: &mut World<'a>) -> Vec<usize>;
    /// The action that a trajectory is at waits for a decision.
    fn submitted(&mut self, of: usize, action: &'a Action, world: &mut World<'a>);
    /// The action ended; the `units` that it had, in millionths, are free.
    fn finished(&mut self, of: usize, action: &'a Action, units: u64, world: &mut World<'a>);
    /// The trajectory ended; what it held is free.
    fn left(&mut self, of: usize, world: &mut World<'a>);
    /// One scheduling round.
    fn round(&mut self, world: &mut World<'a>);
}

/// A trajectory that cannot run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("trajectory {trajectory}: {misfit}")]
pub struct Refused {
    /// Its place in the workload.
    pub trajectory: usize,
    /// Why.
    pub misfit: Misfit,
}

/// Who looks on while a simulation runs; a clock is one.
pub trait Watch {
    /// Reads a clock that is used for nothing but the time that decisions take.
    fn clock(&mut self) -> Duration;
    /// So many actions have ended.
    fn ended(&mut self, _actions: usize) {}
}

impl<F: FnMut() -> Duration> Watch for F {
    fn clock(&mut self) -> Duration {
        self()
    }
}

/// Runs the workload to its end. Also returns every action, in order of completion.
pub fn simulate(
    cluster: &Cluster,
    workload: &[Trajectory],
    policy: Policy,
    watch: &mut impl Watch,
) -> Result<(Report, Vec<Record>), Refused> {
    let dealt = replicas(cluster);
    for (i, trajectory) in workload.iter().enumerate() {
        check(trajectory, cluster, policy, &dealt)
            .map_err(|misfit| Refused { trajectory: i, misfit })?;
    }
    let mut world = World::new(cluster, workload);
    let mut decisions = Vec::new();
    let pods = |request, limit| Pods::new(cluster, workload, request, limit, &dealt);
    match policy {
        Policy::Fixed { units } => {
            run(&mut world, lines(cluster, Fixed { limit: units }), watch, &mut decisions);
        }
        Policy::Elastic => {
            run(&mut world, lines(cluster, ByPromise::Actions), watch, &mut decisions);
        }
        Policy::ElasticUnbounded => {
            run(&mut world, lines(cluster, ByPromise::Unbounded), watch, &mut decisions);
        }
        Policy::ElasticTrajectory => {
            run(&mut world, lines(cluster, ByPromise::Trajectories), watch, &mut decisions);
        }
        Policy::Tangram => {
            let depth = cluster.depth.map(|depth| usize::try_from(depth).unwrap_or(usize::MAX));
            run(&mut world, lines(cluster, Tangram { depth }), watch, &mut decisions);
        }
        Policy::Static { cores } => run(&mut world, pods(cores, None), watch, &mut decisions),
        Policy::Kubernetes { request, limit } => {
            run(&mut world, pods(request, Some(limit)), watch, &mut decisions);
        }
    }
    if world.now == u64::MAX {
        return Err(Refused { trajectory: 0, misfit: Misfit::TooLong });
    }
    let held = policy.reserves().then_some(dealt);
    Ok((report(&world, held.as_deref(), decisions), world.records))
}

fn lines<'a, D: Discipline<'a>>(cluster: &'a Cluster, discipline: D) -> Lines<'a, D> {
    Lines::new(cluster, discipline)
}

fn run<'a>(
    world: &mut World<'a>,
    mut scheduler: impl Scheduler<'a>,
    watch: &mut impl Watch,
    decisions: &mut Vec<u64>,
) {
    while let Some(events) = world.next_instant() {
        // Completions come first, all of them; then what they lead to, in input order.
        let mut proceeding = Vec::new();
        for event in events {
            match event {
                Event::Finished { of, .. } => {
                    let units = world.finish(of);
                    if let Some(Phase::Act(action)) = world.phase(of) {
                        scheduler.finished(of, action, units, world);
                    }
                    world.advance(of);
                    proceeding.push(of);
                }
                Event::Arrived(of) => {
                    if scheduler.arrived(of, world) {
                        proceeding.push(of);
                    }
                }
                Event::Proceeds(of) => proceeding.push(of),
                Event::Retries(of) => {
                    if let Some(Phase::Act(action)) = world.phase(of) {
                        scheduler.submitted(of, action, world);
                    }
                }
                Event::Wakes => {}
            }
        }
        // What a trajectory that ends held is free for those that wait to begin.
        proceeding.retain(|&of| {
            let ends = world.phase(of).is_none();
            if ends {
                proceed(of, world, &mut scheduler);
            }
            !ends
        });
        proceeding.extend(scheduler.admit(world));
        proceeding.sort_unstable();
        for of in proceeding {
            proceed(of, world, &mut scheduler);
        }
        // Trajectories of no length ended meanwhile.
        for of in scheduler.admit(world) {
            world.after(0, Event::Proceeds(of));
        }
        let before = watch.clock();
        scheduler.round(world);
        decisions.push(watch.clock().saturating_sub(before).as_nanos() as u64);
        watch.ended(world.records.len());
    }
}

/// The trajectory enters its next phase, or ends.
fn proceed<'a>(of: usize, world: &mut World<'a>, scheduler: &mut impl Scheduler<'a>) {
    loop {
        match world.phase(of) {
            None => {
                world.ended();
                return scheduler.left(of, world);
            }
            Some(Phase::Act(action)) => {
                world.submitted(of, action);
                return scheduler.submitted(of, action, world);
            }
            Some(Phase::Generate(nanos)) => {
                world.advance(of);
                if *nanos > 0 {
                    return world.after(*nanos, Event::Proceeds(of));
                }
            }
        }
    }
}

fn report(world: &World<'_>, replicas: Option<&[usize]>, decisions: Vec<u64>) -> Report {
    let from = world.trajectories.iter().map(|trajectory| trajectory.arrival).min().unwrap_or(0);
    let length = world.end.saturating_sub(from);
    let of = |time: fn(&Record) -> u64| Distribution::of(world.records.iter().map(time).collect());
    let (mut utilization, mut reserved) = (BTreeMap::new(), BTreeMap::new());
    for (i, pool) in world.cluster.pools.iter().enumerate() {
        let Some(units) = units(pool.kind) else { continue };
        let capacity = units * length as f64;
        let part = |area: f64| if capacity > 0.0 { area / capacity } else { 0.0 };
        let usage = world.usage[i];
        // Replicas are held from the first arrival to the end.
        let resident: f64 = replicas.map_or(0.0, |replicas| {
            let services = world.cluster.services.iter().zip(replicas);
            let on_pool = services.filter(|(service, _)| service.pool == i);
            on_pool.map(|(service, count)| service.degrees[0] as f64 * *count as f64).sum()
        });
        let held = usage.held.until(world.end) + resident * length as f64;
        utilization.insert(pool.name.clone(), part(usage.busy.until(world.end)));
        reserved.insert(pool.name.clone(), part(held));
    }
    Report {
        trajectories: world.trajectories.len(),
        actions: world.records.len(),
        act_s: of(|record| record.ended - record.submitted),
        queue_s: of(|record| record.started - record.submitted),
        exec_s: of(|record| record.ended - record.started),
        makespan_s: length as f64 / 1e9,
        utilization,
        reserved,
        decision_us: Decisions::of(decisions),
    }
}

/// Units that run at once; `None` without a bound.
fn units(kind: PoolKind) -> Option<f64> {
    match kind {
        PoolKind::Cpu { nodes, cores, .. } => Some(nodes as f64 * cores as f64),
        PoolKind::Gpu { nodes, gpus } => Some(nodes as f64 * gpus as f64),
        PoolKind::Quota(limit) => limit.concurrency.map(f64::from),
    }
}
