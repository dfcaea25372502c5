//! Topic ids and Wills of clients without Clean Session, between their connections and across restarts.

mod file;
mod record;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxBuildHasher;
use tenbin_codec::Text;
use tenbin_sn::{ClientState, Gateway, GatewayPeer};

pub use file::StateError;
use file::{Change, Writer};

/// States of clients that are not connected, and the file with those of all clients.
pub(crate) struct States {
    absent: Mutex<Absent>,
    maximum: usize,
    expiry: Duration,
    writer: Option<Writer>,
}

#[derive(Default)]
struct Absent {
    states: HashMap<Text, Stored, FxBuildHasher>,
    /// States so many that a search for expired ones is worth it.
    sweep_at: usize,
    /// Time of the last search.
    swept: Option<Instant>,
}

struct Stored {
    state: ClientState,
    since: Instant,
}

/// The fewest states that are searched for expired ones.
const SWEEP_FROM: usize = 1024;
/// Shortest time between two searches, each of which visits all states under the lock.
const SWEEP_PAUSE: Duration = Duration::from_secs(10);

impl States {
    /// Keeps at most `maximum` states, each for `expiry`. With a directory, reads the states of earlier runs
    /// `[SN-STATE-1]`.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub(crate) fn open(
        directory: Option<&Path>,
        maximum: usize,
        expiry: Duration,
        gateway: &Gateway,
        now: Instant,
    ) -> Result<Self, StateError> {
        let mut absent = Absent { sweep_at: SWEEP_FROM, ..Absent::default() };
        let writer = match directory {
            None => None,
            Some(directory) => {
                let (writer, records) = Writer::open(directory)?;
                for (client_id, body) in records.iter().take(maximum) {
                    let client_id = Text::try_from(client_id.as_str()).ok();
                    if let (Some(client_id), Some(state)) = (client_id, record::decode(body, gateway)) {
                        absent.states.insert(client_id, Stored { state, since: now });
                    }
                }
                tracing::info!(directory = %directory.display(), clients = absent.states.len(), "read topic ids");
                Some(writer)
            }
        };
        Ok(Self { absent: Mutex::new(absent), maximum, expiry, writer })
    }

    /// Takes the state for a client that connects. With Clean Session there is none from now on.
    pub(crate) fn take(&self, client_id: &str, is_clean: bool, now: Instant) -> Option<ClientState> {
        let stored = self.lock().states.remove(client_id.as_bytes());
        if is_clean {
            if stored.is_some() {
                self.write(Change::forget(client_id));
            }
            return None;
        }
        stored.filter(|stored| now < stored.since + self.expiry).map(|stored| stored.state)
    }

    /// Keeps the state of a client whose connection has ended, unless it is empty. It is stored already.
    pub(crate) fn keep(&self, client_id: &Text, state: Option<ClientState>, now: Instant) {
        // Forged CONNECTs, which register nothing, must not crowd out the states of clients.
        let Some(state) = state.filter(|state| !client_id.is_empty() && !state.is_empty()) else { return };
        let mut absent = self.lock();
        let is_time = absent.swept.is_none_or(|swept| now >= swept + SWEEP_PAUSE);
        if is_time && absent.states.len() >= absent.sweep_at.min(self.maximum) {
            absent.swept = Some(now);
            self.forget_expired(&mut absent, now);
        }
        if absent.states.len() < self.maximum {
            absent.states.insert(client_id.detach(), Stored { state, since: now });
        } else {
            self.write(Change::forget(client_id.as_str()));
        }
    }

    /// Stores the state of a connected client. False if the writer has no room.
    pub(crate) fn save(&self, peer: &GatewayPeer) -> bool {
        let change = || Change::put(peer.client_id().as_str(), record::encode(peer.topics(), peer.will()));
        self.writer.as_ref().is_none_or(|writer| writer.write(change()))
    }

    /// Waits until all changes are in the file.
    pub(crate) fn finish(&self) {
        if let Some(writer) = &self.writer {
            writer.finish();
        }
    }

    fn forget_expired(&self, absent: &mut Absent, now: Instant) {
        absent.states.retain(|client_id, stored| {
            let is_kept = now < stored.since + self.expiry;
            if !is_kept {
                self.write(Change::forget(client_id.as_str()));
            }
            is_kept
        });
        absent.sweep_at = SWEEP_FROM.max(2 * absent.states.len());
    }

    /// Writes a change that may be lost.
    fn write(&self, change: Change) {
        if let Some(writer) = &self.writer {
            let _ = writer.write(change);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Absent> {
        self.absent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
