//! `/api/v1/groups` and `/api/v1/dead-letters`.

use axum::Extension;
use serde_json::Value;

use super::extract::{Json, Named, Queried, Reply};
use crate::control::Plane;
use crate::{DeadLetterView, LettersQuery, MemberDrainView, Page, PageQuery, RemovedView, ReplayedView, ScaleView};

/// Share name and filter of a group, as in its path.
type Group = (String, String);

pub(super) async fn list(Extension(plane): Extension<Plane>, Queried(page): Queried<PageQuery>) -> Reply<Page<Value>> {
    Ok(Json(plane.groups(&page)?))
}

pub(super) async fn one(Extension(plane): Extension<Plane>, Named((name, filter)): Named<Group>) -> Reply<Value> {
    Ok(Json(plane.group(&name, &filter)?))
}

pub(super) async fn explain(Extension(plane): Extension<Plane>, Named((name, filter)): Named<Group>) -> Reply<Value> {
    Ok(Json(plane.group_decisions(&name, &filter)?))
}

pub(super) async fn scale(Extension(plane): Extension<Plane>, Named((name, filter)): Named<Group>) -> Reply<ScaleView> {
    Ok(Json(plane.group_scale(&name, &filter)?))
}

/// Share name, filter and Client Identifier of a member.
type Member = (String, String, String);

pub(super) async fn drain_member(
    Extension(plane): Extension<Plane>,
    Named((name, filter, client)): Named<Member>,
) -> Reply<MemberDrainView> {
    Ok(Json(plane.drain_member(&name, &filter, &client, true)?))
}

pub(super) async fn resume_member(
    Extension(plane): Extension<Plane>,
    Named((name, filter, client)): Named<Member>,
) -> Reply<MemberDrainView> {
    Ok(Json(plane.drain_member(&name, &filter, &client, false)?))
}

pub(super) async fn letters(
    Extension(plane): Extension<Plane>,
    Named(name): Named<String>,
    Queried(query): Queried<LettersQuery>,
) -> Reply<Page<DeadLetterView>> {
    Ok(Json(plane.dead_letters(&name, query).await?))
}

pub(super) async fn replay(
    Extension(plane): Extension<Plane>,
    Named(name): Named<String>,
    Queried(query): Queried<LettersQuery>,
) -> Reply<ReplayedView> {
    Ok(Json(plane.replay_dead_letters(&name, query).await?))
}

pub(super) async fn purge(
    Extension(plane): Extension<Plane>,
    Named(name): Named<String>,
    Queried(query): Queried<LettersQuery>,
) -> Reply<RemovedView> {
    Ok(Json(plane.purge_dead_letters(&name, query).await?))
}
