//! `/healthz`, `/readyz`, `/leaderz`, `/cluster` and `/metrics`: all nodes of a cluster answer them.

use std::fmt::Write as _;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

use super::extract::{Json, Reply};
use crate::problem::Problem;
use crate::site::Site;
use crate::{Check, Exposition};

pub(super) async fn healthz(State(site): State<Site>, RawQuery(query): RawQuery) -> Response {
    let mut checks = site.broker().map(|(plane, _)| plane.liveness()).unwrap_or_default();
    if site.node().is_some() {
        checks.push(Check::new("node", site.view().await.is_none().then(|| SILENT.to_owned())));
    }
    answer(&checks, query.as_deref())
}

pub(super) async fn readyz(State(site): State<Site>, RawQuery(query): RawQuery) -> Response {
    ready(&site, query.as_deref(), false).await
}

/// As [`readyz`], but nodes that do not lead are not ready.
pub(super) async fn leaderz(State(site): State<Site>, RawQuery(query): RawQuery) -> Response {
    ready(&site, query.as_deref(), true).await
}

/// Readiness of a node, as JSON.
#[derive(Serialize)]
struct NodeReady {
    ready: bool,
    role: &'static str,
    /// Name of the leader.
    leader: Option<String>,
    /// Why it is not ready.
    problems: Vec<String>,
    /// Faults that leave it ready.
    warnings: Vec<String>,
}

async fn ready(site: &Site, query: Option<&str>, needs_leader: bool) -> Response {
    let mut checks = site.broker().map(|(plane, _)| plane.readiness()).unwrap_or_default();
    if site.node().is_none() {
        return answer(&checks, query);
    }
    let Some(view) = site.view().await else {
        return Problem::new(StatusCode::SERVICE_UNAVAILABLE, SILENT).into_response();
    };
    checks.extend(view.checks);
    if needs_leader {
        checks.push(Check::new("leader", (!view.is_leader).then(|| "this node does not lead".to_owned())));
    }
    let found = checks.iter().filter_map(|check| Some((check, check.problem.as_ref()?)));
    let (warnings, problems): (Vec<_>, Vec<_>) = found.partition(|(check, _)| check.is_warning);
    let texts = |found: Vec<(&Check, &String)>| {
        found.into_iter().map(|(check, problem)| format!("{}: {problem}", check.name)).collect::<Vec<_>>()
    };
    let leader = view.leader.map(|leader| leader.node);
    let (problems, warnings) = (texts(problems), texts(warnings));
    let ready = NodeReady { ready: problems.is_empty(), role: view.role, leader, problems, warnings };
    let status = if ready.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(ready)).into_response()
}

/// The node's status, as `tenbin cluster status --json` prints it.
pub(super) async fn cluster(State(site): State<Site>) -> Reply<Value> {
    if site.node().is_none() {
        return Err(Problem::not_found("this broker is no node of a cluster"));
    }
    let silent = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, SILENT);
    site.view().await.map(|view| Json(view.status)).ok_or_else(silent)
}

/// 200 if all checks pass, else 503; with `?verbose` a line for each check, and for each warning.
fn answer(checks: &[Check], query: Option<&str>) -> Response {
    let is_fine = checks.iter().all(|check| check.is_warning || check.problem.is_none());
    let is_verbose = query.is_some_and(|query| query.split('&').any(|part| part.split('=').next() == Some("verbose")));
    let mut text = String::new();
    for Check { name, problem, is_warning } in checks {
        match problem {
            Some(problem) if *is_warning && is_verbose => drop(writeln!(text, "[!] {name}: {problem}")),
            Some(_) if *is_warning => {}
            Some(problem) => drop(writeln!(text, "[-] {name}: {problem}")),
            None if is_verbose => drop(writeln!(text, "[+] {name}")),
            None => {}
        }
    }
    text.push_str(if is_fine { "ok\n" } else { "failed\n" });
    (if is_fine { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text).into_response()
}

/// Metrics, as OpenMetrics for clients that ask for it.
pub(super) async fn metrics(State(site): State<Site>, headers: HeaderMap) -> Response {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let is_open = accepted.into_iter().any(|accept| accept.contains("application/openmetrics-text"));
    let mut metrics = Exposition::default();
    if let Some((plane, _)) = site.broker() {
        plane.metrics(&mut metrics);
    }
    if let Some(view) = site.view().await {
        metrics.add_missing(view.metrics);
    }
    let media_type = if is_open { Exposition::OPEN_METRICS } else { Exposition::PROMETHEUS };
    ([(header::CONTENT_TYPE, media_type)], metrics.text(is_open)).into_response()
}

/// Problem of a node whose loop stands.
const SILENT: &str = "the node does not answer";
