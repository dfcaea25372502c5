//! Turns of handshakes.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use dashmap::DashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::values::network;

/// Turns of the handshakes of a listener: one computes at a time, and network addresses take turns. A handshake that waits
/// for its client has no turn. So a client that is silent, or an address with many handshakes, delays others by one
/// computation at most.
///
/// The thread of the doors computes the handshakes of all listeners. So turns only order them: no other thread waits for
/// one. Doors on several threads would need a turn for each thread.
///
/// The semaphores are never closed.
#[derive(Debug)]
pub(super) struct Turns {
    all: Semaphore,
    of_address: DashMap<IpAddr, Arc<Semaphore>>,
}

/// Turn of one handshake.
#[derive(Debug)]
struct Turn<'a> {
    turns: &'a Turns,
    address: IpAddr,
    own: Option<OwnedSemaphorePermit>,
    _all: Option<SemaphorePermit<'a>>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { all: Semaphore::new(1), of_address: DashMap::new() }
    }
}

impl Turns {
    /// Completes `work` for a client at `address`. Each poll of it takes a turn.
    pub(super) async fn complete<T>(&self, address: IpAddr, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            let turn = self.wait(address).await;
            // With the turn held, so that handshakes that became ready together with this one wait for their turns too.
            // Without it, they would run in the order of their data. The thread does other work of the doors until then.
            tokio::task::yield_now().await;
            let polled = std::future::poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
            if let Poll::Ready(done) = polled {
                return done;
            }
            drop(turn);
            woken().await;
        }
    }

    async fn wait(&self, address: IpAddr) -> Turn<'_> {
        let address = network(address);
        // First, so that an address is forgotten if this future is dropped.
        let mut turn = Turn { turns: self, address, own: None, _all: None };
        let own = Arc::clone(&self.of_address.entry(address).or_insert_with(|| Arc::new(Semaphore::new(1))));
        turn.own = own.acquire_owned().await.ok();
        turn._all = self.all.acquire().await.ok();
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.own = None;
        // The others have a reference each, those that wait too.
        self.turns.of_address.remove_if(&self.address, |_, own| Arc::strong_count(own) == 1);
    }
}

/// Waits until something wakes the task after its last poll.
async fn woken() {
    let mut has_slept = false;
    std::future::poll_fn(|_| if std::mem::replace(&mut has_slept, true) { Poll::Ready(()) } else { Poll::Pending })
        .await;
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::pending;
    use std::rc::Rc;

    use tokio::task::{LocalSet, yield_now};

    use super::*;

    #[tokio::test]
    async fn addresses_take_turns_and_silent_clients_have_none() {
        let (turns, ran, local) = (Rc::new(Turns::default()), Rc::<RefCell<Vec<u8>>>::default(), LocalSet::new());
        let begin = |number: u8| {
            let (turns, ran) = (Rc::clone(&turns), Rc::clone(&ran));
            local.spawn_local(async move {
                let hello = async {
                    ran.borrow_mut().push(number);
                    pending::<()>().await;
                };
                turns.complete([10, 0, 0, number].into(), hello).await;
            })
        };
        let silent = [1, 1, 1, 2, 3].map(begin);
        let order = Rc::clone(&ran);
        local
            .run_until(async {
                while order.borrow().len() < 5 {
                    yield_now().await;
                }
            })
            .await;
        assert_eq!(*ran.borrow(), [1, 2, 3, 1, 1]);
        assert!(turns.of_address.is_empty(), "addresses without turns are forgotten");
        silent.iter().for_each(|task| task.abort());
    }
}
