//! `/rollout/v1`: the HTTP interface of trainers and agents.

mod batches;
mod body;
mod error;
mod events;
mod groups;
mod openapi;
mod parameter;
pub mod rollouts;
mod status;
mod trajectories;
pub mod types;
mod weights;
mod workers;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{Method, Uri};
use axum::routing::get;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use self::error::{ApiError, status};
pub use self::rollouts::Rollouts;

use crate::fault::user;

/// What every handler has.
type Shared = State<Arc<dyn Rollouts>>;

/// Where all routes lie.
const ROOT: &str = "/rollout/v1";

/// Every route of `/rollout/v1`. Who calls is checked before.
pub fn routes(rollouts: Arc<dyn Rollouts>) -> Router {
    let (routes, document) = documented();
    let text = openapi::text(&document);
    routes
        .route(
            "/rollout/v1/openapi.json",
            get(async || ([("content-type", "application/json")], text)),
        )
        .fallback(no_such_route)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(rollouts)
}

/// The `OpenAPI` 3.1 document of [`routes`].
pub fn document() -> OpenApi {
    documented().1
}

fn documented() -> (Router<Arc<dyn Rollouts>>, OpenApi) {
    let below = OpenApiRouter::new()
        .routes(routes!(groups::open))
        .routes(routes!(groups::look, groups::abort))
        .routes(routes!(trajectories::look))
        .routes(routes!(trajectories::step))
        .routes(routes!(trajectories::complete))
        .routes(routes!(trajectories::abort))
        .routes(routes!(trajectories::tokens))
        .routes(routes!(events::subscribe))
        .routes(routes!(batches::take))
        .routes(routes!(batches::acknowledge))
        .routes(routes!(weights::begin))
        .routes(routes!(weights::commit))
        .routes(routes!(weights::abort))
        .routes(routes!(weights::look))
        .routes(routes!(weights::buckets::list))
        .routes(routes!(weights::buckets::put, weights::buckets::get))
        .routes(routes!(workers::set, workers::look))
        .routes(routes!(status::look));
    OpenApiRouter::with_openapi(openapi::frame()).nest(ROOT, below).split_for_parts()
}

async fn no_such_route(uri: Uri) -> ApiError {
    let path = uri.path();
    let message = format!(
        "there is no route `{path}`: they are listed in {ROOT}/openapi.json; write a `/` within an id as %2F"
    );
    user("NoSuchRoute", message).into()
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let path = uri.path();
    let message = format!("`{path}` has no {method}: see {ROOT}/openapi.json");
    user("MethodNotAllowed", message).into()
}
