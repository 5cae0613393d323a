//! What became of an engine whose call broke off.

use std::time::Duration;

use rollwright_core::fault::Fault;
use rollwright_core::gpu::{EngineId, Trouble};

use super::backend::Backend;

/// How long an engine may take to answer its probe after a call of it broke off.
const PROBE: Duration = Duration::from_secs(10);
/// How long the processes of one whose connection broke may take to be gone.
const GONE_IN: Duration = Duration::from_secs(2);
/// Between two looks whether they are.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The fault of a call that broke off with `fault`; an error says why its engine has ended.
pub(super) async fn look(
    backend: &dyn Backend,
    engine: EngineId,
    fault: Fault,
) -> Result<Fault, Trouble> {
    if answers(backend, engine).await {
        return Ok(broken_off(&fault));
    }
    death(backend, engine).await.map_or(Ok(fault), Err)
}

/// Whether an engine answers its probe now.
async fn answers(backend: &dyn Backend, engine: EngineId) -> bool {
    let asked = tokio::time::timeout(PROBE, backend.probe(engine)).await;
    matches!(asked, Ok(Ok(true)))
}

/// Why an engine has ended whose connection broke: that may be seen before its processes are
/// gone. `None`: they are not.
async fn death(backend: &dyn Backend, engine: EngineId) -> Option<Trouble> {
    let dies = async {
        loop {
            if let Some(trouble) = backend.death(engine).await {
                return trouble;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    tokio::time::timeout(GONE_IN, dies).await.ok()
}

/// An engine that answers its probe is no worse for a connection that it closed: who refuses a
/// request before reading it does that, and one caller's request must not cost all the engine.
fn broken_off(fault: &Fault) -> Fault {
    let message = format!(
        "{}; it answers its probe, so it stays: perhaps it refuses this request before it has read it",
        fault.message
    );
    Fault { reason: "CallBrokeOff".into(), message, ..fault.clone() }
}
