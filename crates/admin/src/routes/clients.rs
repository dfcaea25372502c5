//! `/api/v1/clients`.

use axum::extract::State;

use super::extract::{Json, Named, Queried, Reply};
use crate::control::Plane;
use crate::{ClientDetailView, ClientQuery, ClientView, KickQuery, KickedView, Page, PageQuery, SubscriptionView};

pub(super) async fn list(State(plane): State<Plane>, Queried(query): Queried<ClientQuery>) -> Reply<Page<ClientView>> {
    Ok(Json(plane.clients(&query)?))
}

pub(super) async fn one(State(plane): State<Plane>, Named(id): Named<String>) -> Reply<ClientDetailView> {
    Ok(Json(plane.client(&id).await?))
}

pub(super) async fn subscriptions(
    State(plane): State<Plane>,
    Named(id): Named<String>,
    Queried(page): Queried<PageQuery>,
) -> Reply<Page<SubscriptionView>> {
    Ok(Json(plane.client_subscriptions(&id, page).await?))
}

pub(super) async fn kick(
    State(plane): State<Plane>,
    Named(id): Named<String>,
    Queried(query): Queried<KickQuery>,
) -> Reply<KickedView> {
    Ok(Json(plane.kick(&id, query).await?))
}
