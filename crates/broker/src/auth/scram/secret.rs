use std::fmt;

use base64ct::{Base64, Encoding};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// What the server keeps of a password: enough to check a proof, not enough to make one.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ScramSecret {
    pub(super) iterations: u32,
    pub(super) salt: Vec<u8>,
    stored_key: [u8; 32],
    server_key: [u8; 32],
}

impl ScramSecret {
    pub(crate) fn new(password: &[u8], salt: Vec<u8>, iterations: u32) -> Self {
        let mut salted = [0; 32];
        pbkdf2::pbkdf2_hmac::<Sha256>(password, &salt, iterations, &mut salted);
        let stored_key = Sha256::digest(hmac(&salted, &[b"Client Key"])).into();
        Self { iterations, salt, stored_key, server_key: hmac(&salted, &[b"Server Key"]) }
    }

    /// One that no password fits, the same for a user each time: for users who do not exist.
    pub(crate) fn decoy(key: &[u8; 32], user: &[u8]) -> Self {
        let salt = hmac(key, &[b"salt", user])[..SALT_BYTES].to_vec();
        Self { iterations: ITERATIONS, salt, stored_key: hmac(key, &[b"stored", user]), server_key: *key }
    }

    /// Whether `proof` was made with the password, for this conversation.
    pub(super) fn accepts(&self, proof: &[u8; 32], auth_message: &[&[u8]]) -> bool {
        let mut client_key = hmac(&self.stored_key, auth_message);
        client_key.iter_mut().zip(proof).for_each(|(byte, proof)| *byte ^= proof);
        let stored_key: [u8; 32] = Sha256::digest(client_key).into();
        stored_key.ct_eq(&self.stored_key).into()
    }

    /// Shows the client that the server knows it too.
    pub(super) fn signature(&self, auth_message: &[&[u8]]) -> [u8; 32] {
        hmac(&self.server_key, auth_message)
    }

    /// From the text after [`PREFIX`].
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('$');
        let iterations = parts.next()?.parse().ok().filter(|&iterations| iterations >= ITERATIONS_LEAST)?;
        let mut bytes = || Base64::decode_vec(parts.next()?).ok();
        let (salt, stored_key, server_key) = (bytes()?, bytes()?, bytes()?);
        let is_end = parts.next().is_none() && !salt.is_empty();
        let keys = (stored_key.try_into().ok()?, server_key.try_into().ok()?);
        is_end.then_some(Self { iterations, salt, stored_key: keys.0, server_key: keys.1 })
    }
}

impl fmt::Display for ScramSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base64 = Base64::encode_string;
        let (salt, stored_key) = (base64(&self.salt), base64(&self.stored_key));
        write!(f, "{PREFIX}{}${salt}${stored_key}${}", self.iterations, base64(&self.server_key))
    }
}

impl fmt::Debug for ScramSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScramSecret").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

/// What the text of a secret begins with.
pub(crate) const PREFIX: &str = "$scram-sha-256$";
/// Iterations of new secrets. Each client computes them, once a password.
pub(crate) const ITERATIONS: u32 = 65_536;
/// RFC 7677 §4.
const ITERATIONS_LEAST: u32 = 4096;
/// Bytes of a new salt.
pub(crate) const SALT_BYTES: usize = 16;

pub(super) fn hmac(key: &[u8; 32], message: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    message.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_comes_back() {
        let secret = ScramSecret::new(b"pencil", b"salty".to_vec(), 4096);
        let text = secret.to_string();
        assert_eq!(ScramSecret::parse(text.strip_prefix(PREFIX).unwrap()), Some(secret));
        let short = ["", "4096", "4096$c2FsdA==$AAAA$AAAA", "12$c2FsdA==$AAAA$AAAA"];
        for text in
            short.into_iter().chain([&text[PREFIX.len()..text.len() - 1], &format!("{}$", &text[PREFIX.len()..])])
        {
            assert_eq!(ScramSecret::parse(text), None, "{text}");
        }
    }
}
