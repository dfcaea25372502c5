//! The routes, and their common parts.

mod clients;
mod extract;
mod groups;
mod health;
mod messages;
mod settings;
mod watching;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{delete, get, post};
use axum::{Extension, Router};

use crate::dashboard;
use crate::events::Events;
use crate::guard::{self, Guard};
use crate::problem::Problem;
use crate::site::Site;

/// The description of all routes, which `tests/operation/admin` compares with the answers.
const OPENAPI: &str = include_str!("openapi.json");

/// All routes.
pub(crate) fn router(site: Site, events: Arc<Events>, guard: Arc<Guard>) -> Router {
    let api = Router::new()
        .route("/trace", get(watching::trace))
        .route("/status", get(settings::status))
        .route("/findings", get(watching::findings))
        .route("/past", get(watching::past))
        .route("/config", get(settings::config))
        .route("/config/check", post(settings::check_config))
        .route("/config/reload", post(settings::reload))
        .route("/log", post(settings::set_log_level))
        .route("/drain", post(settings::drain).delete(settings::end_drain))
        .route("/bridges", get(settings::bridges))
        .route("/bans", get(settings::bans).post(settings::add_ban))
        .route("/bans/{number}", delete(settings::remove_ban))
        .route("/clients", get(clients::list))
        .route("/clients/{id}", get(clients::one).delete(clients::kick))
        .route("/clients/{id}/subscriptions", get(clients::subscriptions))
        .route("/subscriptions", get(messages::receivers))
        .route("/retained", get(messages::retained).delete(messages::remove_retained))
        .route("/publish", post(messages::publish))
        .route("/groups", get(groups::list))
        .route("/groups/{name}/{filter}", get(groups::one))
        .route("/groups/{name}/{filter}/explain", get(groups::explain))
        .route("/groups/{name}/{filter}/scale", get(groups::scale))
        .route(
            "/groups/{name}/{filter}/members/{client}/drain",
            post(groups::drain_member).delete(groups::resume_member),
        )
        .route("/dead-letters/{name}", get(groups::letters).delete(groups::purge))
        .route("/dead-letters/{name}/replay", post(groups::replay))
        .route_layer(middleware::from_fn_with_state(site.clone(), at_leader))
        .route("/events", get(watching::events))
        .route("/openapi.json", get(async || ([(header::CONTENT_TYPE, "application/json")], OPENAPI)));
    let files = dashboard::paths().fold(Router::new(), |router, path| router.route(path, get(dashboard::file)));
    files
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/leaderz", get(health::leaderz))
        .route("/cluster", get(health::cluster))
        .route("/metrics", get(health::metrics))
        .nest("/api/v1", api)
        .fallback(async || Problem::not_found("there is nothing at this path; /api/v1/openapi.json lists all paths"))
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "the path has other methods; see /api/v1/openapi.json")
        })
        .layer(Extension(events))
        .layer(middleware::from_fn_with_state(guard, guard::check))
        .with_state(site)
}

/// Passes a request to the broker. A node that does not lead names the leader instead.
async fn at_leader(State(site): State<Site>, mut request: Request, next: Next) -> Response {
    let Some((plane, end)) = site.broker() else { return site.misdirected().await.into_response() };
    request.extensions_mut().insert(plane);
    request.extensions_mut().insert(end.clone());
    match end.unless_ended(next.run(request)).await {
        Some(response) => response,
        None => site.misdirected().await.into_response(),
    }
}
