//! A cluster from JSON.

use std::collections::BTreeSet;
use std::time::Duration;

use rollwright_core::quota::{QuotaLimit, Rate};
use rollwright_sim::MOST_GPUS;
use rollwright_sim::cluster::{Bytes, Cluster, Pool, PoolKind, Service, nanos};

use crate::input::{Fault, Object, Value};

/// Most nodes of a pool.
const MOST_NODES: u64 = 1_000_000;
/// Most nodes of a pool with GPUs, which replicas are dealt to one by one.
const MOST_GPU_NODES: u64 = 100_000;
/// Most of what a node or quota has.
const MOST: u64 = 1_000_000_000;
/// Longest time of an input, in seconds: 30 years.
const LONGEST: f64 = 1e9;
/// Sizes of an aligned chunk.
const DEGREES: [u64; 4] = [1, 2, 4, 8];

pub(super) fn read(value: &Value) -> Result<Cluster, Fault> {
    let input = value.object(&["pools", "services", "depth"])?;
    let pools = input.required("pools", |pools| {
        let mut names = BTreeSet::new();
        pools.list(|value| {
            let pool = pool(value)?;
            unused(&mut names, &pool.name).map_err(|fault| fault.in_field("name"))?;
            Ok(pool)
        })
    })?;
    let services = input.optional("services", |services| {
        let mut names = BTreeSet::new();
        services.list(|value| {
            let service = service(value, &pools)?;
            unused(&mut names, &service.name).map_err(|fault| fault.in_field("name"))?;
            Ok(service)
        })
    })?;
    let depth = input.optional("depth", Value::count)?;
    Ok(Cluster { pools, services: services.unwrap_or_default(), depth })
}

/// Fails for a name that was used before.
pub(super) fn unused(names: &mut BTreeSet<String>, name: &str) -> Result<(), Fault> {
    if names.insert(name.to_owned()) {
        return Ok(());
    }
    Err(Fault::new("the name is used twice: give each its own"))
}

/// Seconds as nanoseconds.
pub(super) fn time(value: &Value) -> Result<u64, Fault> {
    seconds(value).map(nanos)
}

/// Seconds, 0 or more.
pub(super) fn seconds(value: &Value) -> Result<f64, Fault> {
    let seconds = value.non_negative()?;
    if seconds > LONGEST {
        return Err(Fault::new(format!("must be at most {LONGEST} seconds, got {seconds:?}")));
    }
    Ok(seconds)
}

fn count(value: &Value, most: u64) -> Result<u64, Fault> {
    let count = value.count()?;
    if count > most {
        return Err(Fault::new(format!("must be at most {most}, got {count}")));
    }
    Ok(count)
}

/// GiB, 0 or more.
pub(super) fn memory(value: &Value) -> Result<Bytes, Fault> {
    let gib = value.non_negative()?;
    if gib > MOST as f64 {
        return Err(Fault::new(format!("must be at most {MOST} GiB, got {gib:?}")));
    }
    Ok(Bytes::from_gib(gib))
}

fn pool(value: &Value) -> Result<Pool, Fault> {
    let any = [
        "name",
        "kind",
        "nodes",
        "cores",
        "numa",
        "memory_gib",
        "gpus",
        "concurrency",
        "per_period",
        "period_s",
    ];
    let kind = value.object(&any)?.required("kind", Value::text)?;
    let nodes = |pool: &Object<'_>, most| pool.required("nodes", |nodes| count(nodes, most));
    let (pool, kind) = match kind {
        "cpu" => {
            let pool = value.object(&["name", "kind", "nodes", "cores", "numa", "memory_gib"])?;
            pool.optional("numa", Value::count)?;
            let cores = pool.required("cores", |cores| count(cores, MOST))?;
            let memory = pool.required("memory_gib", |gib| {
                gib.positive()?;
                memory(gib)
            })?;
            (pool, PoolKind::Cpu { nodes: nodes(&pool, MOST_NODES)?, cores, memory })
        }
        "gpu" => {
            let pool = value.object(&["name", "kind", "nodes", "gpus"])?;
            let gpus = pool.required("gpus", |gpus| count(gpus, MOST_GPUS))?;
            (pool, PoolKind::Gpu { nodes: nodes(&pool, MOST_GPU_NODES)?, gpus })
        }
        "quota" => {
            let pool = value.object(&["name", "kind", "concurrency", "per_period", "period_s"])?;
            (pool, PoolKind::Quota(quota(pool)?))
        }
        _ => return Err(Fault::new("unknown kind: use cpu, gpu or quota").in_field("kind")),
    };
    Ok(Pool { name: pool.required("name", Value::text)?.to_owned(), kind })
}

fn quota(pool: Object<'_>) -> Result<QuotaLimit, Fault> {
    let amount = |value: &Value| count(value, MOST).map(|amount| amount as u32);
    let concurrency = pool.optional("concurrency", amount)?;
    let per_period = pool.optional("per_period", amount)?;
    let period = pool.optional("period_s", |value| {
        value.positive()?;
        time(value).map(|period| Duration::from_nanos(period.max(1)))
    })?;
    let rate = match (per_period, period) {
        (Some(amount), Some(period)) => Some(Rate { amount, period }),
        (None, None) => None,
        (Some(_), None) => {
            return Err(Fault::new("missing: per_period needs it").in_field("period_s"));
        }
        (None, Some(_)) => {
            return Err(Fault::new("missing: period_s needs it").in_field("per_period"));
        }
    };
    if concurrency.is_none() && rate.is_none() {
        let what = "missing: a quota needs concurrency, or per_period and period_s, or both";
        return Err(Fault::new(what).in_field("concurrency"));
    }
    Ok(QuotaLimit { concurrency, rate })
}

fn service(value: &Value, pools: &[Pool]) -> Result<Service, Fault> {
    let input = value.object(&["name", "pool", "degrees", "restore_s"])?;
    let name = input.required("name", Value::text)?.to_owned();
    let (pool, gpus) = input.required("pool", |value| {
        let pool = find(value, pools.iter().map(|pool| pool.name.as_str()), "pool")?;
        match pools[pool].kind {
            PoolKind::Gpu { gpus, .. } => Ok((pool, gpus)),
            _ => Err(Fault::new("a service needs a pool of kind gpu")),
        }
    })?;
    let degrees = input.required("degrees", |value| {
        let mut seen = BTreeSet::new();
        value.list(|value| {
            let degree = value.count()?;
            if !DEGREES.contains(&degree) {
                return Err(Fault::new(format!("must be 1, 2, 4 or 8, got {degree}")));
            }
            if !seen.insert(degree) {
                return Err(Fault::new("given twice: give it once"));
            }
            Ok(())
        })?;
        let fitting: Vec<u64> = seen.into_iter().filter(|&degree| degree <= gpus).collect();
        if fitting.is_empty() {
            let what = format!("no degree fits the {gpus} GPUs of a node: give a smaller one");
            return Err(Fault::new(what));
        }
        Ok(fitting)
    })?;
    let restore = input.required("restore_s", time)?;
    Ok(Service { name, pool, degrees, restore })
}

/// The place of a name.
pub(super) fn find<'a>(
    value: &Value,
    mut names: impl Iterator<Item = &'a str>,
    what: &str,
) -> Result<usize, Fault> {
    let name = value.text()?;
    let unknown = || Fault::new(format!("unknown {what}: use the name of a {what} of the cluster"));
    names.position(|known| known == name).ok_or_else(unknown)
}
