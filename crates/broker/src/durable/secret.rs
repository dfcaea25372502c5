//! Keys of hashes on disk. Without a key, a client could choose a name with the same hash as another one's.

use tenbin_store::state::Table;

use super::{Durable, meta};
use crate::values::{HashKey, SpeedKey};

/// A random secret.
pub(crate) fn new_secret<const BYTES: usize>() -> [u8; BYTES] {
    let mut secret = [0; BYTES];
    if let Err(error) = getrandom::fill(&mut secret) {
        tracing::warn!(%error, "no random numbers: hashes of remembered speeds, share groups and unknown SCRAM users can be guessed");
    }
    secret
}

impl Durable {
    /// Key of the hashes that name remembered speeds.
    pub(crate) fn speed_key(&self) -> SpeedKey {
        self.secret(SPEED_KEY)
    }

    /// Key of the hashes that are stored with messages: of keys and names by which share groups choose.
    pub(crate) fn hash_key(&self) -> HashKey {
        self.secret(HASH_KEY)
    }

    /// Key of SCRAM challenges for unknown users.
    pub(crate) fn scram_key(&self) -> [u8; 32] {
        self.secret(SCRAM_KEY)
    }

    /// A secret of this directory, made at its first use. A directory of another version may lack it.
    fn secret<const BYTES: usize>(&self, name: &[u8]) -> [u8; BYTES] {
        let found = meta(&self.state, name);
        if let Ok(Some(stored)) = &found
            && let Ok(secret) = stored[..].try_into()
        {
            return secret;
        }
        let secret = new_secret();
        // Before the run's number, which the start waits for. After a failed scan the start fails, and a stored secret
        // stays.
        if found.is_ok() {
            self.state.put(Table::Meta, name.into(), secret.into());
        }
        secret
    }
}

const SPEED_KEY: &[u8] = b"key of speeds";
const SCRAM_KEY: &[u8] = b"key of SCRAM decoys";
const HASH_KEY: &[u8] = b"key of share groups";
