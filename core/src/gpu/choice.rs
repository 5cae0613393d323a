//! Which degree an action gets, where it may have several.

use std::time::Duration;

use super::Phase;
use super::chunk::Degree;
use super::pool::Pool;
use super::tenant::{Kind, ServiceIndex};

impl Pool {
    /// The degree at which an action of `service` costs least if it comes now, of those in
    /// `allowed` that the service has (empty: of all that it has). `None` where there is none.
    ///
    /// The cost is the objective of ARL-Tangram 5.2, the sum of completion times, as far as
    /// this action changes it: its own expected completion, and what those that wait already
    /// lose by the GPUs that it holds, `waiting x degree x duration / GPUs`. How long it takes
    /// at a degree that was never run is taken from the nearest measured one, as if GPUs
    /// divided it: so a larger degree is tried where its engine costs little to have. The
    /// smallest of equals.
    pub fn choose(&self, service: ServiceIndex, allowed: &[Degree]) -> Option<Degree> {
        let degrees = self.config.services.get(service.0)?.degrees.keys().copied();
        let degrees = degrees.filter(|degree| allowed.is_empty() || allowed.contains(degree));
        let waiting: usize = self.waiting.values().map(std::collections::BTreeMap::len).sum();
        let gpus = self.gpus().max(1);
        let cost = |degree: &Degree| {
            let run = self.run_time(service, *degree);
            let delay = run * waiting as f64 * f64::from(degree.gpus()) / f64::from(gpus);
            self.start_in(Kind { service, degree: *degree }, run) + run + delay
        };
        // `min_by` keeps the first of equals, and degrees ascend. One that no node has is
        // refused when it is submitted, with what would be right: it is chosen last.
        degrees.min_by(|a, b| {
            (!self.has_chunk(*a), cost(a))
                .partial_cmp(&(!self.has_chunk(*b), cost(b)))
                .unwrap_or(std::cmp::Ordering::Equal)
        })
    }

    /// Seconds until an action of this kind would start.
    fn start_in(&self, kind: Kind, run: f64) -> f64 {
        let batch = self.service(kind).map_or(1, |service| service.batch.max(1)) as f64;
        let ahead = self.waiting.get(&kind).map_or(0, std::collections::BTreeMap::len) as f64;
        let of_kind = self.engines.values().filter(|engine| engine.kind == kind);
        let running: usize = of_kind.clone().map(|engine| engine.running.len()).sum();
        let engines = of_kind.filter(|engine| !engine.running.is_empty()).count().max(1) as f64;
        if let Some(start) = self.time_to_start(kind.service, kind.degree) {
            return start.as_secs_f64() + (ahead / batch).floor() * run;
        }
        let rounds = ((ahead + running as f64) / (batch * engines)).ceil().max(1.0);
        let restore = if running > 0 { Duration::ZERO } else { self.least_restore(kind) };
        restore.as_secs_f64() + rounds * run
    }

    /// What an engine of this kind takes to be there once its GPUs are free.
    fn least_restore(&self, kind: Kind) -> Duration {
        let exists = self.engines.values().any(|engine| engine.kind == kind);
        let phase = if exists { Phase::Wake } else { Phase::Launch };
        self.expected(kind, phase).unwrap_or_default()
    }

    /// Seconds that an action runs: as measured, else scaled from the nearest degree.
    fn run_time(&self, service: ServiceIndex, degree: Degree) -> f64 {
        let measured = Degree::ALL.into_iter().filter_map(|of| {
            let run = self.expected(Kind { service, degree: of }, Phase::Run)?;
            Some((of.level().abs_diff(degree.level()), of, run))
        });
        let nearest = measured.min_by_key(|(distance, of, _)| (*distance, *of));
        nearest.map_or(0.0, |(_, of, run)| {
            run.as_secs_f64() * f64::from(of.gpus()) / f64::from(degree.gpus())
        })
    }

    fn has_chunk(&self, degree: Degree) -> bool {
        let nodes = self.known_nodes().filter_map(|node| self.chunks.node(node));
        let mut nodes = nodes.peekable();
        // Before any node is known, any may come.
        nodes.peek().is_none() || nodes.into_iter().any(|(gpus, _)| gpus >= degree.gpus())
    }

    /// GPUs of all nodes.
    pub fn gpus(&self) -> u32 {
        (0..self.nodes.len()).filter_map(|node| self.chunks.node(node)).map(|(gpus, _)| gpus).sum()
    }
}
