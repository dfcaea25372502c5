use std::time::Duration;

use base64ct::{Base64UrlUnpadded, Encoding};
use serde_json::{Map, Value};

use super::Key;

/// A parsed token, whose signature may be wrong.
pub(super) struct Token<'a> {
    algorithm: String,
    /// `kid`.
    pub(super) key_id: Option<String>,
    pub(super) claims: Map<String, Value>,
    /// The signed part.
    message: &'a [u8],
    signature: Vec<u8>,
}

impl<'a> Token<'a> {
    /// Parses a token in compact form; `None` if the text has another form.
    pub(super) fn parse(text: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= BYTES_MAX)?;
        let (message, signature) = text.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        let object = |part: &str| {
            let bytes = Base64UrlUnpadded::decode_vec(part).ok()?;
            serde_json::from_slice::<Map<String, Value>>(&bytes).ok()
        };
        let header = object(header)?;
        let of_header = |key: &str| header.get(key).and_then(Value::as_str).map(ToOwned::to_owned);
        // Extensions that a receiver must understand (RFC 7515 §4.1.11): there are none here.
        if header.contains_key("crit") {
            return None;
        }
        Some(Self {
            algorithm: of_header("alg")?,
            key_id: of_header("kid"),
            claims: object(claims)?,
            message: message.as_bytes(),
            signature: Base64UrlUnpadded::decode_vec(signature).ok()?,
        })
    }

    /// Whether the key may have made the signature.
    pub(super) fn has_algorithm_of(&self, key: &Key) -> bool {
        key.has_algorithm(&self.algorithm)
    }

    pub(super) fn is_signed_by(&self, key: &Key) -> bool {
        key.verify(&self.algorithm, self.message, &self.signature)
    }

    pub(super) fn claim(&self, name: &str) -> Option<&str> {
        self.claims.get(name)?.as_str()
    }

    /// A time since 1970.
    pub(super) fn time(&self, name: &str) -> Result<Option<Duration>, &'static str> {
        let Some(value) = self.claims.get(name) else { return Ok(None) };
        let seconds = value.as_f64().filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds));
        seconds.map(Duration::from_secs_f64).map(Some).ok_or("a time is no number of seconds")
    }

    pub(super) fn has_audience(&self, wanted: &str) -> bool {
        match self.claims.get("aud") {
            Some(Value::String(audience)) => audience == wanted,
            Some(Value::Array(audiences)) => audiences.iter().any(|audience| audience.as_str() == Some(wanted)),
            _ => false,
        }
    }
}

/// Longest token.
const BYTES_MAX: usize = 8 << 10;
/// Times beyond year 9999 are rejected.
const SECONDS_MAX: f64 = 253_402_300_799.0;
