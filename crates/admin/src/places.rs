//! Places of connections, which bound their number.
//!
//! ```text
//!   a place for any request   64, at most 16 of one remote address
//!   a place for a probe        8 besides; a newcomer without a free one takes that of the oldest
//! ```

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

/// All places of a server.
#[derive(Debug, Default)]
pub(crate) struct Places {
    taken: Arc<Mutex<Taken>>,
    /// Connections for probes, the oldest first.
    probes: VecDeque<AbortHandle>,
}

#[derive(Debug, Default)]
struct Taken {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A place for any request; free again when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    taken: Arc<Mutex<Taken>>,
    address: Option<IpAddr>,
}

impl Places {
    /// A place for a connection from this address; without one, from this machine's file system. `None` = there is none.
    pub(crate) fn take(&self, address: Option<IpAddr>) -> Option<Place> {
        let address = address.map(|address| address.to_canonical());
        let mut taken = lock(&self.taken);
        if taken.total >= CONNECTIONS_MAX {
            return None;
        }
        if let Some(address) = address {
            let count = taken.by_address.entry(address).or_default();
            if *count >= ADDRESS_MAX {
                return None;
            }
            *count += 1;
        }
        taken.total += 1;
        drop(taken);
        Some(Place { taken: Arc::clone(&self.taken), address })
    }

    /// Gives a connection a place for a probe. The oldest one ends if there is no other.
    pub(crate) fn take_for_probe(&mut self, connection: AbortHandle) {
        self.probes.retain(|other| !other.is_finished());
        if self.probes.len() >= PROBES_MAX
            && let Some(oldest) = self.probes.pop_front()
        {
            oldest.abort();
        }
        self.probes.push_back(connection);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        taken.total -= 1;
        if let Some(address) = self.address
            && let Some(count) = taken.by_address.get_mut(&address)
        {
            *count -= 1;
            if *count == 0 {
                taken.by_address.remove(&address);
            }
        }
    }
}

fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connections at a time.
const CONNECTIONS_MAX: usize = 64;
/// Connections of one remote address at a time.
const ADDRESS_MAX: usize = 16;
/// Connections besides, for probes alone.
const PROBES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_in_total_and_by_address() {
        let places = Places::default();
        let address = |number: u8| Some(IpAddr::from([192, 0, 2, number]));
        let mut held: Vec<_> = std::iter::from_fn(|| places.take(address(1))).collect();
        assert_eq!(held.len(), ADDRESS_MAX);
        let mapped = "::ffff:192.0.2.1".parse().ok();
        assert!(places.take(mapped).is_none(), "the same address");
        held.extend((2..200).filter_map(|number| places.take(address(number))));
        assert_eq!(held.len(), CONNECTIONS_MAX);
        assert!(places.take(None).is_none());
        held.remove(0);
        held.push(places.take(address(1)).unwrap());
        assert!(places.take(address(250)).is_none());
        drop(held);
        assert!(lock(&places.taken).by_address.is_empty());
    }

    #[tokio::test]
    async fn newest_probes_have_a_place() {
        let mut places = Places::default();
        let tasks: Vec<_> = (0..PROBES_MAX + 2).map(|_| tokio::spawn(std::future::pending::<()>())).collect();
        tasks.iter().for_each(|task| places.take_for_probe(task.abort_handle()));
        assert_eq!(places.probes.len(), PROBES_MAX);
        for (number, task) in tasks.into_iter().enumerate() {
            if number < 2 {
                assert!(task.await.unwrap_err().is_cancelled(), "the oldest");
            } else {
                assert!(!task.is_finished());
            }
        }
    }
}
