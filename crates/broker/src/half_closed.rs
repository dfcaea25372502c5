//! Clients that have closed their side of the connection before CONNACK.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use crate::values::network;

/// Clients that have closed their side and wait for the authenticator, by their network address.
///
/// FIN says only that a client sends nothing more. It may listen for its CONNACK, or be gone for good, which shows only
/// when the broker writes to it. So [`PER_ADDRESS`] clients of each address may wait, and further ones are refused at
/// once. A client that connects and closes over and over holds no socket open itself. It takes no more than these
/// places from the clients that wait.
#[derive(Debug, Default)]
pub(crate) struct HalfClosed {
    waiting: Mutex<HashMap<IpAddr, u32>>,
}

/// The right to wait, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    all: &'a HalfClosed,
    address: IpAddr,
}

impl HalfClosed {
    /// Registers a client of `address` that has closed its side; `None`: no place is left.
    pub(crate) fn enter(&self, address: IpAddr) -> Option<Place<'_>> {
        let address = network(address);
        let mut waiting = self.waiting();
        let of_address = waiting.entry(address).or_default();
        if *of_address >= PER_ADDRESS {
            return None;
        }
        *of_address += 1;
        Some(Place { all: self, address })
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<IpAddr, u32>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.all.waiting();
        if let Some(of_address) = waiting.get_mut(&self.address) {
            *of_address -= 1;
            if *of_address == 0 {
                waiting.remove(&self.address);
            }
        }
    }
}

/// Half-closed clients of one address that may wait: enough for scripts that pipe packets into a socket.
const PER_ADDRESS: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_closed_clients_are_bounded_per_address() {
        let (half_closed, a, b) = (HalfClosed::default(), IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut places: Vec<_> = (0..4).map(|_| half_closed.enter(a).expect("a place")).collect();
        assert!(half_closed.enter(a).is_none() && half_closed.enter(b).is_some());
        places.pop();
        places.push(half_closed.enter(a).expect("one came free"));
        assert!(half_closed.enter(a).is_none());
        drop(places);
        assert!(half_closed.waiting().is_empty());
    }
}
