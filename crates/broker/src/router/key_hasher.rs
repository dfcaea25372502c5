use std::fmt;
use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;

/// Hashes what share groups choose by: ordering keys, topics, Client Identifiers.
///
/// Its key is nobody else's, or a client might choose whose member it gets; and the same in all runs of a broker that keeps
/// messages, since hashes are kept with them.
#[derive(Clone)]
pub(crate) struct KeyHasher(SipHasher13);

/// What makes one [`KeyHasher`] differ from another.
pub(crate) type HashKey = [u8; 16];

impl KeyHasher {
    pub(crate) fn new(key: &HashKey) -> Self {
        Self(SipHasher13::new_with_key(key))
    }

    /// Of these bytes alone: what says how many there are differs from machine to machine, and nothing follows them.
    pub(crate) fn hash(&self, name: &[u8]) -> u64 {
        let mut hasher = self.0;
        hasher.write(name);
        hasher.finish()
    }
}

impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyHasher").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_same_hash_wherever_the_key_is_the_same() {
        let key: HashKey = std::array::from_fn(|place| place as u8);
        // SipHash-1-3 as others have it: hashes are on disk.
        assert_eq!(KeyHasher::new(&key).hash(b"a/b"), 4_451_457_443_744_907_856);
        assert_ne!(KeyHasher::new(&key).hash(b"a/b"), KeyHasher::new(&key).hash(b"a/c"));
        assert_ne!(KeyHasher::new(&key).hash(b"a/b"), KeyHasher::new(&[7; 16]).hash(b"a/b"));
    }
}
