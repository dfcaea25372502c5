//! Clients of one thread, found by address with one hash lookup.

mod inbox;
mod peer;
mod unproven;

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rustc_hash::FxBuildHasher;
use tenbin_codec::Text;

use crate::route::{Route, Via};

pub(crate) use inbox::{Handoff, Home, Inbox, PeerWaker};
pub(crate) use peer::{Connection, Link, Peer};
use unproven::{Evidence, Unproven};

/// Names a peer of one thread. Keys of ended peers name none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

/// Where a datagram comes from: a socket, and the wireless node behind it if it is a forwarder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) socket: SocketAddr,
    /// The socket that the datagram came to.
    pub(crate) via: Via,
    pub(crate) node: Option<&'a [u8]>,
}

/// An [`Origin`] that is kept.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    pub(crate) socket: SocketAddr,
    pub(crate) via: Via,
    pub(crate) node: Option<Box<[u8]>>,
}

/// Whatever socket and address it sends to, it is the same client.
impl PartialEq for Origin<'_> {
    fn eq(&self, other: &Self) -> bool {
        (self.socket, self.node) == (other.socket, other.node)
    }
}

impl PartialEq for Address {
    fn eq(&self, other: &Self) -> bool {
        self.origin() == other.origin()
    }
}

impl Eq for Address {}

impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.socket, &self.node).hash(state);
    }
}

impl Address {
    /// As of [`Origin::ip`].
    pub(crate) fn ip(&self) -> IpAddr {
        self.origin().ip()
    }

    pub(crate) fn origin(&self) -> Origin<'_> {
        Origin { socket: self.socket, via: self.via, node: self.node.as_deref() }
    }

    /// The way of a datagram to it.
    pub(crate) fn route(&self) -> Route {
        self.origin().route()
    }
}

impl Origin<'_> {
    /// The IP address, for bounds and rules. A socket for both versions of IP sees `192.0.2.1` as `::ffff:192.0.2.1`.
    pub(crate) fn ip(&self) -> IpAddr {
        self.socket.ip().to_canonical()
    }

    pub(crate) fn to_address(self) -> Address {
        Address { socket: self.socket, via: self.via, node: self.node.map(Into::into) }
    }

    pub(crate) fn route(&self) -> Route {
        Route { to: self.socket, via: self.via }
    }
}

/// Address that no datagram comes from. Nothing is sent to a port 0.
pub(crate) const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Peers of one thread.
#[derive(Default)]
pub(crate) struct Peers {
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_socket: HashMap<SocketAddr, Key, FxBuildHasher>,
    /// Peers behind forwarders, by the forwarder's address and the node's id.
    by_node: HashMap<SocketAddr, HashMap<Box<[u8]>, Key, FxBuildHasher>, FxBuildHasher>,
    by_client: HashMap<Text, Key, FxBuildHasher>,
    /// Peers of each IP address.
    of_address: HashMap<IpAddr, u32, FxBuildHasher>,
    unproven: Unproven,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    peer: Option<Peer>,
}

impl Peers {
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    #[inline]
    pub(crate) fn find(&self, origin: Origin<'_>) -> Option<Key> {
        match origin.node {
            None => self.by_socket.get(&origin.socket).copied(),
            Some(node) => self.by_node.get(&origin.socket)?.get(node).copied(),
        }
    }

    /// The peer from which a datagram comes. From now on it is reached by the relay that has the datagram, if there is one.
    #[inline]
    pub(crate) fn find_via(&mut self, origin: Origin<'_>) -> Option<Key> {
        let key = self.find(origin)?;
        if let Some(peer) = self.get_mut(key)
            && peer.address.via.relay != origin.via.relay
        {
            peer.address.via = origin.via;
        }
        Some(key)
    }

    pub(crate) fn find_client(&self, client_id: &[u8]) -> Option<Key> {
        self.by_client.get(client_id).copied()
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Peer> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.generation == key.generation { slot.peer.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Peer> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.peer.as_mut() } else { None }
    }

    /// Peers of one IP address.
    pub(crate) fn of_address(&self, address: IpAddr) -> u32 {
        self.of_address.get(&address).copied().unwrap_or(0)
    }

    /// Adds a peer, which `make` makes from its key. No other peer has its address and client id.
    pub(crate) fn add(&mut self, make: impl FnOnce(Key) -> Peer) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let key = Key { index, generation: self.slots[index as usize].generation };
        let peer = make(key);
        self.bind(peer.address.clone(), key);
        self.by_client.insert(peer.machine.client_id().detach(), key);
        self.slots[index as usize].peer = Some(peer);
        self.add_unproven(key);
        key
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Peer> {
        let slot = self.slots.get_mut(key.index as usize).filter(|slot| slot.generation == key.generation)?;
        let peer = slot.peer.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        self.unbind(&peer.address, key);
        if self.by_client.get(peer.machine.client_id().as_bytes()) == Some(&key) {
            self.by_client.remove(peer.machine.client_id().as_bytes());
        }
        self.remove_unproven(&peer);
        Some(peer)
    }

    /// Moves a peer to another address, and returns its last one. A peer that is there already has ended.
    pub(crate) fn rebind(&mut self, key: Key, origin: Origin<'_>) -> Option<Address> {
        let peer = self.get_mut(key)?;
        let old = std::mem::replace(&mut peer.address, origin.to_address());
        self.unbind(&old, key);
        self.bind(origin.to_address(), key);
        Some(old)
    }

    /// Parts a sleeping peer from its port. Its IP address counts until it wakes at another one.
    pub(crate) fn detach(&mut self, key: Key) {
        let Some(peer) = self.get_mut(key) else { return };
        peer.machine.sleep_on();
        let socket = SocketAddr::new(peer.address.socket.ip(), 0);
        let without_port = Address { socket, via: Via::default(), node: None };
        let old = std::mem::replace(&mut peer.address, without_port.clone());
        self.unbind(&old, key);
        self.bind(without_port, key);
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        let slots = self.slots.iter().zip(0..);
        slots
            .filter(|(slot, _)| slot.peer.is_some())
            .map(|(slot, index)| Key { index, generation: slot.generation })
            .collect()
    }

    fn bind(&mut self, address: Address, key: Key) {
        *self.of_address.entry(address.ip()).or_default() += 1;
        match address.node {
            None => {
                self.by_socket.insert(address.socket, key);
            }
            Some(node) => {
                self.by_node.entry(address.socket).or_default().insert(node, key);
            }
        }
    }

    fn unbind(&mut self, address: &Address, key: Key) {
        let ip = address.ip();
        if let Some(count) = self.of_address.get_mut(&ip) {
            *count -= 1;
            if *count == 0 {
                self.of_address.remove(&ip);
            }
        }
        match &address.node {
            None if self.by_socket.get(&address.socket) == Some(&key) => {
                self.by_socket.remove(&address.socket);
            }
            None => {}
            Some(node) => {
                if let Some(nodes) = self.by_node.get_mut(&address.socket) {
                    if nodes.get(node) == Some(&key) {
                        nodes.remove(node);
                    }
                    if nodes.is_empty() {
                        self.by_node.remove(&address.socket);
                    }
                }
            }
        }
    }
}
