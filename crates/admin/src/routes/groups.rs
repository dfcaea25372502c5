//! `/api/v1/groups`.

use axum::Extension;
use serde_json::Value;

use super::extract::{Json, Named, Queried, Reply};
use crate::control::Plane;
use crate::{MemberDrainView, Page, PageQuery, ScaleView};

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
