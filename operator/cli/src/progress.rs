//! How far a long simulation is, for those who wait at a terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use rollwright_sim::Watch;

/// Nothing is shown of what takes no longer.
const PATIENCE: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_millis(100);
/// Characters of a whole bar.
const WIDTH: usize = 30;

/// Shows `text` in the place of what was shown before on standard error.
pub(crate) fn show(text: &str) {
    // A terminal that went away shows nothing.
    let _ = write!(io::stderr(), "\r\x1b[K{text}");
}

/// A bar on standard error where that is a terminal, gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Bar {
    begun: Instant,
    /// Actions in all.
    of: usize,
    /// When it is shown next; `None` where nobody sees it.
    due: Option<Duration>,
    shown: bool,
}

impl Bar {
    pub(crate) fn new(of: usize) -> Self {
        let due = io::stderr().is_terminal().then_some(PATIENCE);
        Self { begun: Instant::now(), of, due, shown: false }
    }
}

impl Watch for Bar {
    fn clock(&mut self) -> Duration {
        self.begun.elapsed()
    }

    fn ended(&mut self, actions: usize) {
        let Some(due) = self.due else { return };
        let elapsed = self.begun.elapsed();
        if elapsed >= due {
            show(&line(actions, self.of, elapsed));
            (self.due, self.shown) = (Some(elapsed + EVERY), true);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.shown {
            show("");
        }
    }
}

fn line(actions: usize, of: usize, elapsed: Duration) -> String {
    let full = WIDTH * actions / of.max(1);
    let bar: String = (0..WIDTH).map(|at| if at < full { '#' } else { '.' }).collect();
    format!("[{bar}] {actions} of {of} actions, {} s", elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_grows_to_its_width() {
        let second = Duration::from_secs(1);
        let [none, half, all] = [0, 50, 100].map(|actions| line(actions, 100, second));
        assert_eq!(none, format!("[{}] 0 of 100 actions, 1 s", ".".repeat(WIDTH)));
        assert_eq!((half.matches('#').count(), half.matches('.').count()), (WIDTH / 2, WIDTH / 2));
        assert_eq!(all.matches('#').count(), WIDTH);
        assert_eq!(line(0, 0, second).matches('#').count(), 0);
    }
}
