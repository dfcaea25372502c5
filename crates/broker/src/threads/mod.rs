//! The threads that serve connections: as many at work as there is work for.
//!
//! Each has a runtime of its own, on which its connections wake each other without a system call. Two threads that wake
//! each other take up to twice the processor time for a message, so connections begin on the first one, and only where
//! that has hardly a moment to spare do some of them leave for another. When there is less to do they come back.
//!
//! ```text
//!   each 100 ms: how busy? ──► spread ──► an order on a thread: "half of you to thread 1"
//!                                              │ heard by each connection, once, when it has something to do
//!                                              ▼
//!                               the connection's task ends here and goes on there, its socket registered anew
//! ```

mod idle;
mod spread;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::{Duration, Instant};

use tenbin_balancer::Rng;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::durable::serve_wakes;
use crate::shared::Shared;
use idle::IdleTime;
use spread::{Move, Spread};

/// The runtimes of the threads.
#[derive(Debug)]
pub(crate) struct Threads {
    all: Box<[Thread]>,
    /// The first so many are at work.
    active: AtomicUsize,
    /// Connections that were placed.
    placed: AtomicUsize,
}

#[derive(Debug)]
struct Thread {
    runtime: Handle,
    /// The last [`Order`], as a number.
    order: AtomicU32,
}

/// The threads run for as long as this is there.
#[derive(Debug)]
pub(crate) struct Running {
    /// Nothing is ever sent.
    _stop: Vec<oneshot::Sender<()>>,
}

/// Where a connection is served, and what it has heard there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    thread: u8,
    heard: u16,
}

/// Some of a thread's connections are to leave. It stands until the next one, so that who sleeps hears it later.
#[derive(Clone, Copy, Debug)]
struct Order {
    number: u16,
    to: u8,
    /// Of 255.
    share: u8,
}

impl Threads {
    /// Starts so many threads, at least one and at most 256.
    ///
    /// # Errors
    /// The system gives no more threads.
    pub(crate) fn start(count: usize) -> io::Result<(Self, Running)> {
        let (mut all, mut stop) = (Vec::new(), Vec::new());
        for number in 0..count.clamp(1, COUNT_MAX) {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (sender, stopped) = oneshot::channel::<()>();
            all.push(Thread { runtime: runtime.handle().clone(), order: AtomicU32::new(0) });
            stop.push(sender);
            let run = move || {
                let _ = runtime.block_on(serve_wakes(stopped));
            };
            std::thread::Builder::new().name(format!("tenbin-{number}")).spawn(run)?;
        }
        let (active, placed) = (AtomicUsize::new(1), AtomicUsize::new(0));
        Ok((Self { all: all.into(), active, placed }, Running { _stop: stop }))
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The runtime that listens.
    pub(crate) fn first(&self) -> &Handle {
        &self.all[0].runtime
    }

    pub(crate) fn runtime(&self, home: Home) -> &Handle {
        &self.all[usize::from(home.thread)].runtime
    }

    /// Where a new connection goes: one after the other of those at work.
    pub(crate) fn place(&self) -> Home {
        let active = self.active.load(Relaxed);
        let thread = if active == 1 { 0 } else { self.placed.fetch_add(1, Relaxed) % active };
        self.home(thread)
    }

    /// Where the connection of this number is to go on; asked when it has something to do.
    ///
    /// An order may be old when it is heard: nobody goes to a thread that is no longer at work, and nobody stays there.
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

    /// Whether [`leaves_to`](Self::leaves_to) has something new to say.
    pub(crate) fn has_orders(&self, home: &Home) -> bool {
        self.order_of(usize::from(home.thread)).number != home.heard || !self.is_at_work(home.thread)
    }

    fn home(&self, thread: usize) -> Home {
        Home { thread: thread as u8, heard: self.order_of(thread).number }
    }

    /// Acquires what was stored before the order was given: how many threads are at work.
    fn order_of(&self, thread: usize) -> Order {
        Order::from_word(self.all[thread].order.load(Acquire))
    }

    fn is_at_work(&self, thread: u8) -> bool {
        usize::from(thread) < self.active.load(Relaxed)
    }

    fn give(&self, order: Move) {
        let word = &self.all[order.from].order;
        let last = Order::from_word(word.load(Relaxed));
        let (to, share) = (order.to as u8, (order.share * f64::from(u8::MAX)).ceil() as u8);
        word.store(Order { number: last.number.wrapping_add(1), to, share }.to_word(), Release);
    }

    fn busy(&self) -> impl Iterator<Item = Duration> {
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

    /// By chance, and another one with each order.
    fn means(self, number: u64) -> bool {
        let mut rng = Rng::new(number << 16 | u64::from(self.number));
        rng.next_u64() % u64::from(u8::MAX) < u64::from(self.share)
    }
}

/// Watches how busy the threads are, for ever. `is_restless`: sends half of everybody on to the next each time, for
/// tests.
pub(crate) async fn run(shared: Arc<Shared>, is_restless: bool) {
    let Some(threads) = &shared.threads else { return };
    let count = threads.all.len();
    let mut spread = Spread::new(count);
    let mut before: Vec<Duration> = threads.busy().collect();
    let mut idle = IdleTime::default();
    let (mut looked_at, mut packets_before) = (Instant::now(), shared.metrics.packets());
    if is_restless {
        threads.active.store(count, Relaxed);
    }
    loop {
        tokio::time::sleep(if is_restless { RESTLESS_PAUSE } else { PAUSE }).await;
        if is_restless {
            (0..count).for_each(|from| threads.give(Move { from, to: (from + 1) % count, share: 0.5 }));
            continue;
        }
        let now = Instant::now();
        let passed = now.saturating_duration_since(looked_at).as_secs_f64();
        let busy: Vec<Duration> = threads.busy().collect();
        let parts: Vec<f64> =
            busy.iter().zip(&before).map(|(now, before)| now.saturating_sub(*before).as_secs_f64() / passed).collect();
        let packets = shared.metrics.packets();
        let rate = (packets - packets_before) as f64 / passed;
        // Nobody needs to know before a thread has much to do.
        let may_need_more = parts.len() > 1 && parts.iter().any(|&busy| busy > spread::ROOM);
        let left = if may_need_more { idle.processors(passed) } else { 0.0 };
        if !may_need_more {
            idle.forget();
        }
        let next = spread.next(parts.iter().copied(), rate, left);
        threads.active.store(spread.active(), Relaxed);
        if let Some(next) = next {
            tracing::debug!(?next, active = spread.active(), busy = ?parts, "connections move to another thread");
            threads.give(next);
        }
        (before, looked_at, packets_before) = (busy, now, packets);
    }
}

/// A thread's number is a byte.
const COUNT_MAX: usize = 256;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);
const RESTLESS_PAUSE: Duration = Duration::from_millis(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_what_its_number_says() {
        let order = Order { number: 0xABCD, to: 7, share: 128 };
        let again = Order::from_word(order.to_word());
        assert_eq!((again.number, again.to, again.share), (0xABCD, 7, 128));
    }

    #[test]
    fn an_order_means_its_share_and_others_the_next_time() {
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
    fn each_hears_an_order_once_and_newcomers_do_not() {
        let (threads, _running) = Threads::start(2).expect("two threads");
        let mut home = threads.place();
        assert!(home.is_first());
        assert!(threads.leaves_to(&mut home, 1).is_none());
        threads.active.store(2, Relaxed);
        threads.give(Move { from: 0, to: 1, share: 1.0 });
        assert!(threads.leaves_to(&mut threads.place(), 1).is_none(), "it came after that");
        let moved = threads.leaves_to(&mut home, 1).expect("all leave");
        assert!(!moved.is_first());
        assert!(threads.leaves_to(&mut home, 1).is_none(), "once");
        assert!(threads.leaves_to(&mut { moved }, 1).is_none());
    }

    #[test]
    fn nobody_goes_to_a_thread_that_was_given_back_nor_stays_there() {
        let (threads, _running) = Threads::start(3).expect("three threads");
        let sleeper = threads.place();
        threads.active.store(3, Relaxed);
        threads.give(Move { from: 0, to: 1, share: 1.0 });
        let mut others = [0, 1, 2].map(|thread| threads.home(thread));
        // Both are given back before anybody wakes.
        threads.active.store(2, Relaxed);
        threads.give(Move { from: 2, to: 1, share: 1.0 });
        threads.active.store(1, Relaxed);
        threads.give(Move { from: 1, to: 0, share: 1.0 });
        assert!(threads.has_orders(&sleeper) && threads.leaves_to(&mut { sleeper }, 1).is_none(), "its order is old");
        let left: Vec<_> = others.iter_mut().map(|home| threads.leaves_to(home, 1)).collect();
        assert!(left[0].is_none() && left[1..].iter().all(|home| home.is_some_and(Home::is_first)), "{left:?}");
        let mut late = threads.home(1); // placed there at the last moment
        assert!(threads.leaves_to(&mut late, 1).is_some_and(Home::is_first));
    }
}
