//! Room for handshakes.

use std::net::IpAddr;
use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::values::network;

/// Bounds the handshakes of a listener. Handshakes that an address does not finish leave room for those of others.
///
/// The semaphores are never closed.
#[derive(Debug)]
pub(super) struct Room {
    all: Semaphore,
    per_address: usize,
    of_address: DashMap<IpAddr, Arc<Semaphore>>,
}

/// Room of one handshake.
#[derive(Debug)]
pub(super) struct Held<'a> {
    room: &'a Room,
    address: IpAddr,
    own: Option<OwnedSemaphorePermit>,
    _all: Option<SemaphorePermit<'a>>,
}

impl Room {
    pub(super) fn new(maximum: usize) -> Self {
        let per_address = (maximum / ADDRESSES_MIN).max(1);
        Self { all: Semaphore::new(maximum), per_address, of_address: DashMap::new() }
    }

    /// Waits for room for a handshake with `address`.
    pub(super) async fn wait(&self, address: IpAddr) -> Held<'_> {
        let address = network(address);
        // First, so that an address is forgotten if this future is dropped.
        let mut held = Held { room: self, address, own: None, _all: None };
        let own = || Arc::new(Semaphore::new(self.per_address));
        let own = Arc::clone(&self.of_address.entry(address).or_insert_with(own));
        held.own = own.acquire_owned().await.ok();
        held._all = self.all.acquire().await.ok();
        held
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.own = None;
        // The others have a reference each, those that wait too.
        self.room.of_address.remove_if(&self.address, |_, own| Arc::strong_count(own) == 1);
    }
}

/// Number of addresses that may have handshakes at a time, however many each begins.
const ADDRESSES_MIN: usize = 4;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn wait(room: &Room, address: [u8; 4]) -> Option<Held<'_>> {
        tokio::time::timeout(Duration::ZERO, room.wait(address.into())).await.ok()
    }

    #[tokio::test]
    async fn an_address_gets_a_quarter_of_the_room() {
        let room = Room::new(8);
        let (a, b) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let first = wait(&room, a).await.unwrap();
        let _second = wait(&room, a).await.unwrap();
        assert!(wait(&room, a).await.is_none());
        assert!(wait(&room, b).await.is_some());
        drop(first);
        assert!(wait(&room, a).await.is_some());
    }

    #[tokio::test]
    async fn addresses_without_handshakes_are_forgotten() {
        let room = Room::new(1);
        let (a, b) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let only = wait(&room, a).await.unwrap();
        assert!(wait(&room, a).await.is_none() && wait(&room, b).await.is_none());
        assert_eq!(room.of_address.len(), 1);
        drop(only);
        assert!(room.of_address.is_empty());
    }
}
