//! Waiting, with a line every few seconds that says how far it is.

use std::time::{Duration, Instant};

use anyhow::ensure;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// Between two lines.
const SAY: Duration = Duration::from_secs(5);

/// Waits until `look` says that all is there; returns how long that took from `begun`. `look`
/// also says how far it is.
pub(crate) async fn until(
    what: &str,
    begun: Instant,
    limit: Duration,
    mut look: impl FnMut() -> anyhow::Result<(bool, String)>,
) -> anyhow::Result<Duration> {
    let mut pace = tokio::time::interval(LOOK);
    let mut said = Instant::now();
    loop {
        pace.tick().await;
        let (done, far) = look()?;
        let took = begun.elapsed();
        if done || said.elapsed() >= SAY {
            println!("  {:>6.1} s  {what}: {far}", took.as_secs_f64());
            said = Instant::now();
        }
        if done {
            return Ok(took);
        }
        ensure!(took < limit, "not within {limit:?}: {what}: {far}");
    }
}
