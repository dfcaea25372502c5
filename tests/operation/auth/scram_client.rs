//! SCRAM-SHA-256 client, written from the RFCs without the broker's code.

use base64ct::{Base64, Encoding};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use tenbin_codec::{Auth, AuthProperties, Connect, ConnectProperties, Packet, ProtocolVersion, ReasonCode};

use crate::support::text;

pub(crate) const METHOD: &str = "SCRAM-SHA-256";

pub(crate) struct ScramClient {
    password: String,
    first_bare: String,
    server_signature: String,
}

impl ScramClient {
    pub(crate) fn new(user: &str, password: &str) -> Self {
        let first_bare = format!("n={user},r=fyko+d2lbbFgONRv9qkxdawL");
        Self { password: password.to_owned(), first_bare, server_signature: String::new() }
    }

    pub(crate) fn first(&self) -> Bytes {
        format!("n,,{}", self.first_bare).into()
    }

    /// The answer to the server's first message.
    pub(crate) fn last(&mut self, server_first: &[u8]) -> Bytes {
        let server_first = std::str::from_utf8(server_first).expect("text");
        let attribute = |name: &str| {
            server_first.split(',').find_map(|part| part.strip_prefix(name)).unwrap_or_else(|| panic!("{server_first}"))
        };
        let salt = Base64::decode_vec(attribute("s=")).expect("base64");
        let iterations = attribute("i=").parse().expect("a number");
        let nonce = attribute("r=");
        assert!(nonce.starts_with("fyko+d2lbbFgONRv9qkxdawL") && nonce.len() > 40, "{nonce}");
        let without_proof = format!("c=biws,r={nonce}");
        let conversation = format!("{},{server_first},{without_proof}", self.first_bare);
        let salted = pbkdf2::pbkdf2_hmac_array::<Sha256, 32>(self.password.as_bytes(), &salt, iterations);
        let client_key = hmac(&salted, b"Client Key");
        let signature = hmac(&Sha256::digest(client_key), conversation.as_bytes());
        let proof: Vec<u8> = client_key.iter().zip(signature).map(|(key, signature)| key ^ signature).collect();
        let server_key = hmac(&salted, b"Server Key");
        self.server_signature = Base64::encode_string(&hmac(&server_key, conversation.as_bytes()));
        format!("{without_proof},p={}", Base64::encode_string(&proof)).into()
    }

    /// True if the server's last message proves that it knows the password.
    pub(crate) fn accepts(&self, server_last: &[u8]) -> bool {
        server_last == format!("v={}", self.server_signature).as_bytes()
    }
}

pub(crate) fn connect(client_id: &str, method: &str, data: Option<Bytes>) -> Connect {
    let properties = ConnectProperties {
        authentication_method: Some(text(method)),
        authentication_data: data.map(Into::into),
        ..ConnectProperties::default()
    };
    Connect { properties, ..Connect::new(ProtocolVersion::V5, text(client_id)) }
}

pub(crate) fn auth(reason: ReasonCode, method: Option<&str>, data: Option<Bytes>) -> Packet {
    let properties = AuthProperties {
        authentication_method: method.map(text),
        authentication_data: data.map(Into::into),
        ..AuthProperties::default()
    };
    Packet::Auth(Box::new(Auth { reason, properties }))
}

fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}
