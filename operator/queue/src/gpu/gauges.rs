//! The gauges of the pools, and counts that the cores keep.

use std::collections::BTreeMap;

use rollwright_core::gpu::{Kind, Residency, ServiceIndex};

use super::actor::Gpu;
use super::pool::Pool;

/// The engines of a service at one degree, on linked nodes.
#[derive(Debug, Clone, Copy, Default)]
struct Engines {
    residents: u64,
    /// Bytes of GPUs that they have or are about to have, as declared.
    device: u64,
    /// The same of their nodes.
    host: u64,
}

fn engines(pool: &Pool) -> BTreeMap<Kind, Engines> {
    let mut all = BTreeMap::new();
    for (index, service) in pool.services.iter().enumerate() {
        for degree in service.core.degrees.keys() {
            let kind = Kind { service: ServiceIndex(index), degree: *degree };
            all.insert(kind, Engines::default());
        }
    }
    for view in pool.core.engines() {
        let kind = view.kind;
        let service = pool.services.get(kind.service.0);
        let footprint = service.and_then(|service| service.core.degrees.get(&kind.degree));
        let (Some(of), Some(footprint)) = (all.get_mut(&kind), footprint) else { continue };
        if !pool.is_linked(&view.node) {
            continue;
        }
        of.residents += u64::from(view.residency == Residency::Resident);
        let asleep = view.residency == Residency::Absent;
        let of_each = if asleep { footprint.residue } else { footprint.device };
        let on_all = of_each.saturating_mul(u64::from(kind.degree.gpus()));
        of.device = of.device.saturating_add(on_all);
        of.host = of.host.saturating_add(footprint.host);
    }
    all
}

impl Gpu {
    pub(super) fn refresh_gauges(&self) {
        let metrics = &self.parts.metrics.gpu;
        for pool in &self.pools {
            let engines = engines(pool);
            for (kind, of) in &engines {
                let labels = [pool.label(kind.service), &kind.degree.gpus().to_string()];
                metrics.residents.with_label_values(&labels).set(gauge(of.residents));
            }
            for (at, tally) in pool.tallies.iter().enumerate() {
                let service = ServiceIndex(at);
                let label = [pool.label(service)];
                let waiting = pool.core.waiting(service) as u64;
                metrics.waiting.with_label_values(&label).set(gauge(waiting));
                metrics.running.with_label_values(&label).set(gauge(tally.running));
                let trouble = pool.core.trouble(service).is_some();
                metrics.in_trouble.with_label_values(&label).set(trouble.into());
                for (reason, count) in pool.core.failures_by_reason(service) {
                    let known = metrics.failures.with_label_values(&[label[0], reason]);
                    known.inc_by(count.saturating_sub(known.get()));
                }
                let own = engines.iter().filter(|(kind, _)| kind.service == service);
                let (device, host) = own.fold((0_u64, 0_u64), |(device, host), (_, of)| {
                    (device.saturating_add(of.device), host.saturating_add(of.host))
                });
                let labels = [&pool.name, label[0]];
                metrics.device_held.with_label_values(&labels).set(gauge(device));
                metrics.host_held.with_label_values(&labels).set(gauge(host));
            }
            let (mut gpus, mut lost, mut device, mut host, mut fake) = (0, 0, 0_u64, 0_u64, false);
            for node in pool.nodes.values().filter(|node| node.linked) {
                let fell = node.lost.len() as u64;
                gpus += u64::from(node.gpus);
                lost += fell;
                let whole = u64::from(node.gpus).saturating_sub(fell);
                device = device.saturating_add(whole.saturating_mul(node.memory));
                host = host.saturating_add(node.host);
                fake |= node.fake;
            }
            let label = [&pool.name];
            metrics.gpus.with_label_values(&label).set(gauge(gpus));
            metrics.lost_gpus.with_label_values(&label).set(gauge(lost));
            metrics.device_memory.with_label_values(&label).set(gauge(device));
            metrics.host_memory.with_label_values(&label).set(gauge(host));
            metrics.fake.with_label_values(&label).set(fake.into());
        }
    }
}

fn gauge(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
