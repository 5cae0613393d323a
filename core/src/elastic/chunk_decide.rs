//! The default policy on chunks of GPUs.

use super::arrivals::{Arrivals, Newcomers};
use super::chunk_line::{ChunkLine, ChunkPool, Demand};
use super::decide::{LAST_END, LAST_END_ALONE, Outlook};
use super::line::{Given, Line, Running, Waiting};
use super::roll_out::Scene;
use super::room::{Gpus, Space};
use super::work::Work;
use crate::resources::Units;
use crate::time::Time;

/// Waiting actions of a line that a decision looks at; the rest only counts.
pub const CHUNK_WINDOW: usize = 64;

/// The default policy for the line of one GPU pool: as [`Elastic`](super::Elastic), with
/// what restores cost, and where services are resident, played forward too.
#[derive(Debug, Clone)]
pub struct ElasticChunks {
    arrivals: Arrivals,
    outlook: Outlook,
    last_end: f64,
}

impl Default for ElasticChunks {
    fn default() -> Self {
        Self::new(LAST_END)
    }
}

impl ElasticChunks {
    fn new(last_end: f64) -> Self {
        Self { arrivals: Arrivals::default(), outlook: Outlook::default(), last_end }
    }

    /// As [`Elastic::for_makespan`](super::Elastic::for_makespan).
    pub fn for_makespan() -> Self {
        Self::new(LAST_END_ALONE)
    }

    /// An action was submitted to the line.
    pub fn submitted(&mut self, at: Time, work: Work, demand: Demand) {
        self.arrivals.submitted(at, true, work, demand, 0);
    }

    /// As [`Elastic::newcomers`](super::Elastic::newcomers).
    pub fn newcomers(&mut self, newcomers: Newcomers) {
        self.arrivals.newcomers(newcomers);
    }

    /// What starts now, and with how many GPUs, in the order in which chunks are to be
    /// taken. `line.waiting` is in the order of [`Work::rank`], more than [`CHUNK_WINDOW`]
    /// are not looked at.
    pub fn decide<P: ChunkPool>(&mut self, line: &ChunkLine<P>) -> Vec<Given> {
        let seen = line.waiting.len().min(CHUNK_WINDOW);
        let waiting = line.waiting[..seen].iter().map(|waiting| Waiting {
            work: waiting.work,
            submitted: waiting.submitted,
            resizable: false,
        });
        let running = line.running.iter().map(|&(ends, chunk)| {
            let units = Units::cores(u16::try_from(P::size(chunk)).unwrap_or(u16::MAX));
            Running { ends, units, resizable: None }
        });
        let (waiting, running): (Vec<_>, Vec<_>) = (waiting.collect(), running.collect());
        let demands: Vec<Demand> = line.waiting[..seen].iter().map(|one| one.demand).collect();
        let room = Gpus(line.pool.clone());
        let fits = |one: &Waiting, demand: &Demand| room.holds(*demand, one.work.least().units);
        if !waiting.iter().zip(&demands).next().is_some_and(|(one, demand)| fits(one, demand)) {
            return Vec::new();
        }
        let plain = Line {
            now: line.now,
            cores: u32::try_from(line.pool.gpus()).unwrap_or(u32::MAX),
            running: &running,
            waiting: &waiting,
            beyond: line.beyond + line.waiting.len() - seen,
            idle_trajectories: 0,
        };
        let expected = self.arrivals.expected(line.now, usize::MAX);
        let held = line.running.iter().map(|&(_, chunk)| chunk);
        let scene = Scene::new(&plain, &demands, &expected, room, held, self.last_end, 0.0);
        self.outlook.best(&scene).unwrap_or_default()
    }
}
