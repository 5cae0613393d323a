//! A workload from JSON Lines.

use std::collections::BTreeSet;

use rollwright_sim::cluster::{Cluster, PoolKind};
use rollwright_sim::workload::{Action, Phase, Trajectory, UNIT};

use super::cluster::{find, memory, seconds, time, unused};
use crate::input::{Fault, Object, Value};

/// Most units of an action.
const MOST_UNITS: f64 = 1e9;

/// Reads trajectories for one cluster.
pub(super) struct Reader<'a> {
    cluster: &'a Cluster,
    names: BTreeSet<String>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Self {
        Self { cluster, names: BTreeSet::new() }
    }

    /// One line.
    pub(super) fn trajectory(&mut self, value: &Value) -> Result<Trajectory, Fault> {
        let input = value.object(&["trajectory", "arrival_s", "memory_gib", "phases"])?;
        let name = input.required("trajectory", |name| {
            let name = name.text()?;
            unused(&mut self.names, name)?;
            Ok(name.to_owned())
        })?;
        Ok(Trajectory {
            name,
            arrival: input.optional("arrival_s", time)?.unwrap_or(0),
            memory: input.optional("memory_gib", memory)?.unwrap_or_default(),
            phases: input.required("phases", |phases| phases.list(|phase| self.phase(phase)))?,
        })
    }

    fn phase(&self, value: &Value) -> Result<Phase, Fault> {
        let input = value.object(&["generate_s", "action"])?;
        match (input.has("generate_s"), input.has("action")) {
            (true, false) => input.required("generate_s", time).map(Phase::Generate),
            (false, true) => input.required("action", |action| self.action(action)).map(Phase::Act),
            _ => Err(Fault::new("must have one of generate_s and action")),
        }
    }

    fn action(&self, value: &Value) -> Result<Action, Fault> {
        let known = ["pool", "service", "kind", "units", "duration_s", "serial", "malleable"];
        let input = value.object(&known)?;
        input.optional("kind", Value::text)?;
        let pools = self.cluster.pools.iter().map(|pool| pool.name.as_str());
        let pool = input.required("pool", |value| find(value, pools, "pool"))?;
        let service = self.service(input, pool)?;
        let units = input.optional("units", |value| self.units(value, pool, service))?;
        let units = units.unwrap_or_else(|| match service {
            Some(service) => vec![self.cluster.services[service].degrees[0] * UNIT],
            None => vec![UNIT],
        });
        let serial = input.optional("serial", |value| {
            let serial = value.non_negative()?;
            if serial > 1.0 {
                return Err(Fault::new(format!("must be from 0 to 1, got {serial:?}")));
            }
            Ok(serial)
        })?;
        Ok(Action {
            pool,
            service,
            units,
            duration: input.required("duration_s", seconds)?,
            serial: serial.unwrap_or(0.0),
            malleable: input.optional("malleable", Value::flag)?.unwrap_or(false),
        })
    }

    /// Required on GPUs, and nowhere else.
    fn service(&self, input: Object<'_>, pool: usize) -> Result<Option<usize>, Fault> {
        let name = &self.cluster.pools[pool].name;
        if !matches!(self.cluster.pools[pool].kind, PoolKind::Gpu { .. }) {
            return input.optional("service", |_| {
                Err(Fault::new(format!("pool {name} has no GPUs: an action there has no service")))
            });
        }
        let names = self.cluster.services.iter().map(|service| service.name.as_str());
        input
            .required("service", |value| {
                let service = find(value, names, "service")?;
                if self.cluster.services[service].pool != pool {
                    return Err(Fault::new(format!("it is no service of pool {name}")));
                }
                Ok(service)
            })
            .map(Some)
    }

    /// Ascending; those that a node can give.
    fn units(&self, value: &Value, pool: usize, service: Option<usize>) -> Result<Vec<u64>, Fault> {
        let kind = self.cluster.pools[pool].kind;
        let mut before = 0;
        let all = value.list(|value| {
            let units = value.positive()?;
            let share = units < 1.0;
            let may_share = matches!(kind, PoolKind::Cpu { .. }) && before == 0;
            if units > MOST_UNITS || (share && !may_share) || (!share && units.fract() > 0.0) {
                let what = "must be whole; only the first of a CPU action may be below 1";
                return Err(Fault::new(format!("{what}, got {units:?}")));
            }
            let millionths = (units * UNIT as f64).round() as u64;
            if millionths <= before {
                let what = "must be larger than the one before, from 0.000001 on";
                return Err(Fault::new(format!("{what}, got {units:?}")));
            }
            before = millionths;
            Ok(millionths)
        })?;
        let Some(&least) = all.first() else {
            return Err(Fault::new("is empty: list at least one, such as [1]"));
        };
        let fits = |units: &u64| match (kind, service) {
            (PoolKind::Cpu { cores, .. }, _) => *units <= cores * UNIT,
            (_, Some(service)) => {
                self.cluster.services[service].degrees.iter().any(|degree| degree * UNIT == *units)
            }
            _ => true,
        };
        let fitting: Vec<u64> = all.iter().copied().filter(fits).collect();
        if !fitting.is_empty() {
            return Ok(fitting);
        }
        Err(Fault::new(match kind {
            PoolKind::Cpu { cores, .. } => {
                let least = least as f64 / UNIT as f64;
                format!("at least {least} cores, more than the {cores} of a node: give fewer")
            }
            _ => "none is a degree of the service that fits a node: use one that is".to_owned(),
        }))
    }
}
