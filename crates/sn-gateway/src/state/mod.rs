//! Topic ids and Wills of clients without Clean Session, between their connections and across restarts.

mod file;
mod record;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxBuildHasher;
use tenbin_codec::Text;
use tenbin_sn::{ClientState, Gateway, GatewayPeer};

use file::{Change, Writer};
pub use file::{StateCopy, StateError};

/// States of clients that are not connected, and the file with the states of all clients.
pub(crate) struct States {
    absent: Mutex<Absent>,
    /// Clients without topics and Will, in memory alone: they may have sessions at the broker `[SN-ADDRESS-8]`.
    without_topics: Mutex<Absent>,
    maximum: usize,
    expiry: Duration,
    writer: Option<Writer>,
}

#[derive(Default)]
struct Absent {
    states: HashMap<Text, Stored, FxBuildHasher>,
    /// All states by age, the oldest first. Some were taken since, and have no state of their number.
    ages: VecDeque<(u64, Text)>,
    /// States kept so far.
    kept: u64,
}

struct Stored {
    state: ClientState,
    /// Last address of the client; `None` before a restart, and behind a forwarder.
    address: Option<SocketAddr>,
    since: Instant,
    /// As in `ages`.
    number: u64,
}

/// Places in [`Absent::ages`] of taken states, in addition to one for each state, before they are removed.
const SPARE_AGES: usize = 1024;

impl States {
    /// Keeps at most `maximum` states, each for `expiry`. With a directory, reads the states of earlier runs
    /// `[SN-STATE-1]`. `copy` learns of each write there.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub(crate) fn open(
        directory: Option<&Path>,
        copy: Option<Arc<dyn StateCopy>>,
        maximum: usize,
        expiry: Duration,
        gateway: &Gateway,
        now: Instant,
    ) -> Result<Self, StateError> {
        let mut absent = Absent::default();
        let writer = match directory {
            None => None,
            Some(directory) => {
                let (writer, records) = Writer::open(directory, copy)?;
                for (client_id, body) in records.iter().take(maximum) {
                    let client_id = Text::try_from(client_id.as_str()).ok();
                    if let (Some(client_id), Some(state)) = (client_id, record::decode(body, gateway)) {
                        absent.insert(client_id, state, None, now);
                    }
                }
                tracing::info!(directory = %directory.display(), clients = absent.states.len(), "read topic ids");
                Some(writer)
            }
        };
        Ok(Self { absent: Mutex::new(absent), without_topics: Mutex::default(), maximum, expiry, writer })
    }

    /// Last address of a client that is not connected and has a state, as far as it is known.
    pub(crate) fn address(&self, client_id: &Text) -> Option<Option<SocketAddr>> {
        let address = |of: &Mutex<Absent>| lock(of).states.get(client_id).map(|stored| stored.address);
        address(&self.absent).or_else(|| address(&self.without_topics))
    }

    /// Whether a client that is not connected may know this topic id.
    pub(crate) fn may_know_topic(&self, client_id: &Text, id: u16) -> bool {
        lock(&self.absent).states.get(client_id).is_some_and(|stored| stored.state.may_know_topic(id))
    }

    /// Takes the state for a client that connects. With Clean Session there is none from now on.
    pub(crate) fn take(&self, client_id: &str, is_clean: bool, now: Instant) -> Option<ClientState> {
        lock(&self.without_topics).states.remove(client_id.as_bytes());
        let stored = lock(&self.absent).states.remove(client_id.as_bytes());
        if is_clean {
            if stored.is_some() {
                self.write(Change::forget(client_id));
            }
            return None;
        }
        stored.filter(|stored| now < stored.since + self.expiry).map(|stored| stored.state)
    }

    /// Keeps the state of a client whose connection has ended. It is stored already, unless it is empty. The oldest one
    /// makes room `[SN-STATE-2]`.
    pub(crate) fn keep(&self, client_id: &Text, state: Option<ClientState>, address: Option<SocketAddr>, now: Instant) {
        let Some(state) = state.filter(|_| !client_id.is_empty()) else { return };
        // Forged CONNECTs, which register nothing, must not crowd out the states of clients.
        let is_empty = state.is_empty();
        let mut absent = lock(if is_empty { &self.without_topics } else { &self.absent });
        absent.insert(client_id.detach(), state, address, now);
        while let Some(client_id) = absent.pop_obsolete(self.maximum, |since| now >= since + self.expiry) {
            if !is_empty {
                self.write(Change::forget(client_id.as_str()));
            }
        }
    }

    /// Stores the state of a connected client. False if the writer has no room.
    pub(crate) fn save(&self, client_id: &str, peer: &GatewayPeer) -> bool {
        let change = || Change::put(client_id, record::encode(peer.next_topic_id(), peer.topics(), peer.will()));
        self.writer.as_ref().is_none_or(|writer| writer.write(change()))
    }

    /// Waits until all changes are in the file.
    pub(crate) fn finish(&self) {
        if let Some(writer) = &self.writer {
            writer.finish();
        }
    }

    /// Writes a change that may be lost.
    fn write(&self, change: Change) {
        if let Some(writer) = &self.writer {
            let _ = writer.write(change);
        }
    }
}

fn lock(absent: &Mutex<Absent>) -> MutexGuard<'_, Absent> {
    absent.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Absent {
    fn insert(&mut self, client_id: Text, state: ClientState, address: Option<SocketAddr>, now: Instant) {
        self.kept += 1;
        self.ages.push_back((self.kept, client_id.clone()));
        self.states.insert(client_id, Stored { state, address, since: now, number: self.kept });
        if self.ages.len() > 2 * self.states.len() + SPARE_AGES {
            let states = &self.states;
            self.ages.retain(|(number, client_id)| states.get(client_id).is_some_and(|state| state.number == *number));
        }
    }

    /// Removes the oldest state, if it has expired or if there are more than `maximum`.
    fn pop_obsolete(&mut self, maximum: usize, is_expired: impl Fn(Instant) -> bool) -> Option<Text> {
        while let Some((number, client_id)) = self.ages.front() {
            if let Some(oldest) = self.states.get(client_id).filter(|state| state.number == *number) {
                if self.states.len() <= maximum && !is_expired(oldest.since) {
                    return None;
                }
                self.states.remove(client_id);
                return self.ages.pop_front().map(|(_, client_id)| client_id);
            }
            self.ages.pop_front();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use tenbin_codec::TopicName;
    use tenbin_sn::{PredefinedTopics, Settings, TopicId, TopicOwner};

    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "any start will do")]
    fn oldest_and_expired_states_make_room() {
        let gateway = Gateway::new(Settings::default(), PredefinedTopics::default());
        let (now, expiry) = (Instant::now(), Duration::from_secs(100));
        let states = States::open(None, None, 3, expiry, &gateway, now).expect("no directory");
        let name = TopicName::try_from("plant/1").expect("a name");
        let keep = |client_id: &str, second| {
            let topic = TopicId { id: 1, name: &name, is_known: true, owner: TopicOwner::Client };
            let state = ClientState::restore(1, [topic], None, &gateway);
            let client_id = Text::try_from(client_id).expect("a text");
            states.keep(&client_id, Some(state), None, now + Duration::from_secs(second));
        };
        let has = |client_id: &str| lock(&states.absent).states.contains_key(client_id.as_bytes());
        for (client_id, second) in [("a", 0), ("b", 1), ("c", 2)] {
            keep(client_id, second);
        }
        // The oldest one comes and goes, and is the youngest.
        assert!(states.take("a", false, now).is_some());
        keep("a", 3);
        keep("d", 4);
        assert_eq!(["a", "b", "c", "d"].map(has), [true, false, true, true]);
        keep("e", 103);
        assert_eq!(["a", "c", "d", "e"].map(has), [false, false, true, true], "c and a have expired");
        for _ in 0..10_000 {
            assert!(states.take("e", false, now + expiry).is_some());
            keep("e", 103);
        }
        let absent = lock(&states.absent);
        assert!(absent.ages.len() <= 2 * absent.states.len() + SPARE_AGES + 1, "{}", absent.ages.len());
    }
}
