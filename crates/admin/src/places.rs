//! Places of connections, which bound their number.
//!
//! ```text
//!   until a request has a valid token   32: a new one takes the place of the oldest one of the address with the most
//!   from then on                        64 more, at most 16 of one remote address
//! ```

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenbin_pending::{PendingPeer, PendingPeers};

/// All places of a server.
#[derive(Debug)]
pub(crate) struct Places {
    pending: Arc<PendingPeers>,
    trusted: Arc<Mutex<Trusted>>,
}

/// Connections that have shown a token.
#[derive(Debug, Default)]
struct Trusted {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// The place of one connection; free again when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    trusted: Arc<Mutex<Trusted>>,
    address: IpAddr,
    /// `None` = it is one of the trusted ones.
    pending: Mutex<Option<PendingPeer>>,
}

impl Default for Places {
    fn default() -> Self {
        Self { pending: Arc::new(PendingPeers::new(Duration::ZERO)), trusted: Arc::default() }
    }
}

impl Places {
    /// A place for a connection from this address; without one, from this machine's file system. If all are taken, a
    /// connection without a token makes room.
    pub(crate) fn take(&self, address: Option<IpAddr>) -> Place {
        let address = address.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.to_canonical());
        let now = Instant::now();
        if self.pending.count() >= PENDING_MAX {
            self.pending.evict_for(address, now);
        }
        let pending = Mutex::new(Some(self.pending.enter(address, now)));
        Place { trusted: Arc::clone(&self.trusted), address, pending }
    }
}

impl Place {
    /// Waits until the connection has to make room for another one.
    pub(crate) fn evicted(&self) -> impl Future<Output = ()> + Send + use<> {
        let evicted = lock(&self.pending).as_ref().map(PendingPeer::evicted);
        async move {
            match evicted {
                Some(evicted) => evicted.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Keeps the place, unless there are too many such connections: a request has a valid token.
    pub(crate) fn trust(&self) {
        let mut pending = lock(&self.pending);
        if pending.is_some() && lock(&self.trusted).take(self.address) {
            *pending = None;
        }
    }
}

impl Trusted {
    fn take(&mut self, address: IpAddr) -> bool {
        let count = self.by_address.get(&address).copied().unwrap_or_default();
        if self.total >= TRUSTED_MAX || count >= ADDRESS_MAX {
            return false;
        }
        self.by_address.insert(address, count + 1);
        self.total += 1;
        true
    }

    fn free(&mut self, address: IpAddr) {
        self.total -= 1;
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if lock(&self.pending).is_none() {
            lock(&self.trusted).free(self.address);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connections that have shown no token.
const PENDING_MAX: usize = 32;
/// Connections that have shown one.
const TRUSTED_MAX: usize = 64;
/// Those of one remote address.
const ADDRESS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn address(number: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, number]))
    }

    fn count_evicted<'p>(places: impl IntoIterator<Item = &'p Place>) -> usize {
        let is_evicted =
            |place: &&Place| pin!(place.evicted()).poll(&mut Context::from_waker(Waker::noop())).is_ready();
        places.into_iter().filter(is_evicted).count()
    }

    #[test]
    fn connections_without_token_make_room() {
        let places = Places::default();
        let strangers: Vec<_> = (0..PENDING_MAX as u8).map(|number| places.take(address(number % 4))).collect();
        let newcomer = places.take(address(100));
        assert_eq!((count_evicted(&strangers), count_evicted([&newcomer])), (1, 0));
        let silent: Vec<_> = (0..200).map(|number| places.take(address(number))).collect();
        assert!(places.pending.count() <= PENDING_MAX, "{}", silent.len());
    }

    #[test]
    fn connections_with_token_are_bounded_and_keep_their_places() {
        let places = Places::default();
        let trust = |number| {
            let place = places.take(address(number));
            place.trust();
            place
        };
        let of_one: Vec<_> = (0..ADDRESS_MAX + 1).map(|_| trust(1)).collect();
        assert_eq!(lock(&places.trusted).total, ADDRESS_MAX, "the last one has a place without a token");
        let others: Vec<_> = (2..100).map(trust).collect();
        assert_eq!(lock(&places.trusted).total, TRUSTED_MAX);
        assert_eq!(count_evicted(of_one.iter().take(ADDRESS_MAX)), 0);
        drop((of_one, others));
        assert!(lock(&places.trusted).by_address.is_empty() && places.pending.count() == 0);
    }
}
