//! Status, configuration, log level, drain and bans.

use std::sync::Arc;

use axum::Extension;
use axum::extract::Request;
use axum::http::StatusCode;
use serde_json::Value;

use super::extract::{Json, Named, Reply, body};
use crate::control::Plane;
use crate::problem::Problem;
use crate::{
    BanView, BridgeView, ConfigCheckView, ControlPlane, DrainRequest, DrainView, LogRequest, Page, ReloadView,
    StatusView,
};

pub(super) async fn status(Extension(plane): Extension<Plane>) -> Json<StatusView> {
    Json(plane.status())
}

pub(super) async fn config(Extension(plane): Extension<Plane>) -> Json<Value> {
    Json(plane.config())
}

/// Checks the file in the body, as text.
pub(super) async fn check_config(Extension(plane): Extension<Plane>, request: Request) -> Reply<ConfigCheckView> {
    let text = body(request, &plane).await?;
    let no_text = |_| Problem::new(StatusCode::BAD_REQUEST, "the body is no UTF-8");
    let text = String::from_utf8(text.to_vec()).map_err(no_text)?;
    Ok(Json(blocking(plane, move |plane| plane.check_config(&text)).await?))
}

pub(super) async fn reload(Extension(plane): Extension<Plane>) -> Reply<ReloadView> {
    Ok(Json(blocking(plane, ControlPlane::reload).await??))
}

pub(super) async fn set_log_level(
    Extension(plane): Extension<Plane>,
    Json(request): Json<LogRequest>,
) -> Result<StatusCode, Problem> {
    plane.set_log_level(&request)?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn drain(Extension(plane): Extension<Plane>, Json(request): Json<DrainRequest>) -> Reply<DrainView> {
    Ok(Json(plane.drain(request)?))
}

pub(super) async fn end_drain(Extension(plane): Extension<Plane>) -> Result<StatusCode, Problem> {
    blocking(plane, ControlPlane::end_drain).await??;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn bridges(Extension(plane): Extension<Plane>) -> Json<Page<BridgeView>> {
    Json(Page { items: plane.bridges(), cursor: None })
}

pub(super) async fn bans(Extension(plane): Extension<Plane>) -> Json<Page<BanView>> {
    Json(Page { items: plane.bans(), cursor: None })
}

pub(super) async fn add_ban(
    Extension(plane): Extension<Plane>,
    Json(ban): Json<BanView>,
) -> Result<(StatusCode, Json<BanView>), Problem> {
    Ok((StatusCode::CREATED, Json(blocking(plane, move |plane| plane.add_ban(ban)).await??)))
}

pub(super) async fn remove_ban(
    Extension(plane): Extension<Plane>,
    Named(number): Named<u64>,
) -> Result<StatusCode, Problem> {
    blocking(plane, move |plane| plane.remove_ban(number)).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Runs work that may block, such as reading files, outside the server's thread.
async fn blocking<T: Send + 'static>(
    plane: Plane,
    work: impl FnOnce(&dyn ControlPlane) -> T + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(move || work(&*Arc::clone(&plane))).await;
    done.map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}
