//! Worker threads that serve connections; only as many are active as the load needs.
//!
//! Each thread has its own runtime, on which its connections wake each other without a system call. Waking across
//! threads costs up to twice the processor time per message. So connections start on the first thread, and some move to
//! another only when it is nearly saturated. They move back when the load falls.
//!
//! ```text
//!   every 100 ms: load of each thread ─► thread scaler ─► order to a thread: "half of you to thread 1"
//!                                                            │ each connection reads it once, when it wakes
//!                                                            ▼
//!                                      the connection's task ends here and goes on there, its socket registered anew
//! ```

mod wakes;

use std::io;
use std::sync::atomic::{
    AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::Duration;

use tenbin_balancer::Rng;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

pub(crate) use wakes::wake_at;

/// Migration of connections from one thread to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Move {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Part of the connections, chosen at random; 1 = all.
    pub(crate) share: f64,
}

/// Runtimes of the worker threads.
#[derive(Debug)]
pub(crate) struct Threads {
    all: Box<[Thread]>,
    /// Number of active threads; these are the first ones in `all`.
    active: AtomicUsize,
    /// Number of connections placed on a thread; drives the round robin.
    placed: AtomicUsize,
}

#[derive(Debug)]
struct Thread {
    runtime: Handle,
    /// The latest [`Order`], encoded by [`Order::to_word`].
    order: AtomicU32,
}

/// Handle that keeps the threads running until it is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    /// Never sent on; dropping the senders stops the threads.
    _stop: Vec<oneshot::Sender<()>>,
}

/// Starts a thread with a runtime for what precedes MQTT on connections, such as TLS handshakes.
///
/// # Errors
/// The system refuses to start a thread.
pub(crate) fn start_door() -> io::Result<(Handle, Running)> {
    let (runtime, sender) = start_one("tenbin-door".to_owned())?;
    Ok((runtime, Running { _stop: vec![sender] }))
}

/// Starts a thread with a runtime, which ends when the sender is dropped.
fn start_one(name: String) -> io::Result<(Handle, oneshot::Sender<()>)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (sender, stopped) = oneshot::channel::<()>();
    let run = move || {
        let _ = runtime.block_on(wakes::serve(stopped));
    };
    std::thread::Builder::new().name(name).spawn(run)?;
    Ok((handle, sender))
}

/// Worker thread of a connection, and the last order that the connection read there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    thread: u8,
    heard: u16,
}

/// Migration order for some of a thread's connections. It stays until the next one, so idle connections read it later.
#[derive(Clone, Copy, Debug)]
struct Order {
    number: u16,
    to: u8,
    /// In units of 1/255.
    share: u8,
}

impl Threads {
    /// Starts `count` threads, at least one and at most 256.
    ///
    /// # Errors
    /// The system refuses to start a thread.
    pub(crate) fn start(count: usize) -> io::Result<(Self, Running)> {
        let (mut all, mut stop) = (Vec::new(), Vec::new());
        for number in 0..count.clamp(1, COUNT_MAX) {
            let (runtime, sender) = start_one(format!("tenbin-{number}"))?;
            all.push(Thread { runtime, order: AtomicU32::new(0) });
            stop.push(sender);
        }
        let (active, placed) = (AtomicUsize::new(1), AtomicUsize::new(0));
        Ok((Self { all: all.into(), active, placed }, Running { _stop: stop }))
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Runtime of the listeners.
    pub(crate) fn first(&self) -> &Handle {
        &self.all[0].runtime
    }

    pub(crate) fn runtime(&self, home: Home) -> &Handle {
        &self.all[usize::from(home.thread)].runtime
    }

    /// Number of active threads.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Relaxed)
    }

    /// Runtimes of all threads.
    pub(crate) fn runtimes(&self) -> impl Iterator<Item = &Handle> {
        self.all.iter().map(|thread| &thread.runtime)
    }

    /// Worker thread for a new connection: the active threads in turn.
    pub(crate) fn place(&self) -> Home {
        let active = self.active.load(Relaxed);
        let thread = if active == 1 { 0 } else { self.placed.fetch_add(1, Relaxed) % active };
        self.home(thread)
    }

    /// Returns the thread to which connection `number` must move; called when the connection has work to do.
    ///
    /// The order may be outdated when a connection reads it: no connection moves to an inactive thread or stays on one.
    #[inline]
    pub(crate) fn leaves_to(&self, home: &mut Home, number: u64) -> Option<Home> {
        let order = self.order_of(usize::from(home.thread));
        let is_new = order.number != home.heard;
        let is_at_work = self.is_at_work(home.thread);
        if is_at_work && !is_new {
            return None;
        }
        home.heard = order.number;
        match (is_at_work, self.is_at_work(order.to)) {
            (true, true) => (order.to != home.thread && order.means(number)).then(|| self.home(usize::from(order.to))),
            (true, false) => None,
            (false, true) if is_new => Some(self.home(usize::from(order.to))),
            (false, _) => Some(self.home(0)),
        }
    }

    /// Whether the connection has to call [`leaves_to`](Self::leaves_to).
    pub(crate) fn has_orders(&self, home: &Home) -> bool {
        self.order_of(usize::from(home.thread)).number != home.heard || !self.is_at_work(home.thread)
    }

    fn home(&self, thread: usize) -> Home {
        Home { thread: thread as u8, heard: self.order_of(thread).number }
    }

    /// Acquire: pairs with the release in `give`, so that the reader sees the number of active threads that belongs to
    /// the order.
    fn order_of(&self, thread: usize) -> Order {
        Order::from_word(self.all[thread].order.load(Acquire))
    }

    fn is_at_work(&self, thread: u8) -> bool {
        usize::from(thread) < self.active.load(Relaxed)
    }

    /// Makes the first `count` threads the active ones. Before [`give`](Self::give): see `order_of`.
    pub(crate) fn activate(&self, count: usize) {
        self.active.store(count, Relaxed);
    }

    /// Orders connections of a thread to move.
    pub(crate) fn give(&self, order: Move) {
        let word = &self.all[order.from].order;
        let last = Order::from_word(word.load(Relaxed));
        let (to, share) = (order.to as u8, (order.share * f64::from(u8::MAX)).ceil() as u8);
        word.store(Order { number: last.number.wrapping_add(1), to, share }.to_word(), Release);
    }

    /// Busy time of each thread since its start.
    pub(crate) fn busy(&self) -> impl Iterator<Item = Duration> {
        self.all.iter().map(|thread| thread.runtime.metrics().worker_total_busy_duration(0))
    }
}

impl Home {
    pub(crate) fn is_first(self) -> bool {
        self.thread == 0
    }
}

impl Order {
    fn from_word(word: u32) -> Self {
        let [low, high, to, share] = word.to_le_bytes();
        Self { number: u16::from_le_bytes([low, high]), to, share }
    }

    fn to_word(self) -> u32 {
        let [low, high] = self.number.to_le_bytes();
        u32::from_le_bytes([low, high, self.to, self.share])
    }

    /// Whether the order applies to connection `number`: pseudo-random, and different for each order.
    fn means(self, number: u64) -> bool {
        let mut rng = Rng::new(number << 16 | u64::from(self.number));
        rng.next_u64() % u64::from(u8::MAX) < u64::from(self.share)
    }
}

/// A thread's number fits into a byte.
const COUNT_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_encoding() {
        let order = Order { number: 0xABCD, to: 7, share: 128 };
        let again = Order::from_word(order.to_word());
        assert_eq!((again.number, again.to, again.share), (0xABCD, 7, 128));
    }

    #[test]
    fn order_selects_its_share_at_random() {
        let meant = |number, share| (0..10_000).filter(|&id| Order { number, to: 1, share }.means(id)).count();
        assert_eq!((meant(1, 255), meant(1, 0)), (10_000, 0));
        assert!((4_500..5_500).contains(&meant(1, 128)), "{}", meant(1, 128));
        let both = |id: &u64| {
            Order { number: 1, to: 1, share: 128 }.means(*id) && Order { number: 2, to: 1, share: 128 }.means(*id)
        };
        let both = (0..10_000).filter(both).count();
        assert!((2_000..3_000).contains(&both), "{both}");
    }

    #[test]
    fn order_applies_once_and_not_to_new_connections() {
        let (threads, _running) = Threads::start(2).expect("two threads");
        let mut home = threads.place();
        assert!(home.is_first());
        assert!(threads.leaves_to(&mut home, 1).is_none());
        threads.activate(2);
        threads.give(Move { from: 0, to: 1, share: 1.0 });
        assert!(threads.leaves_to(&mut threads.place(), 1).is_none(), "it came after that");
        let moved = threads.leaves_to(&mut home, 1).expect("all leave");
        assert!(!moved.is_first());
        assert!(threads.leaves_to(&mut home, 1).is_none(), "once");
        assert!(threads.leaves_to(&mut { moved }, 1).is_none());
    }

    #[test]
    fn connections_leave_and_avoid_inactive_threads() {
        let (threads, _running) = Threads::start(3).expect("three threads");
        let sleeper = threads.place();
        threads.activate(3);
        threads.give(Move { from: 0, to: 1, share: 1.0 });
        let mut others = [0, 1, 2].map(|thread| threads.home(thread));
        // Both threads are deactivated before any connection wakes.
        threads.activate(2);
        threads.give(Move { from: 2, to: 1, share: 1.0 });
        threads.activate(1);
        threads.give(Move { from: 1, to: 0, share: 1.0 });
        assert!(threads.has_orders(&sleeper) && threads.leaves_to(&mut { sleeper }, 1).is_none(), "its order is old");
        let left: Vec<_> = others.iter_mut().map(|home| threads.leaves_to(home, 1)).collect();
        assert!(left[0].is_none() && left[1..].iter().all(|home| home.is_some_and(Home::is_first)), "{left:?}");
        let mut late = threads.home(1); // placed there at the last moment
        assert!(threads.leaves_to(&mut late, 1).is_some_and(Home::is_first));
    }
}
