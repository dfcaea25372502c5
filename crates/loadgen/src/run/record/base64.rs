//! Serde adapter that writes bytes as Base64 text, for parts sent as JSON: `#[serde(with = "base64")]`.

use base64ct::{Base64, Encoding};
use serde::{Deserialize, Deserializer, Serializer, de};

pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&Base64::encode_string(bytes))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Base64::decode_vec(&text).map_err(|error| de::Error::custom(format_args!("no Base64: {error}")))
}
