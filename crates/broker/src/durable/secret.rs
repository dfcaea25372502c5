//! Keys of hashes that are on disk: without one, a client might choose with whose name its own agrees.

use tenbin_store::state::Table;

use super::{Changes, Durable};
use crate::registry::SpeedKey;
use crate::router::HashKey;

/// One that nobody else has.
pub(crate) fn new_secret<const BYTES: usize>() -> [u8; BYTES] {
    let mut secret = [0; BYTES];
    if let Err(error) = getrandom::fill(&mut secret) {
        tracing::warn!(%error, "no random numbers: hashes of remembered speeds, share groups and unknown SCRAM users can be guessed");
    }
    secret
}

impl Durable {
    /// By which remembered speeds are known.
    pub(crate) fn speed_key(&self) -> SpeedKey {
        self.secret(SPEED_KEY)
    }

    /// Of the keys and names by which share groups choose: hashes of them are kept with messages.
    pub(crate) fn hash_key(&self) -> HashKey {
        self.secret(HASH_KEY)
    }

    /// Of the challenges of SCRAM to users who do not exist.
    pub(crate) fn scram_key(&self) -> [u8; 32] {
        self.secret(SCRAM_KEY)
    }

    /// That of this directory, from its first use on. Another version's directory need not have it.
    fn secret<const BYTES: usize>(&self, name: &[u8]) -> [u8; BYTES] {
        let mut found = None;
        let scanned = self.state.scan(Table::Meta, &mut |key, value| {
            if key == name {
                found = value.try_into().ok();
            }
        });
        if let Some(secret) = found.filter(|_| scanned.is_ok()) {
            return secret;
        }
        let secret = new_secret();
        let mut changes = Changes::default();
        changes.put(Table::Meta, name.to_vec(), secret.to_vec());
        // Before the run's number, which the start waits for. Where nothing can be read the start fails, and what is there stays.
        if scanned.is_ok() {
            self.make(&changes);
        }
        secret
    }
}

const SPEED_KEY: &[u8] = b"key of speeds";
const SCRAM_KEY: &[u8] = b"key of SCRAM decoys";
const HASH_KEY: &[u8] = b"key of share groups";
