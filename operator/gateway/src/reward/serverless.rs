//! A reward service that somebody else runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use rollwright_core::fault::{Fault, FaultKind};

use super::judge::Judge;
use super::subject::Subject;
use crate::outbound::{self, Proxy};

/// Longest secret read, in bytes.
const MAX_SECRET: u64 = 16 << 10;
/// Bytes of an answer taken at most; only its `reward` counts.
const MOST: usize = 256 << 10;

/// Posts the [`Subject`] and reads `{"reward": NUMBER}`. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ServerlessScorer {
    judge: Judge,
    secret: Option<Arc<Path>>,
}

impl ServerlessScorer {
    /// A service at `url`; the content of the file `secret` is sent as a bearer token, and
    /// nowhere else, since no redirect is followed. The file is read at each call, so that
    /// a rotated secret is the one that is sent. `timeout` is for one call as a whole.
    pub fn new(url: &str, secret: Option<PathBuf>, timeout: Duration) -> Result<Self, Fault> {
        let judge = Judge::new(url, timeout, MOST, Proxy::Environment)?;
        if secret.is_some() && url.starts_with("http:") {
            let service = judge.shown();
            tracing::warn!(service, "its secret is sent without TLS: use an https url");
        }
        Ok(Self { judge, secret: secret.map(Arc::from) })
    }

    /// The reward, or a fault of infrastructure; with a time to retry where the service
    /// gave one.
    pub async fn score(&self, subject: &Subject) -> Result<f64, Fault> {
        let authorization = match &self.secret {
            Some(path) => Some(bearer(path).await?),
            None => None,
        };
        self.judge.ask(subject, authorization.as_ref()).await
    }
}

async fn bearer(path: &Path) -> Result<HeaderValue, Fault> {
    let fault = |why: String| {
        let message = format!("the secret in {} cannot be sent: {why}", path.display());
        Fault::new(FaultKind::Infrastructure, "RewardSecret", message)
    };
    let metadata = tokio::fs::metadata(path).await.map_err(|error| fault(error.to_string()))?;
    if metadata.len() > MAX_SECRET {
        return Err(fault(format!("it is longer than {MAX_SECRET} bytes")));
    }
    let secret = tokio::fs::read_to_string(path).await.map_err(|error| fault(error.to_string()))?;
    let header = Some(secret.trim()).filter(|secret| !secret.is_empty()).and_then(outbound::bearer);
    header.ok_or_else(|| fault("it must be one line of printable characters".to_owned()))
}
