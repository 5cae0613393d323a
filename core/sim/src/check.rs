//! What can never run is refused before the simulation begins.

use crate::cluster::{Cluster, PoolKind};
use crate::known::MOST_UNITS;
use crate::policy::Policy;
use crate::workload::{Action, Trajectory, UNIT};

/// Why a trajectory cannot run on a cluster under a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// More than any node has.
    #[error("its memory fits no node of pool {pool}: give it less")]
    Memory {
        /// The pool of its CPU actions.
        pool: String,
    },
    /// Two sandboxes would be needed.
    #[error("its CPU actions name two pools: a trajectory has one sandbox, on one node")]
    TwoPools,
    /// A pod that no node holds.
    #[error("a pod of {cores} cores fits no node of pool {pool}: use fewer")]
    Pod {
        /// What the policy reserves.
        cores: String,
        /// The pool of its CPU actions.
        pool: String,
    },
    /// No number of units is small enough for the pod.
    #[error("an action needs at least {units} units, more than the pod's {cores} cores")]
    Units {
        /// The least of the action.
        units: String,
        /// What the policy reserves.
        cores: String,
    },
    /// More units than the core counts.
    #[error("an action in pool {pool} needs more than {MOST_UNITS} units: use fewer")]
    ManyUnits {
        /// Its pool.
        pool: String,
    },
    /// More nanoseconds than 64 bits count.
    #[error("the simulation would take longer than 584 years: use shorter times")]
    TooLong,
    /// The replicas of other services take all GPUs.
    #[error("no replica of service {service} fits its pool")]
    NoReplica {
        /// The service of an action.
        service: String,
    },
}

/// Fails for what `policy` can never run. Actions are known to fit a node.
pub(crate) fn check(
    trajectory: &Trajectory,
    cluster: &Cluster,
    policy: Policy,
    replicas: &[usize],
) -> Result<(), Misfit> {
    let mut sandbox = None;
    for action in trajectory.actions() {
        match cluster.pools[action.pool].kind {
            PoolKind::Cpu { cores, memory, .. } => {
                let pool = cluster.pools[action.pool].name.clone();
                if sandbox.is_some_and(|other| other != action.pool) {
                    return Err(Misfit::TwoPools);
                }
                sandbox = Some(action.pool);
                if trajectory.memory > memory {
                    return Err(Misfit::Memory { pool });
                }
                let pod = match policy {
                    Policy::Fixed { .. } => continue,
                    Policy::Elastic
                    | Policy::ElasticUnbounded
                    | Policy::ElasticTrajectory
                    | Policy::Tangram => {
                        known_to_the_core(action, pool)?;
                        continue;
                    }
                    Policy::Static { cores } => cores,
                    Policy::Kubernetes { request, .. } => request,
                };
                if pod > cores * UNIT {
                    return Err(Misfit::Pod { cores: units(pod), pool });
                }
                if matches!(policy, Policy::Static { .. }) && action.smallest() > pod {
                    let least = units(action.smallest());
                    return Err(Misfit::Units { units: least, cores: units(pod) });
                }
            }
            PoolKind::Gpu { .. } => {
                let Some(service) = action.service else { continue };
                if policy.reserves() && replicas[service] == 0 {
                    let service = cluster.services[service].name.clone();
                    return Err(Misfit::NoReplica { service });
                }
            }
            PoolKind::Quota(_) => {}
        }
    }
    Ok(())
}

fn known_to_the_core(action: &Action, pool: String) -> Result<(), Misfit> {
    if action.smallest() > MOST_UNITS * UNIT {
        return Err(Misfit::ManyUnits { pool });
    }
    Ok(())
}

fn units(millionths: u64) -> String {
    (millionths as f64 / UNIT as f64).to_string()
}
