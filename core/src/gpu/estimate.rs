//! How long it takes until an engine can serve.

use std::time::Duration;

use super::chunk::{Chunk, Degree};
use super::chunks::Place;
use super::learned::Phase;
use super::pool::Pool;
use super::tenant::{EngineId, Kind, ServiceIndex, State, Tenant, Turn};

impl Pool {
    /// What an action would wait for its engine if it came now: what a scheduler adds to the
    /// duration at this degree. Zero where the service is resident and idle on GPUs on which
    /// nobody executes, `None` where nothing can be moved for it.
    pub fn time_to_start(&self, service: ServiceIndex, degree: Degree) -> Option<Duration> {
        let kind = Kind { service, degree };
        let claims = self.closed();
        if self.chunks.resident(kind, &claims.turns, &claims.held).is_some() {
            return Some(Duration::ZERO);
        }
        let idle = self
            .serving(kind)
            .filter(|(_, engine)| engine.state == State::Resident && engine.running.is_empty())
            .map(|(_, engine)| self.runs_before(engine.chunk, None));
        let place = self.find_place(kind, Turn::MAX, &claims);
        let restored = place.map(|place| self.time_to_restore(kind, &place));
        idle.chain(restored).min()
    }

    /// Until an engine is restored there, and what would run there before it has ended.
    pub(super) fn time_to_restore(&self, kind: Kind, place: &Place) -> Duration {
        let phase = if place.asleep.is_some() { Phase::Wake } else { Phase::Launch };
        let moves = self.longest(place.chunk, |engine, tenant| {
            let leaves = place.evict.contains(&engine) || place.stop.contains(&engine);
            let phase = match tenant.state {
                State::Reserved { launch: true } | State::Restoring { launch: true } => {
                    Phase::Launch
                }
                State::Reserved { launch: false } | State::Restoring { launch: false } => {
                    Phase::Wake
                }
                State::Yielding | State::Evicting | State::Leaving { .. } => Phase::Evict,
                State::Resident | State::Asleep if leaves => Phase::Evict,
                State::Resident | State::Asleep => return None,
            };
            self.expected(tenant.kind, phase)
        });
        let restored = moves.saturating_add(self.expected(kind, phase).unwrap_or_default());
        restored.max(self.runs_before(place.chunk, None))
    }

    /// Whether another engine would be there before those that exist have served `waiting`.
    pub(super) fn is_worth(&self, kind: Kind, place: &Place, waiting: usize, batch: usize) -> bool {
        let awake = || self.serving(kind).filter(|(_, of)| of.state != State::Asleep);
        let engines = awake().count();
        if engines == 0 {
            return true;
        }
        let Some(run) = self.expected(kind, Phase::Run) else { return place.asleep.is_some() };
        let rounds = waiting.div_ceil(batch * engines);
        let others = awake().map(|(_, engine)| self.runs_before(engine.chunk, Some(kind))).min();
        let wait = run.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX));
        let wait = wait.saturating_add(others.unwrap_or_default());
        self.time_to_restore(kind, place) <= wait
    }

    /// What runs on these GPUs, or is being restored to run there, takes so long; without
    /// engines of one kind.
    fn runs_before(&self, chunk: Chunk, without: Option<Kind>) -> Duration {
        self.longest(chunk, |_, tenant| {
            let runs = tenant.executing || tenant.is_coming();
            let counts = runs && without != Some(tenant.kind);
            self.expected(tenant.kind, Phase::Run).filter(|_| counts)
        })
    }

    /// The sum of times of all engines of a GPU, for the GPU of a chunk where it is largest.
    fn longest(
        &self,
        chunk: Chunk,
        of: impl Fn(EngineId, &Tenant) -> Option<Duration>,
    ) -> Duration {
        let sum = |gpu: u32| {
            let there = self.chunks.overlapping(chunk);
            let there = there.filter(|(_, tenant)| tenant.chunk.gpus().contains(&gpu));
            there
                .filter_map(|(engine, tenant)| of(engine, tenant))
                .fold(Duration::ZERO, Duration::saturating_add)
        };
        chunk.gpus().map(sum).max().unwrap_or_default()
    }
}
