//! What a job's spec asks for, as workers.

use std::collections::BTreeMap;

use rollwright_crds::Name;
use rollwright_crds::job::{Adaptive, Disaggregation, Fixed, RolloutJobSpec};

use super::Want;
use crate::job::fleet::Pool;
use rollwright_core::router::Role;

/// Why the workers are those that they are, as a sentence for `status.plan`.
pub type Ground = String;

/// The workers of a spec whose pools are all known; none while it is suspended.
pub fn wants(spec: &RolloutJobSpec, pools: &BTreeMap<Name, Pool>) -> (Vec<Want>, Ground) {
    let (wants, ground) = if let Some(fixed) = &spec.allocation.fixed {
        (listed(spec, fixed, pools), "as listed in spec.allocation.fixed".to_owned())
    } else if let Some(adaptive) = &spec.allocation.adaptive {
        budgeted(spec, adaptive, pools)
    } else {
        (Vec::new(), Ground::new())
    };
    if spec.suspend { (Vec::new(), "spec.suspend is set".to_owned()) } else { (wants, ground) }
}

fn listed(spec: &RolloutJobSpec, fixed: &Fixed, pools: &BTreeMap<Name, Pool>) -> Vec<Want> {
    let mut wants = Vec::new();
    for group in &fixed.groups {
        let mut want = |role, pools: Vec<Name>, count| {
            if count > 0 {
                wants.push(Want { role, degree: group.degree, pools, count });
            }
        };
        let own = vec![group.pool.clone()];
        match &spec.disaggregation {
            Some(apart) if apart.prefill_pool == apart.decode_pool => {
                if apart.prefill_pool == group.pool {
                    let prefill = prefill_share(apart, group.workers);
                    want(Role::Prefill, own.clone(), prefill);
                    want(Role::Decode, own, group.workers - prefill);
                } else {
                    want(Role::Mixed, own, group.workers);
                }
            }
            Some(apart) if apart.prefill_pool == group.pool => {
                want(Role::Prefill, own, group.workers);
            }
            Some(apart) if apart.decode_pool == group.pool => {
                want(Role::Decode, own, group.workers);
            }
            _ => {
                let pools = with_fallbacks(spec, fixed, &group.pool, pools);
                want(Role::Mixed, pools, group.workers);
            }
        }
    }
    wants
}

/// A group's pool, then those of the job's other pools whose class comes after its own in an
/// affinity that names it.
fn with_fallbacks(
    spec: &RolloutJobSpec,
    fixed: &Fixed,
    pool: &Name,
    pools: &BTreeMap<Name, Pool>,
) -> Vec<Name> {
    let mut found = vec![pool.clone()];
    let Some(class) = pools.get(pool).map(|pool| &pool.class) else { return found };
    for classes in affinities(spec) {
        let Some(own) = classes.iter().position(|other| other == class) else { continue };
        for later in &classes[own + 1..] {
            let named = fixed.groups.iter().map(|group| &group.pool);
            for other in named.filter(|name| pools.get(*name).is_some_and(|of| of.class == *later))
            {
                if !found.contains(other) {
                    found.push(other.clone());
                }
            }
        }
    }
    found
}

/// The affinities of the tasks, `default` first.
fn affinities(spec: &RolloutJobSpec) -> Vec<&Vec<Name>> {
    let default = spec.hardware_affinity.get("default");
    let others = spec.hardware_affinity.iter().filter(|(task, _)| *task != "default");
    default.into_iter().chain(others.map(|(_, classes)| classes)).collect()
}

fn budgeted(
    spec: &RolloutJobSpec,
    adaptive: &Adaptive,
    pools: &BTreeMap<Name, Pool>,
) -> (Vec<Want>, Ground) {
    let degree = adaptive.degrees.iter().copied().min().unwrap_or(1);
    let count = (adaptive.gpus / degree).min(adaptive.max_workers.unwrap_or(u32::MAX));
    let ground = format!(
        "{count} workers of the smallest degree, {degree}: as many as {} GPUs allow{}; lengths \
         have not been planned for yet",
        adaptive.gpus,
        if adaptive.max_workers == Some(count) { " and maxWorkers" } else { "" },
    );
    if let Some(apart) = &spec.disaggregation {
        let prefill = prefill_share(apart, count);
        let of = |role, pool: &Name, count| Want { role, degree, pools: vec![pool.clone()], count };
        let wants = vec![
            of(Role::Prefill, &apart.prefill_pool, prefill),
            of(Role::Decode, &apart.decode_pool, count - prefill),
        ];
        return (wants, ground);
    }
    let preferences = preferences(spec, adaptive, pools);
    let tasks = preferences.len() as u32;
    let mut shares: Vec<Want> = Vec::new();
    for (index, pools) in preferences.into_iter().enumerate() {
        let share = count / tasks + u32::from((index as u32) < count % tasks);
        match shares.iter_mut().find(|want| want.pools == pools) {
            Some(same) => same.count += share,
            None => shares.push(Want { role: Role::Mixed, degree, pools, count: share }),
        }
    }
    shares.retain(|want| want.count > 0);
    (shares, ground)
}

/// For each task the pools that its affinity allows, in its order; without affinities one list
/// of all pools.
fn preferences(
    spec: &RolloutJobSpec,
    adaptive: &Adaptive,
    pools: &BTreeMap<Name, Pool>,
) -> Vec<Vec<Name>> {
    let of_class = |class: &Name| {
        let is = |name: &&Name| pools.get(*name).is_some_and(|pool| pool.class == *class);
        adaptive.pools.iter().filter(is).cloned().collect::<Vec<_>>()
    };
    let mut found: Vec<Vec<Name>> = affinities(spec)
        .into_iter()
        .map(|classes| classes.iter().flat_map(of_class).collect())
        .filter(|pools: &Vec<Name>| !pools.is_empty())
        .collect();
    if found.is_empty() {
        found.push(adaptive.pools.clone());
    }
    found
}

/// How many of `workers` prefill: the ratio's share, and one of each where there are two.
fn prefill_share(apart: &Disaggregation, workers: u32) -> u32 {
    let parts = apart.ratio.split_once(':');
    let number = |text: &str| text.parse::<u64>().unwrap_or(1);
    let (prefill, decode) = parts.map_or((1, 1), |(left, right)| (number(left), number(right)));
    let whole = (prefill + decode).max(1);
    let share = (u64::from(workers) * prefill + whole / 2) / whole;
    if workers < 2 { 0 } else { (share as u32).clamp(1, workers - 1) }
}

#[cfg(test)]
mod tests;
