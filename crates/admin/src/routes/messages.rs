//! `/api/v1/subscriptions`, `/api/v1/retained` and `/api/v1/publish`.

use axum::Extension;
use axum::http::StatusCode;

use super::extract::{Json, Queried, Reply};
use crate::control::Plane;
use crate::problem::Problem;
use crate::{Page, PublishRequest, PublishedView, ReceiverView, RemovedView, RetainedQuery, RetainedView, TopicQuery};

pub(super) async fn receivers(
    Extension(plane): Extension<Plane>,
    Queried(query): Queried<TopicQuery>,
) -> Reply<Page<ReceiverView>> {
    Ok(Json(plane.receivers(&query)?))
}

pub(super) async fn retained(
    Extension(plane): Extension<Plane>,
    Queried(query): Queried<RetainedQuery>,
) -> Reply<Page<RetainedView>> {
    Ok(Json(plane.retained(&query)?))
}

/// Removes messages; the filter has to be there, so that a slip does not remove all.
pub(super) async fn remove_retained(
    Extension(plane): Extension<Plane>,
    Queried(query): Queried<RetainedQuery>,
) -> Reply<RemovedView> {
    let missing = || Problem::new(StatusCode::BAD_REQUEST, "filter: needs to be given; # selects all messages");
    let filter = query.filter.ok_or_else(missing)?;
    Ok(Json(plane.remove_retained(&filter).await?))
}

pub(super) async fn publish(
    Extension(plane): Extension<Plane>,
    Json(request): Json<PublishRequest>,
) -> Reply<PublishedView> {
    Ok(Json(plane.publish(request).await?))
}
