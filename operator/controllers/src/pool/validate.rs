//! Step two: what the pool wants, checked. Pure.

use rollwright_crds::pool::{CpuPool, GpuPool};
use rollwright_crds::{ResourcePool, rules::Violation};

/// A pool whose spec holds together.
#[derive(Clone, Debug)]
pub(super) struct Validated<'a> {
    pub(super) name: &'a str,
    pub(super) sort: Sort<'a>,
}

/// What it is a pool of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sort<'a> {
    Cpu(&'a CpuPool),
    Gpu(&'a GpuPool),
    Quota,
}

/// What is wrong with a spec.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub(super) struct Invalid(Vec<Violation>);

pub(super) fn validate(pool: &ResourcePool) -> Result<Validated<'_>, Invalid> {
    let violations = pool.spec.validate();
    let sort = match (&pool.spec.cpu, &pool.spec.gpu) {
        (Some(cpu), _) => Sort::Cpu(cpu),
        (None, Some(gpu)) => Sort::Gpu(gpu),
        (None, None) => Sort::Quota,
    };
    if !violations.is_empty() {
        return Err(Invalid(violations));
    }
    Ok(Validated { name: pool.metadata.name.as_deref().unwrap_or_default(), sort })
}
