//! Errors as `application/problem+json` (RFC 9457).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::{ControlError, LeaderView};

/// An error for the client.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) detail: String,
    /// The node that answers such requests.
    pub(crate) leader: Option<LeaderView>,
}

#[derive(Serialize)]
struct Body<'a> {
    r#type: &'static str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    /// Name of the leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<&'a str>,
    /// URL of its admin HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    admin: Option<&'a str>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), leader: None }
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }
}

impl From<ControlError> for Problem {
    fn from(error: ControlError) -> Self {
        let status = match error {
            ControlError::NotFound(_) => StatusCode::NOT_FOUND,
            ControlError::Invalid(_) => StatusCode::BAD_REQUEST,
            ControlError::Conflict(_) => StatusCode::CONFLICT,
            ControlError::TooMany(_) => StatusCode::TOO_MANY_REQUESTS,
            ControlError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let title = self.status.canonical_reason().unwrap_or("error");
        let leader = self.leader.as_ref();
        let body = Body {
            r#type: "about:blank",
            title,
            status: self.status.as_u16(),
            detail: &self.detail,
            leader: leader.map(|leader| &leader.node[..]),
            admin: leader.and_then(|leader| leader.admin.as_deref()),
        };
        let body = serde_json::to_string(&body).unwrap_or_default();
        let mut response = (self.status, body).into_response();
        let media_type = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, media_type);
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}
