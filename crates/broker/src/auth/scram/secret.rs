use std::collections::BTreeMap;
use std::fmt;

use base64ct::{Base64, Encoding};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use tenbin_codec::Secret;

/// The server's record of a password: sufficient to check a proof, not to create one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScramSecret {
    pub(super) iterations: u32,
    pub(super) salt: Vec<u8>,
    stored_key: Secret<[u8; 32]>,
    server_key: Secret<[u8; 32]>,
}

impl ScramSecret {
    pub(crate) fn new(password: &[u8], salt: Vec<u8>, iterations: u32) -> Self {
        let mut salted = [0; 32];
        pbkdf2::pbkdf2_hmac::<Sha256>(password, &salt, iterations, &mut salted);
        let stored_key = Sha256::digest(hmac(&salted, &[b"Client Key"])).into();
        Self::of_keys(iterations, salt, stored_key, hmac(&salted, &[b"Server Key"]))
    }

    fn of_keys(iterations: u32, salt: Vec<u8>, stored_key: [u8; 32], server_key: [u8; 32]) -> Self {
        Self { iterations, salt, stored_key: Secret::new(stored_key), server_key: Secret::new(server_key) }
    }

    /// Creates a secret for an unknown user; no password matches it. It is always the same for one user of a realm.
    ///
    /// Iterations and salt length are those of some user of the file.
    pub(crate) fn decoy(key: &[u8; 32], realm: &[u8], user: &[u8], shapes: &Shapes) -> Self {
        let hash = |purpose: &[u8]| {
            let realm_length = (realm.len() as u64).to_le_bytes();
            hmac(key, &[purpose, &realm_length, realm, user])
        };
        let (iterations, salt_bytes) = shapes.draw(|shape| {
            let [iterations, salt_bytes] = [u64::from(shape.0), shape.1 as u64].map(u64::to_le_bytes);
            let hash = hmac(&hash(b"shape"), &[&iterations, &salt_bytes]);
            u64::from_le_bytes(hash[..8].try_into().expect("eight bytes"))
        });
        let blocks =
            (0..salt_bytes.div_ceil(32) as u64).flat_map(|block| hmac(&hash(b"salt"), &[&block.to_le_bytes()]));
        let salt = blocks.take(salt_bytes).collect();
        Self::of_keys(iterations, salt, hash(b"stored"), *key)
    }

    /// Whether `proof` was made with the password for this exchange.
    pub(super) fn accepts(&self, proof: &[u8; 32], auth_message: &[&[u8]]) -> bool {
        let mut client_key = hmac(self.stored_key.expose(), auth_message);
        client_key.iter_mut().zip(proof).for_each(|(byte, proof)| *byte ^= proof);
        self.stored_key == Secret::new(Sha256::digest(client_key))
    }

    /// Returns the proof to the client that the server knows the secret too.
    pub(super) fn signature(&self, auth_message: &[&[u8]]) -> [u8; 32] {
        hmac(self.server_key.expose(), auth_message)
    }

    /// Parses the text after [`PREFIX`].
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('$');
        let iterations = parts.next()?.parse().ok().filter(|&iterations| iterations >= ITERATIONS_LEAST)?;
        let mut bytes = || Base64::decode_vec(parts.next()?).ok();
        let (salt, stored_key, server_key) = (bytes()?, bytes()?, bytes()?);
        let is_end = parts.next().is_none() && !salt.is_empty();
        let secret = Self::of_keys(iterations, salt, stored_key.try_into().ok()?, server_key.try_into().ok()?);
        is_end.then_some(secret)
    }
}

/// Pairs of iterations and salt length in one password file, with the number of users of each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shapes(BTreeMap<(u32, usize), u32>);

impl Shapes {
    pub(crate) fn add(&mut self, secret: &ScramSecret) {
        *self.0.entry((secret.iterations, secret.salt.len())).or_insert(0) += 1;
    }

    /// Draws a pair at random, in proportion to its users. `hash` is the source of randomness.
    ///
    /// Each pair has its own hash, so a new user changes few draws and most decoys stay.
    fn draw(&self, hash: impl Fn((u32, usize)) -> u64) -> (u32, usize) {
        // Weighted rendezvous hashing: the largest u^(1/weight) wins, compared by its logarithm.
        let score = |shape: (u32, usize), weight: u32| {
            let uniform = (hash(shape) as f64 + 1.0) / (u64::MAX as f64 + 2.0);
            uniform.ln() / f64::from(weight)
        };
        let scored = self.0.iter().map(|(&shape, &weight)| (score(shape, weight), shape));
        let best = scored.max_by(|(one, _), (other, _)| one.total_cmp(other));
        best.map_or((ITERATIONS, SALT_BYTES), |(_, shape)| shape)
    }
}

impl fmt::Display for ScramSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base64 = Base64::encode_string;
        let (salt, stored_key) = (base64(&self.salt), base64(self.stored_key.expose()));
        write!(f, "{PREFIX}{}${salt}${stored_key}${}", self.iterations, base64(self.server_key.expose()))
    }
}

/// Start of the text of a secret.
pub(crate) const PREFIX: &str = "$scram-sha-256$";
/// Iterations of new secrets. Each client computes them once per password.
pub(crate) const ITERATIONS: u32 = 65_536;
/// Minimum number of iterations (RFC 7677 §4).
const ITERATIONS_LEAST: u32 = 4096;
/// Length of new salts in bytes.
pub(crate) const SALT_BYTES: usize = 16;

/// Returns HMAC-SHA-256 of the concatenated parts.
pub(crate) fn hmac(key: &[u8; 32], message: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    message.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoys_have_the_shapes_of_users_and_are_stable() {
        let mut shapes = Shapes::default();
        let secret = |iterations, salt_bytes| ScramSecret::new(b"x", vec![1; salt_bytes], iterations);
        let decoy = |shapes: &Shapes, realm: &str, user: u32| {
            ScramSecret::decoy(&[7; 32], realm.as_bytes(), user.to_string().as_bytes(), shapes)
        };
        let none = decoy(&shapes, "r", 0);
        assert_eq!((none.iterations, none.salt.len()), (ITERATIONS, SALT_BYTES));
        (0..3).for_each(|_| shapes.add(&secret(4096, 16)));
        shapes.add(&secret(8192, 40));
        let drawn: Vec<_> = (0..1000).map(|user| decoy(&shapes, "r", user)).collect();
        assert!(drawn.iter().all(|decoy| [(4096, 16), (8192, 40)].contains(&(decoy.iterations, decoy.salt.len()))));
        let frequent = drawn.iter().filter(|decoy| decoy.iterations == 4096).count();
        assert!((650..850).contains(&frequent), "three of four users have it: {frequent}");
        assert_eq!(drawn[0], decoy(&shapes, "r", 0));
        assert!(drawn[0].salt != decoy(&shapes, "other", 0).salt && drawn[0].salt != drawn[1].salt);
        // One more user changes few of the decoys.
        shapes.add(&secret(8192, 40));
        let changed = (0..1000_u32).zip(&drawn).filter(|(user, before)| decoy(&shapes, "r", *user) != **before);
        assert!(changed.count() < 250);
    }

    #[test]
    fn secret_survives_text_round_trip() {
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
