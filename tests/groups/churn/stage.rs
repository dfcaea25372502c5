use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tenbin_codec::QoS;

use crate::support::{Dice, PATIENCE};

/// State shared by all threads of a run.
///
/// Counters and flags are independent of each other, so `Relaxed` suffices for them. Stamps are drawn `SeqCst`.
pub(crate) struct Stage {
    pub(crate) address: SocketAddr,
    pub(crate) qos: QoS,
    pub(crate) messages: usize,
    started: Instant,
    /// Whether a message has arrived, by its number.
    come: Vec<AtomicBool>,
    /// Messages that have arrived at least once.
    distinct: AtomicUsize,
    published: AtomicUsize,
    /// Members that have subscribed for the first time.
    present: AtomicUsize,
    /// Set while all members must leave and stay away.
    empty: AtomicBool,
    times_empty: AtomicUsize,
    /// Set when all messages have arrived, or none arrives any more. Then the last visits begin.
    over: AtomicBool,
    stamps: AtomicU64,
}

impl Stage {
    pub(crate) fn new(address: SocketAddr, qos: QoS, messages: usize) -> Self {
        Self {
            address,
            qos,
            messages,
            started: Instant::now(),
            come: (0..messages).map(|_| AtomicBool::new(false)).collect(),
            distinct: AtomicUsize::new(0),
            published: AtomicUsize::new(0),
            present: AtomicUsize::new(0),
            empty: AtomicBool::new(false),
            times_empty: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            stamps: AtomicU64::new(0),
        }
    }

    /// Notes that a message arrived. Returns a stamp larger than all before.
    pub(crate) fn receipt(&self, number: usize) -> u64 {
        if !self.come[number].swap(true, Ordering::Relaxed) {
            self.distinct.fetch_add(1, Ordering::Relaxed);
        }
        self.stamps.fetch_add(1, Ordering::SeqCst)
    }

    /// Waits until `count` more messages may be published without overflowing a queue, which another test covers.
    pub(crate) fn wait_for_room(&self, count: usize) {
        while self.published.load(Ordering::Relaxed) > self.distinct.load(Ordering::Relaxed) + BACKLOG
            && !self.is_over()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.published.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn subscribed_first(&self) {
        self.present.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn wait_for_members(&self, count: usize) {
        let until = Instant::now() + PATIENCE;
        while self.present.load(Ordering::Relaxed) < count {
            assert!(Instant::now() < until, "the members do not get their subscriptions");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Removes all members now and then, until all messages have arrived or none has for [`PATIENCE`].
    pub(crate) fn direct(&self, seed: u64) {
        let mut dice = Dice::new(seed, usize::MAX);
        let mut last = (0, Instant::now());
        while last.0 < self.messages && last.1.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(dice.within(20..100)));
            let distinct = self.distinct.load(Ordering::Relaxed);
            if distinct > last.0 {
                last = (distinct, Instant::now());
            }
            if self.published.load(Ordering::Relaxed) < self.messages {
                self.empty.store(true, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(dice.within(20..60)));
                self.empty.store(false, Ordering::Relaxed);
                self.times_empty.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.empty.load(Ordering::Relaxed)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub(crate) fn times_empty(&self) -> usize {
        self.times_empty.load(Ordering::Relaxed)
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}

/// Topic of the messages, and the shared filter that matches it.
pub(crate) const TOPIC: &str = "churn/work";
pub(crate) const FILTER: &str = "$share/churn/churn/#";
/// Bound on messages published and not received: half of the default limit of one queue.
const BACKLOG: usize = 8192;
