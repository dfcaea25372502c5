//! `/api/v1/clients`.

use axum::Extension;

use super::extract::{Json, Named, Queried, Reply};
use crate::control::Plane;
use crate::{ClientDetailView, ClientQuery, ClientView, KickQuery, KickedView, Page, PageQuery, SubscriptionView};

pub(super) async fn list(
    Extension(plane): Extension<Plane>,
    Queried(query): Queried<ClientQuery>,
) -> Reply<Page<ClientView>> {
    Ok(Json(plane.clients(&query)?))
}

pub(super) async fn one(Extension(plane): Extension<Plane>, Named(id): Named<String>) -> Reply<ClientDetailView> {
    Ok(Json(plane.client(&id).await?))
}

pub(super) async fn subscriptions(
    Extension(plane): Extension<Plane>,
    Named(id): Named<String>,
    Queried(page): Queried<PageQuery>,
) -> Reply<Page<SubscriptionView>> {
    Ok(Json(plane.client_subscriptions(&id, page).await?))
}

pub(super) async fn kick(
    Extension(plane): Extension<Plane>,
    Named(id): Named<String>,
    Queried(query): Queried<KickQuery>,
) -> Reply<KickedView> {
    Ok(Json(plane.kick(&id, query).await?))
}
