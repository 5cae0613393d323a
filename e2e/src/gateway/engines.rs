//! Engines of a test: engine-sims in its own process, which are simulators.

use std::time::Duration;

use anyhow::ensure;
use rollwright_engine_sim::{Config, EngineSim, Latency};

/// Replies end at `max_tokens` only, a token every few milliseconds.
pub fn slow() -> Config {
    let latency = Latency { step: Duration::from_millis(5), ..Latency::default() };
    Config { latency, mean_tokens: 0, ..Config::default() }
}

/// So many engines.
pub async fn engines(count: usize, config: &Config) -> anyhow::Result<Vec<EngineSim>> {
    let mut engines = Vec::new();
    for _ in 0..count {
        engines.push(EngineSim::start(config.clone()).await?);
    }
    Ok(engines)
}

/// No rule that an engine watches was broken: see [`EngineSim::violations`].
pub fn ensure_rules_kept<'a>(
    engines: impl IntoIterator<Item = &'a EngineSim>,
) -> anyhow::Result<()> {
    for engine in engines {
        let violations = engine.violations();
        ensure!(violations.is_empty(), "{violations:?}");
    }
    Ok(())
}
