//! Images on this node: one pull of an image at a time, and garbage collection.

mod credentials;
pub mod gc;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bollard::errors::Error;
use bollard::query_parameters::{CreateImageOptionsBuilder, ListImagesOptions, RemoveImageOptions};
use futures::StreamExt as _;
use futures::future::{BoxFuture, FutureExt as _, Shared};
use rollwright_core::fault::Fault;

use crate::docker::Engine;
use crate::fault;
use gc::Ledger;

/// A pull that nobody waits for any more ends after this time.
const ABANDONED_PULL: Duration = Duration::from_hours(1);

type Flight = Shared<BoxFuture<'static, Result<(), Fault>>>;

/// The images of this node, as far as sandboxes use them.
#[derive(Debug)]
pub struct Images {
    engine: Engine,
    flights: Arc<Mutex<HashMap<String, Flight>>>,
    ledger: Ledger,
    docker_config: Option<PathBuf>,
    collecting: tokio::sync::Mutex<()>,
}

impl Images {
    /// `ledger` remembers which images this agent pulled; `docker_config` is a
    /// Docker configuration file with the credentials of registries.
    pub fn new(engine: Engine, ledger: Ledger, docker_config: Option<PathBuf>) -> Self {
        let collecting = tokio::sync::Mutex::default();
        Self { engine, flights: Arc::default(), ledger, docker_config, collecting }
    }

    /// Makes an image present. Returns whether it had to be pulled.
    ///
    /// Callers of one image share one pull and its result. `limit` is this
    /// caller's patience; the pull goes on for the others.
    pub async fn ensure(&self, image: &str, pull: bool, limit: Duration) -> Result<bool, Fault> {
        let outcome = tokio::time::timeout(limit, self.ensure_unlimited(image, pull)).await;
        let outcome = outcome.unwrap_or_else(|_| {
            Err(fault::timeout(
                "ImagePullTimeout",
                format!(
                    "image `{image}` was not present after {limit:?}: raise imageTimeout, or \
                     pre-pull it"
                ),
            ))
        });
        if outcome.is_ok() {
            self.ledger.used(image, Instant::now());
        }
        outcome
    }

    async fn ensure_unlimited(&self, image: &str, pull: bool) -> Result<bool, Fault> {
        if self.present(image).await? {
            return Ok(false);
        }
        if !pull {
            return Err(fault::user(
                "ImageNotFound",
                format!(
                    "image `{image}` is not on this node and the template does not pull: build \
                     or load it here, or set `pull: true`"
                ),
            ));
        }
        self.flight(image).await.map(|()| true)
    }

    async fn present(&self, image: &str) -> Result<bool, Fault> {
        match self.engine.raw().inspect_image(image).await {
            Ok(_) => Ok(true),
            Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(false),
            Err(Error::DockerResponseServerError { status_code: 400, message }) => {
                Err(fault::user("InvalidSandbox", format!("image `{image}`: {message}")))
            }
            Err(error) => Err(fault::docker("looking for an image", &error)),
        }
    }

    /// The pull of this image that is under way, or a new one.
    fn flight(&self, image: &str) -> Flight {
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = flights.get(image) {
            return flight.clone();
        }
        let (engine, name) = (self.engine.clone(), image.to_owned());
        let config = self.docker_config.clone();
        let (all, ledger) = (Arc::clone(&self.flights), self.ledger.clone());
        // Its own task: the first caller's giving up does not end it for the others.
        let task = tokio::spawn(async move {
            let pulling = pull_image(&engine, &name, config.as_deref());
            let pulled = tokio::time::timeout(ABANDONED_PULL, pulling).await;
            let pulled = pulled.unwrap_or_else(|_| {
                Err(fault::timeout("ImagePullTimeout", format!("pulling `{name}` never ended")))
            });
            if pulled.is_ok() {
                ledger.pulled(&name, Instant::now());
            }
            all.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
            pulled
        });
        let flight = async move {
            task.await.unwrap_or_else(|error| {
                Err(fault::infrastructure("ImagePullFailed", format!("the pull died: {error}")))
            })
        };
        let flight = flight.boxed().shared();
        flights.insert(image.to_owned(), flight.clone());
        flight
    }

    /// Removes images that this agent pulled and nobody has used for `idle`,
    /// oldest use first, until `enough` says so. Images of others stay, untagged
    /// ones too: the engine may be shared. Returns how many images went.
    pub async fn collect(
        &self,
        in_use: &[String],
        idle: Duration,
        enough: impl Fn() -> bool,
    ) -> usize {
        // One at a time; the next look at the disk comes soon enough.
        let Ok(_collecting) = self.collecting.try_lock() else { return 0 };
        let mut removed = 0;
        for image in self.ledger.victims(in_use, Instant::now(), idle) {
            if enough() {
                return removed;
            }
            match self.engine.raw().remove_image(&image, None::<RemoveImageOptions>, None).await {
                Ok(_) => removed += 1,
                Err(Error::DockerResponseServerError { status_code: 404, .. }) => {}
                Err(error) => {
                    tracing::warn!(image, %error, "cannot remove an unused image");
                    continue;
                }
            }
            self.ledger.forget(&image);
        }
        removed
    }

    /// How many images the node holds.
    pub async fn count(&self) -> Result<usize, Fault> {
        let list = self.engine.raw().list_images(None::<ListImagesOptions>).await;
        list.map(|list| list.len()).map_err(|error| fault::docker("listing images", &error))
    }
}

async fn pull_image(engine: &Engine, image: &str, config: Option<&Path>) -> Result<(), Fault> {
    let credentials = config.map(|path| credentials::of(path, image)).transpose()?.flatten();
    let options = CreateImageOptionsBuilder::default().from_image(&with_tag(image)).build();
    let mut progress = engine.raw().create_image(Some(options), None, credentials);
    while let Some(step) = progress.next().await {
        let failure = match step {
            Ok(info) => info.error_detail.and_then(|detail| detail.message),
            Err(error) => Some(error.to_string()),
        };
        if let Some(message) = failure {
            return Err(pull_fault(image, &message));
        }
    }
    Ok(())
}

/// Without a tag Docker would pull every tag of the repository.
fn with_tag(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

/// What a registry said, sorted into the caller's mistakes and the world's.
fn pull_fault(image: &str, message: &str) -> Fault {
    let unknown = ["not found", "manifest unknown", "does not exist", "access denied"];
    let lower = message.to_lowercase();
    if unknown.iter().any(|word| lower.contains(word)) && !lower.contains("no such host") {
        return fault::user(
            "ImageNotFound",
            format!(
                "image `{image}` is in no registry that this node may read ({message}): correct \
                 its name, or give the agent credentials with --docker-config"
            ),
        );
    }
    fault::infrastructure("ImagePullFailed", format!("pulling `{image}`: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollwright_core::fault::FaultKind;

    #[test]
    fn a_reference_without_tag_means_latest() {
        assert_eq!(with_tag("python"), "python:latest");
        assert_eq!(with_tag("host:5000/python"), "host:5000/python:latest");
        assert_eq!(with_tag("python:3"), "python:3");
        assert_eq!(with_tag("python@sha256:00"), "python@sha256:00");
    }

    #[test]
    fn a_registry_that_is_down_is_not_the_callers_fault() {
        let fault = pull_fault("a", "dial tcp: lookup registry: no such host");
        assert_eq!(fault.kind, FaultKind::Infrastructure);
        let fault = pull_fault("a", "manifest for a:1 not found: manifest unknown");
        assert_eq!((fault.kind, fault.reason.as_ref()), (FaultKind::User, "ImageNotFound"));
    }
}
