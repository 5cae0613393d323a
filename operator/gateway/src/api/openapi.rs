//! The frame of the `OpenAPI` document; the routes fill it.

use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

use super::types::{BatchGroupBody, FaultBody, RecordBody, Refusal, VersionRange};

/// The document without its routes.
pub(super) fn frame() -> utoipa::openapi::OpenApi {
    Frame::openapi()
}

/// The document as it is served.
pub(super) fn text(document: &utoipa::openapi::OpenApi) -> String {
    // A document of our own making: its keys are strings.
    document.to_json().unwrap_or_default()
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Rollwright gateway",
        description = "Groups of rollouts, their trajectories, batches for the trainer, and updates of the weights. \
            A trainer opens groups, agents run their trajectories against the OpenAI routes and report here, \
            and the trainer takes batches of scored groups and brings new weights.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    tags(
        (name = "groups", description = "The rollouts of one prompt."),
        (name = "trajectories", description = "One rollout: turns of generation, tool calls, a reward."),
        (name = "events", description = "What agents must know at once."),
        (name = "batches", description = "Scored groups, for the trainer."),
        (name = "weights", description = "New versions of the policy."),
        (name = "workers", description = "The engines, for the operator."),
        (name = "status", description = "How the job is."),
    ),
    components(schemas(Refusal, FaultBody, BatchGroupBody, RecordBody, VersionRange)),
    security(("key" = [])),
    modifiers(&Key),
)]
struct Frame;

/// The API key of TCP callers.
struct Key;

impl Modify for Key {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let mut scheme = Http::new(HttpAuthScheme::Bearer);
        scheme.description =
            Some("The job's API key; callers of the Unix socket need none.".to_owned());
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("key", SecurityScheme::Http(scheme));
    }
}
