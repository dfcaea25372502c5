//! Parts of requests, with errors as [`Problem`].

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::problem::Problem;

/// Result of a handler: JSON, or a problem.
pub(super) type Reply<T> = Result<Json<T>, Problem>;

/// An answer in JSON, or the JSON of a request.
pub(super) struct Json<T>(pub(super) T);

/// Parameters behind `?`.
pub(super) struct Queried<T>(pub(super) T);

/// Parameters in the path.
pub(super) struct Named<T>(pub(super) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_string(&self.0) {
            Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let media_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_json = media_type.is_some_and(|value| value.split(';').next() == Some("application/json"));
        if !is_json {
            let detail = "the body has to be JSON, with Content-Type: application/json";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        let body = body(request, state).await?;
        let wrong = |error: serde_json::Error| Problem::new(StatusCode::BAD_REQUEST, format!("body: {error}"));
        serde_json::from_slice(&body).map(Self).map_err(wrong)
    }
}

/// Reads a body within the server's bounds.
pub(super) async fn body<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Problem> {
    let late = |_| Problem::new(StatusCode::REQUEST_TIMEOUT, "the body has not come in time");
    let body = tokio::time::timeout(BODY_TIMEOUT, Bytes::from_request(request, state)).await.map_err(late)?;
    body.map_err(|error| Problem::new(error.status(), error.body_text()))
}

/// Time for the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Queried<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(query)| Self(query)).map_err(|error| Problem::new(error.status(), error.body_text()))
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(path)| Self(path)).map_err(|error| Problem::new(error.status(), error.body_text()))
    }
}
