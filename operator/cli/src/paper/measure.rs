//! Runs figures on all processors.

use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use rollwright_sim::paper::{Failed, Figure};

use crate::failure::Failure;
use crate::progress::show;

/// For each figure, the values of each seed. What times our code runs last and alone.
pub(super) fn measure(figures: &[Figure], seeds: &[u64]) -> Result<Vec<Vec<Vec<f64>>>, Failure> {
    let jobs = |clocked: bool| {
        let chosen = figures
            .iter()
            .enumerate()
            .filter(move |(_, figure)| figure.is_measured() && figure.is_clocked() == clocked);
        chosen.flat_map(|(i, _)| (0..seeds.len()).map(move |seed| (i, seed)))
    };
    let (simulated, clocked): (Vec<_>, Vec<_>) = (jobs(false).collect(), jobs(true).collect());
    let mut values = vec![vec![Vec::new(); seeds.len()]; figures.len()];
    let progress = Progress::new(simulated.len() + clocked.len());
    let processors = thread::available_parallelism().map_or(1, usize::from);
    for (jobs, threads) in [(simulated, processors), (clocked, 1)] {
        for ((figure, seed), result) in run(figures, seeds, &jobs, threads, &progress) {
            values[figure][seed] = result.map_err(|failed| Failure::Output {
                to: figures[figure].rows[0].name.to_owned(),
                error: io::Error::other(failed),
            })?;
        }
    }
    progress.end();
    for (figure, values) in figures.iter().zip(&mut values) {
        if !figure.is_measured() {
            values.clear();
        }
    }
    Ok(values)
}

/// A figure and a seed, by place.
type Job = (usize, usize);

fn run(
    figures: &[Figure],
    seeds: &[u64],
    jobs: &[Job],
    threads: usize,
    progress: &Progress,
) -> Vec<(Job, Result<Vec<f64>, Failed>)> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..threads.min(jobs.len()) {
            scope.spawn(|| {
                while let Some(&(figure, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let start = Instant::now();
                    let result = figures[figure].measure(seeds[seed], &mut || start.elapsed());
                    progress.one(figures[figure].rows[0].name);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.push(((figure, seed), result));
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// A line on a terminal.
struct Progress {
    of: Option<usize>,
    done: AtomicUsize,
}

impl Progress {
    fn new(of: usize) -> Self {
        Self { of: io::stderr().is_terminal().then_some(of), done: AtomicUsize::new(0) }
    }

    fn one(&self, name: &str) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(of) = self.of {
            show(&format!("{done}/{of} {name}"));
        }
    }

    fn end(&self) {
        if self.of.is_some() {
            show("");
        }
    }
}
