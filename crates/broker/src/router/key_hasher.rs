use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;
use tenbin_codec::Secret;

use crate::values::HashKey;

/// Hashes ordering keys, topics and Client Identifiers, by which share groups choose.
///
/// Its key is secret, so that a client cannot choose which member gets its messages. A broker with persistent storage
/// keeps the key between runs, because it stores hashes with messages.
#[derive(Debug, Clone)]
pub(crate) struct KeyHasher(Secret<SipHasher13>);

impl KeyHasher {
    pub(crate) fn new(key: &HashKey) -> Self {
        Self(Secret::new(SipHasher13::new_with_key(key)))
    }

    /// Hashes only these bytes. A length prefix would depend on the machine, and no second value follows.
    pub(crate) fn hash(&self, name: &[u8]) -> u64 {
        let mut hasher = *self.0.expose();
        hasher.write(name);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_same_hash_wherever_the_key_is_the_same() {
        let key: HashKey = std::array::from_fn(|place| place as u8);
        // SipHash-1-3 like other implementations: hashes are on disk.
        assert_eq!(KeyHasher::new(&key).hash(b"a/b"), 4_451_457_443_744_907_856);
        assert_ne!(KeyHasher::new(&key).hash(b"a/b"), KeyHasher::new(&key).hash(b"a/c"));
        assert_ne!(KeyHasher::new(&key).hash(b"a/b"), KeyHasher::new(&[7; 16]).hash(b"a/b"));
    }
}
