//! Answers: statuses of refusals, and messages.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use tenbin_client::{ClientError, ClientErrorKind, Message, ReasonCode};

use crate::places::{self, Held};

/// An answer to a request.
pub(crate) type Answer = Response<Full<Bytes>>;

/// A refused request; its body is one line of JSON.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    /// The broker's Reason Code, if it refused.
    reason: Option<ReasonCode>,
    text: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, reason: None, text: text.into() }
    }

    pub(crate) fn bad_request(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// No room for the bytes of a body or an answer.
    pub(crate) fn no_room(bytes: usize) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, format!("no room for {bytes} bytes at the moment"))
    }

    /// The broker's refusal of `request`, by its Reason Code.
    pub(crate) fn of_broker(request: &str, reason: ReasonCode) -> Self {
        Self { status: status_of(reason), reason: Some(reason), text: format!("{request}: {reason}") }
    }

    /// The failure of `request`.
    pub(crate) fn of_client(request: &str, error: &ClientError) -> Self {
        let (reason, text) = (error.reason(), format!("{request}: {}", error.kind()));
        let status = match error.kind() {
            ClientErrorKind::Invalid(_) => StatusCode::BAD_REQUEST,
            _ => reason.map_or(StatusCode::SERVICE_UNAVAILABLE, status_of),
        };
        Self { status, reason, text }
    }

    /// The failure of a CONNECT: a client that may not connect has to name other credentials.
    pub(crate) fn of_login(error: &ClientError) -> Self {
        let refusal = Self::of_client("CONNECT", error);
        match refusal.reason {
            Some(ReasonCode::NotAuthorized) => Self { status: StatusCode::UNAUTHORIZED, ..refusal },
            _ => refusal,
        }
    }

    pub(crate) fn into_answer(self) -> Answer {
        let Self { status, .. } = self;
        let mut answer = Response::new(Full::new(self.line().into()));
        *answer.status_mut() = status;
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match status {
            StatusCode::UNAUTHORIZED => {
                let schemes =
                    HeaderValue::from_static("Basic realm=\"MQTT\", charset=\"UTF-8\", Bearer realm=\"MQTT\"");
                headers.insert(header::WWW_AUTHENTICATE, schemes);
            }
            StatusCode::METHOD_NOT_ALLOWED => {
                headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
            }
            _ => {}
        }
        answer
    }

    fn line(&self) -> String {
        let mut line = match self.reason {
            Some(reason) => serde_json::json!({ "error": self.text, "reason": reason.byte() }),
            None => serde_json::json!({ "error": self.text }),
        }
        .to_string();
        line.push('\n');
        line
    }
}

/// Answer to a published message.
pub(crate) fn published() -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer
}

/// Answer with a retained message, whose bytes `held` counts.
pub(crate) fn retained(message: Message, held: Held) -> Answer {
    let content_type = message.properties.as_ref().and_then(|properties| properties.content_type.as_ref());
    let content_type = content_type.and_then(|text| HeaderValue::from_bytes(text.as_bytes()).ok());
    let mut answer = Response::new(Full::new(held.with(message.payload)));
    let unknown = HeaderValue::from_static("application/octet-stream");
    answer.headers_mut().insert(header::CONTENT_TYPE, content_type.unwrap_or(unknown));
    // A browser shall not run a payload because it looks like a page.
    answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// Bytes for a connection without a place, which is closed before its request is read.
pub(crate) fn without_place(full: places::Full) -> String {
    let (status, text) = match full {
        places::Full::Server => (StatusCode::SERVICE_UNAVAILABLE, "too many connections"),
        places::Full::Address => (StatusCode::TOO_MANY_REQUESTS, "too many connections of this address"),
    };
    let line = Refusal::new(status, text).line();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{line}",
        line.len()
    )
}

fn status_of(reason: ReasonCode) -> StatusCode {
    match reason {
        ReasonCode::BadUserNameOrPassword | ReasonCode::BadAuthenticationMethod => StatusCode::UNAUTHORIZED,
        ReasonCode::NotAuthorized | ReasonCode::Banned => StatusCode::FORBIDDEN,
        ReasonCode::TopicNameInvalid
        | ReasonCode::TopicFilterInvalid
        | ReasonCode::QoSNotSupported
        | ReasonCode::RetainNotSupported => StatusCode::BAD_REQUEST,
        ReasonCode::PacketTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ReasonCode::PayloadFormatInvalid => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ReasonCode::MessageRateTooHigh | ReasonCode::ReceiveMaximumExceeded | ReasonCode::ConnectionRateExceeded => {
            StatusCode::TOO_MANY_REQUESTS
        }
        ReasonCode::QuotaExceeded => StatusCode::INSUFFICIENT_STORAGE,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_codes_have_their_statuses() {
        use ReasonCode as R;
        for (reason, status) in [
            (R::BadUserNameOrPassword, 401),
            (R::BadAuthenticationMethod, 401),
            (R::NotAuthorized, 403),
            (R::Banned, 403),
            (R::TopicNameInvalid, 400),
            (R::TopicFilterInvalid, 400),
            (R::QoSNotSupported, 400),
            (R::RetainNotSupported, 400),
            (R::PacketTooLarge, 413),
            (R::PayloadFormatInvalid, 415),
            (R::MessageRateTooHigh, 429),
            (R::ReceiveMaximumExceeded, 429),
            (R::ConnectionRateExceeded, 429),
            (R::QuotaExceeded, 507),
            (R::ServerBusy, 503),
            (R::ServerUnavailable, 503),
            (R::ServerShuttingDown, 503),
            (R::UnspecifiedError, 503),
        ] {
            let refusal = Refusal::of_broker("message to \"a\"", reason);
            assert_eq!(refusal.into_answer().status().as_u16(), status, "{reason}");
        }
    }

    #[test]
    fn refusals_are_one_line_of_json() {
        let line = Refusal::of_broker("message to \"a\\\n\"", ReasonCode::NotAuthorized).line();
        assert_eq!(line.matches('\n').count(), 1);
        let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(parsed["reason"], 0x87);
        assert!(parsed["error"].as_str().unwrap().contains("message to \"a\\\n\""));
    }
}
