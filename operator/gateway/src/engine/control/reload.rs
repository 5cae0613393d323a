//! Engines that can only load weights, while no request runs. The gateway holds them idle
//! meanwhile; they have no pause of their own.

use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::version::Version;
use serde_json::json;

use super::request::Requests;
use super::{Limits, Source};

pub(super) async fn update(
    requests: &Requests,
    path: &str,
    source: &Source,
    version: Version,
    limits: &Limits,
) -> Result<(), Fault> {
    let Source::Disk { path: weights } = source else { return Err(external(requests)) };
    let body = json!({ "model_path": weights, "weight_version": version.to_string() });
    requests.post(path, Some(&body), limits.update).await.map(drop)
}

/// It has no transfer that the trainer could drive.
pub(super) fn external(requests: &Requests) -> Fault {
    let message = format!(
        "the engine at {} loads weights from disk only: use transfer \"disk\" or \"store\"",
        requests.shown()
    );
    Fault::new(FaultKind::User, "TransferUnsupported", message)
}
