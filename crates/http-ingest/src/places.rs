//! Places of connections, and bytes of their bodies and answers: bounds in all and by network address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenbin_pending::{PendingPeer, PendingPeers, network};
use tokio::sync::Notify;

use crate::Settings;

/// Counts of a server, within the bounds of its settings.
#[derive(Debug)]
pub(crate) struct Places {
    settings: Settings,
    taken: Mutex<Taken>,
    /// Connections whose client has not logged in.
    pending: Arc<PendingPeers>,
    /// Bytes became free.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    all: Counts,
    by_address: HashMap<IpAddr, Counts>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    connections: usize,
    bytes: usize,
}

/// The place of one connection; free again when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    address: IpAddr,
    /// `None` = its client has logged in.
    pending: Mutex<Option<PendingPeer>>,
}

/// Counted bytes of a connection; free again when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    place: Arc<Place>,
    bytes: usize,
}

/// The bound that leaves no place for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// The bound on all connections.
    Server,
    /// The bound on the connections of one address.
    Address,
}

impl Places {
    pub(crate) fn new(settings: Settings) -> Self {
        let pending = Arc::new(PendingPeers::new(LOGIN_TIME));
        Self { settings, taken: Mutex::default(), pending, freed: Notify::new() }
    }

    /// Takes a place for a connection from `address`. If all are taken, a connection without a login may make room.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr) -> Result<Arc<Place>, Full> {
        let (key, settings) = (network(address), &self.settings);
        let of_address =
            if key.is_loopback() { settings.loopback_per_address_maximum } else { settings.per_address_maximum };
        let now = Instant::now();
        let mut taken = self.lock();
        let all = taken.all.connections;
        let own = taken.by_address.get(&key).map_or(0, |counts| counts.connections);
        if all >= settings.connections_maximum.saturating_add(ENDING_MAX) {
            return Err(Full::Server);
        }
        // At most one other makes room, in both bounds, and none for a connection that is refused.
        if of_address > 0 && own >= of_address {
            if own >= of_address.saturating_add(ENDING_MAX) || !self.pending.evict_of(address, now) {
                return Err(Full::Address);
            }
        } else if all >= settings.connections_maximum && !self.pending.evict_for(address, now) {
            return Err(Full::Server);
        }
        taken.by_address.entry(key).or_default().connections += 1;
        taken.all.connections += 1;
        let pending = Mutex::new(Some(self.pending.enter(address, now)));
        Ok(Arc::new(Place { places: Arc::clone(self), address: key, pending }))
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Bytes of the connection: none at first.
    pub(crate) fn hold(self: &Arc<Self>) -> Held {
        Held { place: Arc::clone(self), bytes: 0 }
    }

    /// Waits until the connection has to make room for another one.
    pub(crate) fn evicted(&self) -> impl Future<Output = ()> + Send + use<> {
        let evicted = self.pending().as_ref().map(PendingPeer::evicted);
        async move {
            match evicted {
                Some(evicted) => evicted.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Keeps the place: the client has logged in.
    pub(crate) fn is_logged_in(&self) {
        *self.pending() = None;
    }

    fn pending(&self) -> MutexGuard<'_, Option<PendingPeer>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut taken = self.places.lock();
        taken.all.bytes -= bytes;
        if let Some(counts) = taken.by_address.get_mut(&self.address) {
            counts.bytes -= bytes;
        }
        drop(taken);
        self.places.freed.notify_waiters();
    }
}

impl Held {
    /// Counts `bytes` in all; `false` if a bound has no room for them.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let Place { places, address, .. } = &*self.place;
        let mut taken = places.lock();
        let Some(of_address) = taken.by_address.get(address).map(|counts| counts.bytes + more) else { return false };
        let all = taken.all.bytes + more;
        if all > places.settings.bytes_maximum || of_address > places.settings.address_bytes_maximum {
            return false;
        }
        taken.all.bytes = all;
        if let Some(counts) = taken.by_address.get_mut(address) {
            counts.bytes = of_address;
        }
        self.bytes += more;
        true
    }

    /// Counts `bytes` in all, as soon as there is room.
    pub(crate) async fn wait_for(&mut self, bytes: usize) {
        let place = Arc::clone(&self.place);
        loop {
            // Before the look, so that no room is missed.
            let freed = place.places.freed.notified();
            if self.grow_to(bytes) {
                return;
            }
            freed.await;
        }
    }

    /// Counts `bytes` in all, which are fewer than before.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let fewer = self.bytes.saturating_sub(bytes);
        self.bytes -= fewer;
        self.place.free(fewer);
    }

    /// The bytes of `whole`, which stay counted until the last copy of the result is dropped.
    pub(crate) fn with(self, whole: Bytes) -> Bytes {
        struct Counted(Bytes, #[expect(dead_code, reason = "its end frees the bytes")] Held);
        impl AsRef<[u8]> for Counted {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        Bytes::from_owner(Counted(whole, self))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.place.free(self.bytes);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.all.connections -= 1;
        if let Some(counts) = taken.by_address.get_mut(&self.address) {
            counts.connections -= 1;
            // Held bytes keep their connection's place, so there are none.
            if counts.connections == 0 {
                taken.by_address.remove(&self.address);
            }
        }
    }
}

/// Time that a client has for its first request, while places are short.
const LOGIN_TIME: Duration = Duration::from_secs(1);
/// Connections beyond a bound, in whose favour others are about to end.
const ENDING_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Arc<Places> {
        let settings = Settings {
            connections_maximum: 4,
            per_address_maximum: 2,
            bytes_maximum: 100,
            address_bytes_maximum: 60,
            ..Settings::default()
        };
        Arc::new(Places::new(settings))
    }

    /// Place of a client that has logged in.
    fn take(places: &Arc<Places>, address: &str) -> Result<Arc<Place>, Full> {
        places.take(address.parse().unwrap()).inspect(|place| place.is_logged_in())
    }

    #[test]
    fn connections_without_login_make_room() {
        let places = places();
        let silent =
            ["192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.2"].map(|from| places.take(from.parse().unwrap()));
        let _newcomers = ["192.0.2.3", "192.0.2.4"].map(|from| take(&places, from).unwrap());
        assert_eq!(places.pending.count(), silent.len() - 2);
        assert_eq!(take(&places, "192.0.2.5").unwrap_err(), Full::Server, "each other address has one, and time");
    }

    #[test]
    fn refused_connection_evicts_no_other() {
        let places = places();
        let _silent = ["192.0.2.2"; 2].map(|from| places.take(from.parse().unwrap()).unwrap());
        let _clients = ["192.0.2.1"; 2].map(|from| take(&places, from).unwrap());
        assert_eq!(take(&places, "192.0.2.1").unwrap_err(), Full::Address);
        assert_eq!(places.pending.count(), 2);
    }

    #[test]
    fn connections_are_bounded_in_all_and_by_network() {
        let places = places();
        let first = take(&places, "192.0.2.1").unwrap();
        let _second = take(&places, "::ffff:192.0.2.1").unwrap();
        assert_eq!(take(&places, "192.0.2.1").unwrap_err(), Full::Address);
        drop(first);
        let _third = take(&places, "192.0.2.1").unwrap();
        let _fourth = take(&places, "2001:db8::1").unwrap();
        let fifth = take(&places, "2001:db8::2").unwrap();
        assert_eq!(take(&places, "127.0.0.1").unwrap_err(), Full::Server);
        drop(fifth);
        drop(take(&places, "127.0.0.1").unwrap());
        assert_eq!(places.lock().by_address.len(), 2);
    }

    #[test]
    fn bytes_are_counted_until_their_last_copy_is_dropped() {
        let places = places();
        let (one, other) = (take(&places, "192.0.2.1").unwrap(), take(&places, "192.0.2.2").unwrap());
        let mut held = one.hold();
        assert!(held.grow_to(40) && held.grow_to(60));
        assert!(!held.grow_to(61), "the address has no more");
        let mut of_other = other.hold();
        assert!(!of_other.grow_to(41), "nor has the server");
        let bytes = held.with(Bytes::from_static(b"answer"));
        let copy = bytes.slice(1..);
        drop((bytes, one));
        assert!(!of_other.grow_to(41));
        drop(copy);
        assert!(of_other.grow_to(41));
        drop((of_other, other));
        assert!(places.lock().by_address.is_empty());
    }
}
