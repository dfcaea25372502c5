//! Turns of work by network address.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// A bounded amount of work at a time. Further work waits, and network addresses take turns. So an address with much work
/// delays another address by one turn, and leaves a quarter of the turns to others.
#[derive(Debug)]
pub(super) struct AddressTurns {
    running_maximum: usize,
    of_address_maximum: usize,
    waiting_maximum: usize,
    state: Mutex<TurnState>,
}

#[derive(Debug, Default)]
struct TurnState {
    next: u64,
    /// Numbers of the work that has a turn.
    running: HashSet<u64>,
    running_of: HashMap<IpAddr, usize>,
    waiting: usize,
    /// Work that waits, by address, in the order of arrival.
    waiting_of: HashMap<IpAddr, VecDeque<(u64, oneshot::Sender<()>)>>,
    /// Addresses in `waiting_of`, in the order of their turns.
    order: VecDeque<IpAddr>,
}

/// Turn of one piece of work, or its place in the queue. The turn ends when it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'t> {
    turns: &'t AddressTurns,
    address: IpAddr,
    number: u64,
}

impl AddressTurns {
    pub(super) fn new(running_maximum: usize, waiting_maximum: usize) -> Self {
        let of_address_maximum = running_maximum - running_maximum / 4;
        Self { running_maximum, of_address_maximum, waiting_maximum, state: Mutex::default() }
    }

    /// Waits for a turn; `None` if too much work waits, above all of this address.
    pub(super) async fn wait(&self, address: IpAddr) -> Option<Turn<'_>> {
        let (turn, called) = {
            let mut state = self.lock();
            if state.waiting >= self.waiting_maximum && !state.make_room_for(address) {
                return None;
            }
            let (call, called) = oneshot::channel();
            let number = state.next;
            state.next += 1;
            state.waiting += 1;
            let of_address = state.waiting_of.entry(address).or_default();
            of_address.push_back((number, call));
            if of_address.len() == 1 {
                state.order.push_back(address);
            }
            state.call(self);
            (Turn { turns: self, address, number }, called)
        };
        // The sender is dropped if the work had to make room.
        if called.await.is_err() {
            return None;
        }
        Some(turn)
    }

    fn lock(&self) -> MutexGuard<'_, TurnState> {
        // No panic occurs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TurnState {
    /// Drops the newest work of the address with the most that waits; `false` if no address has more than this one.
    fn make_room_for(&mut self, address: IpAddr) -> bool {
        let own = self.waiting_of.get(&address).map_or(0, VecDeque::len);
        let most = self.waiting_of.iter_mut().max_by_key(|(_, work)| work.len());
        let Some((_, work)) = most.filter(|(_, work)| work.len() > own + 1) else { return false };
        // It stays in `order`: it has more than one.
        drop(work.pop_back());
        self.waiting -= 1;
        true
    }

    /// Gives turns to work that waits, as long as there are some.
    fn call(&mut self, turns: &AddressTurns) {
        while self.running.len() < turns.running_maximum {
            let has_turn = |address: &IpAddr| {
                self.running_of.get(address).is_none_or(|&running| running < turns.of_address_maximum)
            };
            let Some(address) = self.order.iter().position(has_turn).and_then(|at| self.order.remove(at)) else {
                return;
            };
            let Some(work) = self.waiting_of.get_mut(&address) else { continue };
            let next = work.pop_front();
            if work.is_empty() {
                self.waiting_of.remove(&address);
            } else {
                self.order.push_back(address);
            }
            let Some((number, call)) = next else { continue };
            self.waiting -= 1;
            // Work that is given up before its end drops its `Turn`.
            self.running.insert(number);
            *self.running_of.entry(address).or_default() += 1;
            let _ = call.send(());
        }
    }

    /// Ends the turn, or the wait, of work.
    fn leave(&mut self, address: IpAddr, number: u64) {
        if let Some(work) = self.waiting_of.get_mut(&address)
            && let Some(at) = work.iter().position(|(waiting, _)| *waiting == number)
        {
            work.remove(at);
            self.waiting -= 1;
            if work.is_empty() {
                self.waiting_of.remove(&address);
                self.order.retain(|other| *other != address);
            }
            return;
        }
        // Work that had to make room has neither place nor turn.
        if self.running.remove(&number)
            && let Some(running) = self.running_of.get_mut(&address)
        {
            *running -= 1;
            if *running == 0 {
                self.running_of.remove(&address);
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        state.leave(self.address, self.number);
        state.call(self.turns);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    type Wait<'t> = Pin<Box<dyn Future<Output = Option<Turn<'t>>> + 't>>;

    fn begin(turns: &AddressTurns, number: u8) -> Wait<'_> {
        let mut wait: Wait<'_> = Box::pin(turns.wait([10, 0, 0, number].into()));
        assert!(poll(&mut wait).is_none_or(|turn| turn.is_some()));
        wait
    }

    /// `None`: it waits. `Some(None)`: it is refused.
    fn poll<'t>(wait: &mut Wait<'t>) -> Option<Option<Turn<'t>>> {
        match pin!(wait).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn addresses_take_turns_and_leave_a_quarter_to_others() {
        let turns = AddressTurns::new(4, 100);
        let take = |number: u8| poll(&mut (Box::pin(turns.wait([10, 0, 0, number].into())) as Wait<'_>)).flatten();
        let running = [take(1), take(1), take(1)].map(Option::unwrap);
        let mut flood = [(); 3].map(|()| begin(&turns, 1));
        let other = take(2).expect("the last quarter");
        let mut waiting = [begin(&turns, 2), begin(&turns, 3)];
        drop(other);
        let second = poll(&mut waiting[0]).flatten().expect("the first address that may have one more");
        assert!(poll(&mut waiting[1]).is_none());
        drop(running);
        let mut third = poll(&mut waiting[1]).flatten();
        assert!(third.take().is_some());
        assert!(flood.iter_mut().all(|wait| poll(wait).is_some_and(|turn| turn.is_some())));
        drop((second, waiting, flood));
        let state = turns.lock();
        assert!(
            state.running.is_empty() && state.running_of.is_empty() && state.waiting == 0 && state.order.is_empty()
        );
    }

    #[test]
    fn address_with_the_most_waiting_work_makes_room() {
        let turns = AddressTurns::new(1, 3);
        let running = poll(&mut begin_none(&turns, 9));
        let mut flood = [(); 3].map(|()| begin(&turns, 1));
        assert!(matches!(poll(&mut begin_none(&turns, 1)), Some(None)), "its own");
        let mut other = begin(&turns, 2);
        assert!(matches!(poll(&mut flood[2]), Some(None)), "its newest");
        drop(running);
        drop(poll(&mut flood[0]));
        assert!(poll(&mut other).is_some_and(|turn| turn.is_some()), "in turn");
        drop((flood, other));
        assert!(turns.lock().running.is_empty() && turns.lock().waiting_of.is_empty());
    }

    fn begin_none(turns: &AddressTurns, number: u8) -> Wait<'_> {
        Box::pin(turns.wait([10, 0, 0, number].into()))
    }
}
