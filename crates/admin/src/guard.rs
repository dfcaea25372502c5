//! Rights of requests: checks of `Host` and `Origin`, and of tokens.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use crate::dashboard;
use crate::places::Place;
use crate::problem::Problem;
use crate::tokens::{Role, Tokens};

/// Settings of the checks.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) tokens: Tokens,
    /// Allowed host names in addition to IP addresses and `localhost`.
    pub(crate) hosts: Vec<String>,
    /// Only this machine reaches the server.
    pub(crate) is_local: bool,
}

/// Passes a request on if it may be answered.
pub(crate) async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    match guard.check(request.method(), request.uri(), request.headers()) {
        Ok(role) => {
            if let (Some(_), Some(place)) = (role, request.extensions().get::<Arc<Place>>()) {
                place.trust();
            }
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

impl Guard {
    /// Returns the role of the request's token, if it has one.
    fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<Option<Role>, Problem> {
        let forbidden = |detail: &str| Problem::new(StatusCode::FORBIDDEN, detail);
        let host = self.check_host(uri, headers)?;
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        if is_read && dashboard::has(uri.path()) {
            // A link to the dashboard may be anywhere. The page says nothing, and asks from its own site.
            return Ok(None);
        }
        check_encoding(headers)?;
        // A page of another site sends its own Origin, or says so by Sec-Fetch-Site.
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        if let Some(origin) = text(header::ORIGIN.as_str())
            && origin.split_once("://").is_none_or(|(_, origin)| !origin.eq_ignore_ascii_case(&host))
        {
            return Err(forbidden("Origin: requests of other sites are refused"));
        }
        if let Some("cross-site" | "same-site") = text("sec-fetch-site") {
            return Err(forbidden("Sec-Fetch-Site: requests of other sites are refused"));
        }
        let role = match text(header::AUTHORIZATION.as_str()) {
            None => None,
            Some(value) => {
                let token = value.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
                let role = token.and_then(|(_, token)| self.tokens.role(token.trim()));
                let unknown = || Problem::new(StatusCode::UNAUTHORIZED, "Authorization: the token is unknown");
                Some(role.ok_or_else(unknown)?)
            }
        };
        let needed = self.needed_role(method, uri.path());
        match (needed, role) {
            (None, _) => Ok(role),
            (Some(needed), Some(role)) if role >= needed => Ok(Some(role)),
            (Some(needed), Some(role)) => Err(Problem::new(
                StatusCode::FORBIDDEN,
                format!("needs a token of role {needed}; this one is of a {role}"),
            )),
            (Some(needed), None) => {
                let detail = format!("needs a token of role {needed}: `Authorization: Bearer TOKEN`");
                Err(Problem::new(StatusCode::UNAUTHORIZED, detail))
            }
        }
    }

    /// Checks the name by which the server was reached. A name that its owner can point to this address (DNS
    /// rebinding) must not work; an IP address cannot be rebound.
    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<String, Problem> {
        let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).or(uri.host());
        let missing = || Problem::new(StatusCode::BAD_REQUEST, "Host: is missing");
        let host = host.ok_or_else(missing)?;
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let plain = name.trim_start_matches('[').trim_end_matches(']');
        let is_known = plain.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name));
        let unknown = || {
            let detail = format!("Host: {name:?} is no name of this server; `hosts` of [admin] lists them");
            Problem::new(StatusCode::FORBIDDEN, detail)
        };
        is_known.then(|| host.to_owned()).ok_or_else(unknown)
    }

    /// Role for a request; `None` = no token needed.
    fn needed_role(&self, method: &Method, path: &str) -> Option<Role> {
        let is_probe = matches!(path, "/healthz" | "/readyz" | "/leaderz");
        match *method {
            // It shows the topics of all clients.
            _ if path == "/api/v1/trace" => Some(Role::Operator),
            // A name in `hosts` means a proxy, and others may reach the proxy.
            Method::GET | Method::HEAD if (self.is_local && self.hosts.is_empty()) || is_probe => None,
            Method::GET | Method::HEAD => Some(Role::Viewer),
            _ => Some(Role::Operator),
        }
    }
}

/// Refuses an encoded body, which is never decoded.
fn check_encoding(headers: &HeaderMap) -> Result<(), Problem> {
    let is_plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if let Some(encoding) = headers.get_all(header::CONTENT_ENCODING).iter().find(|value| !is_plain(value)) {
        let detail = format!("Content-Encoding: {encoding:?} is not decoded; send the body as it is");
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    let is_chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    if let Some(encoding) = headers.get_all(header::TRANSFER_ENCODING).iter().find(|value| !is_chunked(value)) {
        let detail = format!("Transfer-Encoding: {encoding:?} is not \"chunked\"");
        return Err(Problem::new(StatusCode::NOT_IMPLEMENTED, detail));
    }
    Ok(())
}
