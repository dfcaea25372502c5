//! The HTTP exchange before the first frame (RFC 6455 §4).

pub(crate) mod client;
pub(crate) mod server;

use base64ct::{Base64, Encoding};
use sha1::{Digest, Sha1};

/// WebSocket subprotocol of MQTT `[MQTT-6.0.0-3]`.
pub const SUBPROTOCOL: &str = "mqtt";
/// Maximum size of a request or its answer, in bytes.
pub const UPGRADE_MAX: usize = 8 * 1024;
/// Maximum number of header fields.
const HEADERS_MAX: usize = 64;

/// Proof that the server has read the client's `key`.
fn accept_key(key: &str) -> String {
    let mut hash = Sha1::new();
    hash.update(key);
    hash.update("258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    Base64::encode_string(&hash.finalize())
}

/// Values of all fields called `name`.
fn values<'h>(headers: &'h [httparse::Header<'_>], name: &str) -> impl Iterator<Item = &'h str> {
    let fields = headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
    fields.filter_map(|header| std::str::from_utf8(header.value).ok()).map(str::trim)
}

/// Elements of the comma-separated lists in all fields called `name`.
fn elements<'h>(headers: &'h [httparse::Header<'_>], name: &str) -> impl Iterator<Item = &'h str> {
    values(headers, name).flat_map(|value| value.split(',')).map(str::trim)
}

fn has_element(headers: &[httparse::Header<'_>], name: &str, element: &str) -> bool {
    elements(headers, name).any(|found| found.eq_ignore_ascii_case(element))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_key_is_that_of_the_standard() {
        assert_eq!(accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
