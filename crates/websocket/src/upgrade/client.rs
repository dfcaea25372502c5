//! The client's side: request, and judgement of the answer.

use std::fmt;

use base64ct::{Base64, Encoding};
use httparse::{Response, Status};

use super::{HEADERS_MAX, SUBPROTOCOL, UPGRADE_MAX, accept_key, has_element, values};

/// A client's request and its expected answer.
#[derive(Debug)]
pub struct ClientUpgrade {
    key: String,
}

/// Reason why there is no WebSocket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpgradeError {
    /// The server refused with this status and text.
    Refused(u16, String),
    /// The answer breaks a rule.
    Answer(&'static str),
}

impl ClientUpgrade {
    /// Returns an exchange with a random `key`.
    pub fn new(key: [u8; 16]) -> Self {
        Self { key: Base64::encode_string(&key) }
    }

    /// The request, for `host` as in "host:port".
    pub fn request(&self, host: &str, path: &str) -> String {
        let path = if path.is_empty() { "/" } else { path };
        format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n",
            self.key
        )
    }

    /// Judges the bytes received so far. Returns the length of the answer; frames follow it. `None`: it has not ended.
    ///
    /// # Errors
    /// The server refuses, or does not speak WebSocket.
    pub fn judge(&self, bytes: &[u8]) -> Result<Option<usize>, UpgradeError> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = Response::new(&mut headers);
        let length = match response.parse(bytes) {
            Ok(Status::Complete(length)) => length,
            Ok(Status::Partial) if bytes.len() < UPGRADE_MAX => return Ok(None),
            Ok(Status::Partial) => return Err(UpgradeError::Answer("it is too long")),
            Err(_) => return Err(UpgradeError::Answer("it is no HTTP")),
        };
        if response.code != Some(101) {
            let text = String::from_utf8_lossy(&bytes[length..]).trim().to_owned();
            return Err(UpgradeError::Refused(response.code.unwrap_or_default(), text));
        }
        let headers = &*response.headers;
        if !has_element(headers, "upgrade", "websocket") || !has_element(headers, "connection", "upgrade") {
            return Err(UpgradeError::Answer("it upgrades to another protocol"));
        }
        if values(headers, "sec-websocket-accept").ne([accept_key(&self.key)]) {
            return Err(UpgradeError::Answer("it proves no knowledge of the request"));
        }
        if values(headers, "sec-websocket-protocol").ne([SUBPROTOCOL]) {
            return Err(UpgradeError::Answer("it does not choose the subprotocol mqtt [MQTT-6.0.0-4]"));
        }
        if values(headers, "sec-websocket-extensions").next().is_some() {
            return Err(UpgradeError::Answer("it has an extension without an offer"));
        }
        Ok(Some(length))
    }
}

impl fmt::Display for UpgradeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(status, text) if text.is_empty() => write!(f, "WebSocket refused with HTTP status {status}"),
            Self::Refused(status, text) => write!(f, "WebSocket refused with HTTP status {status}: {text}"),
            Self::Answer(reason) => write!(f, "no WebSocket answer: {reason}"),
        }
    }
}

impl std::error::Error for UpgradeError {}

#[cfg(test)]
mod tests {
    use super::super::server::{Refusal, Rules, accept};
    use super::*;

    fn exchange() -> (ClientUpgrade, String) {
        let upgrade = ClientUpgrade::new([7; 16]);
        let request = upgrade.request("broker:80", "/mqtt");
        let accepted = accept(request.as_bytes(), Rules { path: "/mqtt", origins: &[] }).unwrap().unwrap();
        (upgrade, accepted.answer)
    }

    #[test]
    fn client_accepts_the_servers_answer() {
        let (upgrade, answer) = exchange();
        assert_eq!(upgrade.judge(format!("{answer}\u{2}").as_bytes()), Ok(Some(answer.len())));
        for end in 0..answer.len() {
            assert_eq!(upgrade.judge(&answer.as_bytes()[..end]), Ok(None), "{end}");
        }
    }

    #[test]
    fn client_rejects_wrong_answers() {
        let (upgrade, answer) = exchange();
        let judge = |text: &str| upgrade.judge(text.as_bytes()).unwrap_err().to_string();
        for (from, to, word) in [
            ("HTTP/1.1", "MQTT", "no HTTP"),
            ("Upgrade: websocket", "Upgrade: h2c", "another protocol"),
            ("Accept: ", "Accept: x", "no knowledge"),
            ("Protocol: mqtt", "Protocol: chat", "MQTT-6.0.0-4"),
            ("Upgrade: websocket", "Upgrade: websocket\r\nSec-WebSocket-Extensions: x", "without an offer"),
        ] {
            assert!(judge(&answer.replace(from, to)).contains(word), "{word}");
        }
        let refusal: Refusal = accept(b"GET / HTTP/1.1\r\n\r\n", Rules { path: "/mqtt", origins: &[] }).unwrap_err();
        assert_eq!(judge(&refusal.answer()), "WebSocket refused with HTTP status 404: MQTT is at the path /mqtt");
    }
}
