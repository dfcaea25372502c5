//! `/healthz`, `/readyz` and `/metrics`.

use std::fmt::Write as _;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::control::Plane;
use crate::{Check, Exposition};

pub(super) async fn healthz(State(plane): State<Plane>, RawQuery(query): RawQuery) -> Response {
    answer(&plane.liveness(), query.as_deref())
}

pub(super) async fn readyz(State(plane): State<Plane>, RawQuery(query): RawQuery) -> Response {
    answer(&plane.readiness(), query.as_deref())
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
pub(super) async fn metrics(State(plane): State<Plane>, headers: HeaderMap) -> Response {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let is_open = accepted.into_iter().any(|accept| accept.contains("application/openmetrics-text"));
    let mut metrics = Exposition::default();
    plane.metrics(&mut metrics);
    let media_type = if is_open { Exposition::OPEN_METRICS } else { Exposition::PROMETHEUS };
    ([(header::CONTENT_TYPE, media_type)], metrics.text(is_open)).into_response()
}
