//! Peers that hold a place before they have logged in, by network address.
//!
//! When places are short, one of them makes room for a new peer: the oldest peer of the address with the most, or one that
//! has had time enough. So a stranger that opens many connections and stays silent shuts no other peer out.
//! [`WriteDeadline`] ends connections of peers that do not read.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::{Duration, Instant};
//! use tenbin_pending::PendingPeers;
//!
//! let peers = Arc::new(PendingPeers::new(Duration::from_secs(1)));
//! let (stranger, visitor) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
//! let silent = [(); 2].map(|()| peers.enter(stranger, Instant::now()));
//! assert!(peers.evict_for(visitor, Instant::now())); // silent[0].evicted() is ready
//! # drop(silent);
//! ```
#![forbid(unsafe_code)]

mod write_deadline;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

pub use write_deadline::WriteDeadline;

/// Peers that have not logged in.
#[derive(Debug)]
pub struct PendingPeers {
    patience: Duration,
    peers: Mutex<Peers>,
}

/// Place of one pending peer; free again when dropped.
#[derive(Debug)]
pub struct PendingPeer {
    all: Arc<PendingPeers>,
    number: u64,
    evicted: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Peers {
    /// Number of the next peer: an older one has a lower number.
    next: u64,
    all: BTreeMap<u64, Peer>,
    /// Numbers of the peers of each address.
    by_address: HashMap<IpAddr, BTreeSet<u64>>,
    /// Addresses by their number of peers; of equal ones, the one with the oldest peer comes last.
    ranked: BTreeSet<(usize, Reverse<u64>, IpAddr)>,
}

#[derive(Debug)]
struct Peer {
    address: IpAddr,
    since: Instant,
    evicted: Arc<Notify>,
}

impl PendingPeers {
    /// None yet. A peer has `patience` in any case, unless its address has more peers than the new peer's.
    pub fn new(patience: Duration) -> Self {
        Self { patience, peers: Mutex::default() }
    }

    /// Number of the peers.
    pub fn count(&self) -> usize {
        self.lock().all.len()
    }

    /// Registers a peer.
    pub fn enter(self: &Arc<Self>, address: IpAddr, now: Instant) -> PendingPeer {
        let evicted = Arc::<Notify>::default();
        let peer = Peer { address: network(address), since: now, evicted: Arc::clone(&evicted) };
        let number = self.lock().insert(peer);
        PendingPeer { all: Arc::clone(self), number, evicted }
    }

    /// Evicts a peer in favour of a new one from `address`; `false` if none has to make room for it.
    pub fn evict_for(&self, address: IpAddr, now: Instant) -> bool {
        let mut peers = self.lock();
        let of_address = peers.by_address.get(&network(address)).map_or(0, BTreeSet::len);
        let most = peers.ranked.last().map(|(count, Reverse(oldest), _)| (*count, *oldest));
        let number = most.filter(|(count, _)| *count > of_address + 1).map(|(_, oldest)| oldest);
        // The address with the most goes first here too: it may be the new peer's.
        let number = number
            .or_else(|| self.overdue(&peers, most.iter().map(|(_, oldest)| oldest), now))
            .or_else(|| self.overdue(&peers, peers.all.keys(), now));
        number.is_some_and(|number| peers.evict(number))
    }

    /// Evicts an overdue peer of `address` in favour of another one; `false` if there is none.
    pub fn evict_of(&self, address: IpAddr, now: Instant) -> bool {
        let mut peers = self.lock();
        let of_address = peers.by_address.get(&network(address));
        let number = of_address.and_then(|numbers| self.overdue(&peers, numbers.iter(), now));
        number.is_some_and(|number| peers.evict(number))
    }

    /// The first of these peers, if it has had time enough.
    fn overdue<'a>(&self, peers: &Peers, mut numbers: impl Iterator<Item = &'a u64>, now: Instant) -> Option<u64> {
        let number = *numbers.next()?;
        let peer = peers.all.get(&number)?;
        (now.saturating_duration_since(peer.since) >= self.patience).then_some(number)
    }

    fn lock(&self) -> MutexGuard<'_, Peers> {
        // No panic occurs under this lock.
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingPeer {
    /// Waits until the peer has to make room.
    pub fn evicted(&self) -> impl Future<Output = ()> + Send + use<> {
        let evicted = Arc::clone(&self.evicted);
        async move { evicted.notified().await }
    }

    /// Counts the peer for another address from now on, such as a proxy's client.
    pub fn belongs_to(&mut self, address: IpAddr) {
        let mut peers = self.all.lock();
        if let Some(peer) = peers.remove(self.number) {
            self.number = peers.insert(Peer { address: network(address), ..peer });
        }
    }
}

impl Drop for PendingPeer {
    fn drop(&mut self) {
        self.all.lock().remove(self.number);
    }
}

impl Peers {
    fn insert(&mut self, peer: Peer) -> u64 {
        let number = self.next;
        self.next += 1;
        self.change(peer.address, |numbers| _ = numbers.insert(number));
        self.all.insert(number, peer);
        number
    }

    fn remove(&mut self, number: u64) -> Option<Peer> {
        let peer = self.all.remove(&number)?;
        self.change(peer.address, |numbers| _ = numbers.remove(&number));
        Some(peer)
    }

    fn evict(&mut self, number: u64) -> bool {
        self.remove(number).is_some_and(|peer| {
            peer.evicted.notify_one();
            true
        })
    }

    /// Changes the peers of an address, and its rank.
    fn change(&mut self, address: IpAddr, change: impl FnOnce(&mut BTreeSet<u64>)) {
        let rank = |numbers: &BTreeSet<u64>| Some((numbers.len(), Reverse(*numbers.first()?), address));
        let numbers = self.by_address.entry(address).or_default();
        let before = rank(numbers);
        change(numbers);
        let after = rank(numbers);
        if after.is_none() {
            self.by_address.remove(&address);
        }
        before.iter().for_each(|rank| _ = self.ranked.remove(rank));
        self.ranked.extend(after);
    }
}

/// Key of an address: for IPv6 the /64 network, which one customer controls as a whole. Loopback stays as it is.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let network = u128::from_be_bytes(address.octets()) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(network))
        }
        whole => whole,
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    fn is_evicted(peer: &PendingPeer) -> bool {
        pin!(peer.evicted()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn address(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    #[test]
    fn address_with_the_most_peers_loses_its_oldest() {
        let (peers, now) = (Arc::new(PendingPeers::new(PATIENCE)), Instant::now());
        let first = peers.enter(address(1), now);
        let many = [(); 3].map(|()| peers.enter(address(2), now));
        assert!(!peers.evict_for(address(2), now), "its own");
        assert!(peers.evict_for(address(1), now));
        assert!(!peers.evict_for(address(1), now), "no more than it has itself");
        assert!(peers.evict_for(address(3), now) && !peers.evict_for(address(3), now));
        assert_eq!(many.each_ref().map(is_evicted), [true, true, false]);
        assert!(!is_evicted(&first));
        drop((first, many));
        let peers = peers.lock();
        assert!(peers.all.is_empty() && peers.by_address.is_empty() && peers.ranked.is_empty());
    }

    #[test]
    fn peer_keeps_its_place_for_a_second() {
        let (peers, now) = (Arc::new(PendingPeers::new(PATIENCE)), Instant::now());
        let first = peers.enter(address(1), now);
        let later = now + PATIENCE;
        let second = peers.enter(address(2), later);
        assert!(!peers.evict_for(address(3), later - Duration::from_millis(1)));
        assert!(!peers.evict_of(address(2), later) && peers.evict_for(address(3), later));
        assert!(!peers.evict_for(address(3), later) && peers.evict_of(address(2), later + PATIENCE));
        assert!(is_evicted(&first) && is_evicted(&second));
        let (alone, many) = (peers.enter(address(1), now), [(); 2].map(|()| peers.enter(address(2), now)));
        assert!(peers.evict_for(address(2), later) && !is_evicted(&alone) && is_evicted(&many[0]), "its own");
    }

    #[test]
    fn peer_of_a_proxy_counts_for_its_client() {
        let (peers, now) = (Arc::new(PendingPeers::new(PATIENCE)), Instant::now());
        let mut clients = [(); 2].map(|()| peers.enter(address(1), now));
        clients[0].belongs_to(address(2));
        clients[1].belongs_to(address(3));
        let later = now + PATIENCE;
        assert!(!peers.evict_of(address(1), later) && peers.evict_of(address(3), later));
        assert_eq!(clients.each_ref().map(is_evicted), [false, true]);
        clients[1].belongs_to(address(4)); // it makes room all the same
        assert!(!peers.evict_of(address(4), later));
    }
}
