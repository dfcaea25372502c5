//! Threads of all clients, by client id.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxBuildHasher;
use tenbin_codec::Text;

/// The thread that serves each client. Each thread writes when it accepts and removes a peer, never for a datagram.
///
/// A thread holds the claim of a client id as long as it has a peer of that id.
pub(crate) struct Owners {
    /// Empty with one thread.
    shards: Box<[Mutex<Shard>]>,
}

type Shard = HashMap<Text, usize, FxBuildHasher>;

/// A power of two.
const SHARDS: usize = 64;

impl Owners {
    pub(crate) fn new(threads: usize) -> Self {
        let shards = if threads > 1 { SHARDS } else { 0 };
        Self { shards: (0..shards).map(|_| Mutex::default()).collect() }
    }

    /// Claims a client id for a thread.
    ///
    /// # Errors
    /// Another thread has it.
    pub(crate) fn claim(&self, client_id: &str, thread: usize) -> Result<(), usize> {
        let Some(mut shard) = self.shard(client_id) else { return Ok(()) };
        match shard.get(client_id.as_bytes()) {
            Some(&owner) if owner != thread => Err(owner),
            Some(_) => Ok(()),
            None => {
                // No client has an id that is no text.
                if let Ok(client_id) = Text::try_from(client_id) {
                    shard.insert(client_id, thread);
                }
                Ok(())
            }
        }
    }

    /// Gives a client id free, if this thread has it.
    pub(crate) fn release(&self, client_id: &str, thread: usize) {
        if let Some(mut shard) = self.shard(client_id)
            && shard.get(client_id.as_bytes()) == Some(&thread)
        {
            shard.remove(client_id.as_bytes());
        }
    }

    /// The thread that has a client id.
    pub(crate) fn find(&self, client_id: &str) -> Option<usize> {
        self.shard(client_id)?.get(client_id.as_bytes()).copied()
    }

    fn shard(&self, client_id: &str) -> Option<MutexGuard<'_, Shard>> {
        // The map of the shard uses the lowest and the highest bits.
        let hash = FxBuildHasher.hash_one(client_id.as_bytes()) >> 32;
        let shard = self.shards.get(hash as usize % SHARDS)?;
        Some(shard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_id_belongs_to_one_thread_until_it_gives_it_free() {
        let owners = Owners::new(4);
        assert_eq!(owners.claim("sensor", 2), Ok(()));
        assert_eq!(owners.claim("sensor", 3), Err(2));
        owners.release("sensor", 3);
        assert_eq!((owners.find("sensor"), owners.find("other")), (Some(2), None));
        owners.release("sensor", 2);
        assert_eq!(owners.claim("sensor", 3), Ok(()));
    }

    #[test]
    fn concurrent_claims_have_one_winner() {
        let owners = Owners::new(4);
        for number in 0..200 {
            let client_id = format!("sensor-{number}");
            let claims = std::thread::scope(|scope| {
                let claim = |thread| {
                    scope.spawn({
                        let (owners, id) = (&owners, &client_id);
                        move || owners.claim(id, thread)
                    })
                };
                [0, 1, 2, 3].map(claim).map(|claim| claim.join().expect("no panic"))
            });
            assert_eq!(claims.iter().filter(|claim| claim.is_ok()).count(), 1, "{claims:?}");
        }
    }
}
