//! The server's side: request to answer.

use std::fmt;

use base64ct::{Base64, Encoding};
use httparse::{Header, Request, Status};

use super::{HEADERS_MAX, SUBPROTOCOL, UPGRADE_MAX, accept_key, elements, has_element, values};

/// Conditions for a request.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'r> {
    /// Path of the request; empty = any.
    pub path: &'r str,
    /// Allowed values of `Origin`, which browsers send; empty = all. A request without `Origin` is no browser's.
    pub origins: &'r [String],
}

/// An accepted request.
#[derive(Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The whole answer; frames follow it.
    pub answer: String,
    /// Elements of `X-Forwarded-For` in order: each proxy appends the address of its peer. Anybody can send them.
    pub forwarded_for: Vec<String>,
}

/// Reason to refuse a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    status: u16,
    text: String,
}

/// Judges the bytes received so far. `None`: the request has not ended.
///
/// # Errors
/// The request is refused.
pub fn accept(bytes: &[u8], rules: Rules<'_>) -> Result<Option<Accepted>, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(Status::Complete(length)) if length <= UPGRADE_MAX => length,
        Ok(Status::Partial) if bytes.len() < UPGRADE_MAX => return Ok(None),
        Ok(_) => return Err(Refusal::new(431, format!("the request has more than {UPGRADE_MAX} bytes"))),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Refusal::new(431, format!("the request has more than {HEADERS_MAX} header fields")));
        }
        Err(error) => return Err(Refusal::new(400, format!("no HTTP request: {error}"))),
    };
    if request.method != Some("GET") {
        return Err(Refusal::new(405, "the method is not GET"));
    }
    if request.version != Some(1) {
        return Err(Refusal::new(400, "the version of HTTP is not 1.1"));
    }
    check_target(request.path.unwrap_or_default(), request.headers, rules)?;
    let key = key(request.headers)?;
    let subprotocol = subprotocol(request.headers)?;
    if length < bytes.len() {
        return Err(Refusal::new(400, "bytes follow the request before its answer"));
    }
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {}\r\nSec-WebSocket-Protocol: {subprotocol}\r\n\r\n",
        accept_key(key)
    );
    Ok(Some(Accepted { answer, forwarded_for: forwarded_for(request.headers) }))
}

fn check_target(target: &str, headers: &[Header<'_>], rules: Rules<'_>) -> Result<(), Refusal> {
    let path = target.split('?').next().unwrap_or_default();
    if !rules.path.is_empty() && path != rules.path {
        return Err(Refusal::new(404, format!("MQTT is at the path {}", rules.path)));
    }
    let is_allowed = |origin: &str| rules.origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin));
    // A field that is not UTF-8 is no allowed origin, and must not count as missing.
    let is_origin = |header: &&Header<'_>| header.name.eq_ignore_ascii_case("origin");
    let mut origins = headers.iter().filter(is_origin).map(|header| std::str::from_utf8(header.value));
    if !rules.origins.is_empty() && !origins.all(|origin| origin.is_ok_and(|origin| is_allowed(origin.trim()))) {
        return Err(Refusal::new(403, "pages of this origin may not connect"));
    }
    Ok(())
}

fn key<'h>(headers: &'h [Header<'_>]) -> Result<&'h str, Refusal> {
    if !has_element(headers, "upgrade", "websocket") || !has_element(headers, "connection", "upgrade") {
        return Err(Refusal::new(426, "this port speaks MQTT over WebSocket: no Upgrade: websocket"));
    }
    if values(headers, "sec-websocket-version").ne(["13"]) {
        return Err(Refusal::new(426, "Sec-WebSocket-Version is not 13"));
    }
    let mut keys = values(headers, "sec-websocket-key");
    let is_key = |key: &&str| Base64::decode(key, &mut [0; 18]).is_ok_and(|key| key.len() == 16);
    match (keys.next().filter(is_key), keys.next()) {
        (Some(key), None) => Ok(key),
        _ => Err(Refusal::new(400, "Sec-WebSocket-Key is not 16 bytes in base64")),
    }
}

/// Chosen subprotocol `[MQTT-6.0.0-4]`. Old clients for MQTT 3.1 know only another name.
fn subprotocol(headers: &[Header<'_>]) -> Result<&'static str, Refusal> {
    let is_offered = |name: &&str| elements(headers, "sec-websocket-protocol").any(|offered| offered == *name);
    let chosen = [SUBPROTOCOL, "mqttv3.1"].into_iter().find(is_offered);
    chosen.ok_or_else(|| Refusal::new(400, "Sec-WebSocket-Protocol does not offer mqtt [MQTT-6.0.0-3]"))
}

/// Elements of all such fields; bytes that are not UTF-8 become U+FFFD, which is in no address.
fn forwarded_for(headers: &[Header<'_>]) -> Vec<String> {
    let fields = headers.iter().filter(|header| header.name.eq_ignore_ascii_case("x-forwarded-for"));
    let elements = fields.flat_map(|field| field.value.split(|&byte| byte == b','));
    elements.map(|element| String::from_utf8_lossy(element).trim().to_owned()).collect()
}

impl Refusal {
    /// Refusal with this status; the client gets the text.
    pub fn new(status: u16, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// Status code of the answer.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The whole answer.
    pub fn answer(&self) -> String {
        let Self { status, text } = self;
        let reason = match status {
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            426 => "Upgrade Required",
            431 => "Request Header Fields Too Large",
            _ => "Bad Request",
        };
        let more = match status {
            405 => "Allow: GET\r\n",
            426 => "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
            _ => "",
        };
        let connection = if *status == 426 { "Upgrade, close" } else { "close" };
        format!(
            "HTTP/1.1 {status} {reason}\r\n{more}Connection: {connection}\r\nContent-Type: text/plain\r\n\
             Content-Length: {}\r\n\r\n{text}\n",
            text.len() + 1
        )
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

    fn request(first_line: &str, more: &str) -> String {
        format!("{first_line}\r\nHost: b\r\n{more}\r\n")
    }

    fn usual() -> String {
        format!(
            "Upgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Protocol: mqttv3.1, mqtt\r\n"
        )
    }

    fn judge(text: &str) -> Result<Option<Accepted>, u16> {
        let origins = ["https://page.example".to_owned()];
        let rules = Rules { path: "/mqtt", origins: &origins };
        accept(text.as_bytes(), rules).map_err(|refusal| refusal.status())
    }

    #[test]
    fn request_is_answered_with_proof_and_subprotocol() {
        let text = request("GET /mqtt?token=1 HTTP/1.1", &usual());
        let Accepted { answer, forwarded_for } = judge(&text).unwrap().unwrap();
        assert!(forwarded_for.is_empty());
        assert!(answer.starts_with("HTTP/1.1 101 ") && answer.ends_with("\r\n\r\n"), "{answer}");
        assert!(answer.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{answer}");
        assert!(answer.contains("Sec-WebSocket-Protocol: mqtt\r\n"), "{answer}");
        for end in 0..text.len() {
            assert_eq!(judge(&text[..end]), Ok(None), "{end}");
        }
        let old = judge(&text.replace("mqttv3.1, mqtt", "chat, mqttv3.1")).unwrap().unwrap();
        assert!(old.answer.contains("Sec-WebSocket-Protocol: mqttv3.1\r\n"), "{}", old.answer);
    }

    #[test]
    fn forwarded_for_has_the_elements_of_all_its_fields() {
        let fields = "x-forwarded-for: 192.0.2.1,  junk\r\nX-Forwarded-For:\r\nX-Forwarded-For: 192.0.2.2\r\n";
        let accepted = judge(&request("GET /mqtt HTTP/1.1", &(usual() + fields))).unwrap().unwrap();
        assert_eq!(accepted.forwarded_for, ["192.0.2.1", "junk", "", "192.0.2.2"]);
    }

    #[test]
    fn wrong_requests_are_refused_with_their_status() {
        let text = request("GET /mqtt HTTP/1.1", &usual());
        let many = request("GET /mqtt HTTP/1.1", &(usual() + &"x: y\r\n".repeat(64)));
        let endless = text.replace("Host: b", &format!("Host: {}", "b".repeat(UPGRADE_MAX)));
        for (text, status) in [
            ("\x10\x0E\0\x04MQTT\x05\x02\0\0\0\0\x01a".to_owned(), 400),
            (text.replace("GET", "POST"), 405),
            (text.replace("HTTP/1.1", "HTTP/1.0"), 400),
            (text.replace("/mqtt", "/other"), 404),
            (text.replace("Host: b", "Origin: https://evil.example"), 403),
            (request("GET /mqtt HTTP/1.1", ""), 426),
            (text.replace(": 13", ": 8"), 426),
            (text.replace(KEY, "short"), 400),
            (text.replace(KEY, &format!("{KEY}\r\nSec-WebSocket-Key: {KEY}")), 400),
            (text.replace("mqttv3.1, mqtt", "chat"), 400),
            (text.replace("Sec-WebSocket-Protocol: mqttv3.1, mqtt\r\n", ""), 400),
            (format!("{text}\u{2}"), 400),
            (many, 431),
            (endless[..UPGRADE_MAX].to_owned(), 431),
        ] {
            assert_eq!(judge(&text), Err(status), "{text}");
        }
        assert!(judge(&text.replace("Host: b", "Origin: https://page.example")).unwrap().is_some());
        assert!(accept(text.replace("/mqtt", "/x").as_bytes(), Rules { path: "", origins: &[] }).unwrap().is_some());
    }

    #[test]
    fn refusal_is_a_whole_answer() {
        let answer = Refusal::new(426, "Sec-WebSocket-Version is not 13").answer();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("Sec-WebSocket-Version: 13\r\n"), "{head}");
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{head}");
    }
}
