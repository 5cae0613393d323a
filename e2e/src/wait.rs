//! Waiting on conditions.

use std::time::Duration;

use anyhow::bail;

/// Asks again, every 20 ms, until `condition` holds; fails after `limit`.
pub async fn until(
    what: &str,
    limit: Duration,
    mut condition: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + limit;
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    loop {
        pace.tick().await;
        if condition().await? {
            return Ok(());
        }
        if tokio::time::Instant::now() >= deadline {
            bail!("not within {limit:?}: {what}");
        }
    }
}
