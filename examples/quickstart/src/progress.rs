//! Live progress: a line rewritten each second on a terminal, else a line now and then.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Between two lines where there is no terminal.
const PLAIN_EVERY: u64 = 10;

/// What the trajectories do at this moment.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) opening: AtomicUsize,
    pub(crate) thinking: AtomicUsize,
    pub(crate) queued: AtomicUsize,
    pub(crate) running: AtomicUsize,
    pub(crate) done: AtomicUsize,
    /// Thousandths of a core granted to running actions.
    milli_units: AtomicU64,
}

/// Counts one in a gauge until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    pub(crate) fn new(gauge: &'a AtomicUsize) -> Self {
        gauge.fetch_add(1, Relaxed);
        Self(gauge)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Counts the units of a running action until it is dropped.
#[derive(Debug)]
pub(crate) struct Granted<'a> {
    live: &'a Live,
    milli: u64,
    _running: Counted<'a>,
}

impl<'a> Granted<'a> {
    pub(crate) fn new(live: &'a Live, units: f64) -> Self {
        let milli = (units * 1000.0).round() as u64;
        live.milli_units.fetch_add(milli, Relaxed);
        Self { live, milli, _running: Counted::new(&live.running) }
    }
}

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        self.live.milli_units.fetch_sub(self.milli, Relaxed);
    }
}

impl Live {
    fn line(&self, policy: &str, total: usize, cores: u32, elapsed: Duration) -> String {
        let units = self.milli_units.load(Relaxed) as f64 / 1000.0;
        format!(
            "{policy:<13} {:>4} s  {:>2}/{total} done · {} waiting for a sandbox · {} thinking · {} queued · {} running · {units:.2} of {cores} cores",
            elapsed.as_secs(),
            self.done.load(Relaxed),
            self.opening.load(Relaxed),
            self.thinking.load(Relaxed),
            self.queued.load(Relaxed),
            self.running.load(Relaxed),
        )
    }
}

/// Prints the progress until it is dropped or aborted.
pub(crate) async fn show(live: Arc<Live>, policy: String, total: usize, cores: u32) {
    let terminal = std::io::stdout().is_terminal();
    let begin = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    for second in 0u64.. {
        tick.tick().await;
        let text = live.line(&policy, total, cores, begin.elapsed());
        if terminal {
            print!("\r\x1b[2K{text}");
            // A terminal that went away costs the progress, not the run.
            let _ = std::io::stdout().flush();
        } else if second % PLAIN_EVERY == 0 {
            println!("{text}");
        }
    }
}

/// Ends the line that [`show`] rewrites.
pub(crate) fn finish(live: &Live, policy: &str, total: usize, cores: u32, elapsed: Duration) {
    let text = live.line(policy, total, cores, elapsed);
    if std::io::stdout().is_terminal() {
        println!("\r\x1b[2K{text}");
    } else {
        println!("{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_return_to_zero() {
        let live = Live::default();
        {
            let _granted = Granted::new(&live, 0.25);
            assert!(live.line("x", 1, 2, Duration::ZERO).contains("1 running · 0.25 of 2 cores"));
        }
        assert!(live.line("x", 1, 2, Duration::ZERO).contains("0 running · 0.00 of 2 cores"));
    }
}
