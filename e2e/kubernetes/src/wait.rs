//! Waiting on conditions.

use std::time::Duration;

use anyhow::bail;

/// How long a test waits for what takes seconds on a calm machine. One whose memory was
/// reclaimed stands still for more than a minute.
pub const LIMIT: Duration = Duration::from_mins(5);

/// Asks again until there is an answer; fails after [`LIMIT`], with the last reason why not.
pub async fn until<T>(
    what: &str,
    mut condition: impl AsyncFnMut() -> anyhow::Result<Result<T, String>>,
) -> anyhow::Result<T> {
    let deadline = tokio::time::Instant::now() + LIMIT;
    let mut pace = tokio::time::interval(Duration::from_millis(200));
    loop {
        pace.tick().await;
        match condition().await? {
            Ok(answer) => return Ok(answer),
            Err(reason) if tokio::time::Instant::now() >= deadline => {
                bail!("not within {LIMIT:?}: {what}: {reason}")
            }
            Err(_) => {}
        }
    }
}
