//! Judges from samples of its queue whether a receiver keeps up. Pure: the caller supplies the time.
//!
//! ```text
//!            more than soft queued for 0.2 s          more than hard queued, or queue nearly full for 0.1 s,
//!                                                     or more than soft could spill and the oldest is 1 s old
//!   Normal ──────────────────────────────► Watch ──────────────────────────────► Spooling
//!      ▲                                     │                                       │
//!      └─────────────────────────────────────┴───────────────────────────────────────┘
//!                     less than half of soft for 0.5 s, and no on-disk backlog
//! ```
//!
//! *Soft* is the number of bytes that the receiver takes in 250 ms. *Hard* is a fraction of the free budget of all
//! queues: the fuller memory is, the less one receiver may fill.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How a receiver keeps up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum Pace {
    /// Takes messages as fast as they come.
    #[default]
    Normal,
    /// Takes messages more slowly than they come: share groups prefer other members.
    Watch,
    /// Slow: messages stay on disk until shortly before they are sent.
    Spooling,
}

/// One sample of a queue.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    /// Queued in memory.
    pub(crate) bytes: usize,
    pub(crate) messages: usize,
    /// The part of those in memory that could be on disk instead.
    pub(crate) spoolable_bytes: usize,
    pub(crate) spoolable_messages: usize,
    /// Queued on disk only.
    pub(crate) tail_messages: usize,
    pub(crate) tail_bytes: u64,
    /// Number of the oldest message in memory.
    pub(crate) head: Option<u64>,
    /// Number that the next message gets.
    pub(crate) next: u64,
    /// Bytes that the receiver has taken from memory since it connected.
    pub(crate) taken_bytes: u64,
    /// Bytes that its socket has not taken, as far as known.
    pub(crate) unsent_bytes: usize,
}

/// How much may be queued at the moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Limits of one queue, as configured.
    pub(crate) bytes: usize,
    pub(crate) messages: usize,
    /// Bytes that the budget of all queues has left.
    pub(crate) free_bytes: usize,
}

/// State of the slow-consumer monitor for one connection of a receiver.
#[derive(Debug, Default)]
pub(crate) struct Health {
    pace: Pace,
    drained: Rate,
    arrived: Rate,
    last: Option<(Instant, Sample)>,
    /// Earlier samples' `next` with their time: a message with a lower number is at least as old as the sample.
    seen: VecDeque<(u64, Instant)>,
    over_since: Option<Instant>,
    full_since: Option<Instant>,
    under_since: Option<Instant>,
}

/// A change of consumer state, for logs and events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Transition {
    pub(crate) from: Pace,
    pub(crate) to: Pace,
}

impl Health {
    pub(crate) fn pace(&self) -> Pace {
        self.pace
    }

    /// Bytes per second that the receiver takes, averaged over about two seconds.
    pub(crate) fn drain_rate(&self) -> f64 {
        self.drained.get()
    }

    /// Bytes per second that arrive for the receiver.
    pub(crate) fn arrival_rate(&self) -> f64 {
        self.arrived.get()
    }

    /// Minimum age of the oldest message in memory.
    pub(crate) fn head_age(&self, now: Instant) -> Duration {
        let since = self.seen.front().filter(|_| self.last.is_some_and(|(_, sample)| sample.head.is_some()));
        since.map_or(Duration::ZERO, |(_, since)| now.saturating_duration_since(*since))
    }

    /// Bytes that the receiver takes in 250 ms, clamped.
    pub(crate) fn soft(&self, bounds: &Bounds) -> usize {
        let in_time = self.drained.get() * SOFT.as_secs_f64();
        (in_time as usize).clamp(SOFT_FLOOR_BYTES, (bounds.hard() / 2).max(SOFT_FLOOR_BYTES))
    }

    /// Evaluates one more sample; returns the change of state, if any.
    pub(crate) fn look(&mut self, sample: Sample, bounds: &Bounds, now: Instant) -> Option<Transition> {
        self.learn(sample, now);
        let soft = self.soft(bounds);
        let waiting = sample.waiting();
        self.over_since = (waiting > soft).then(|| self.over_since.unwrap_or(now));
        self.full_since = bounds.are_nearly_reached(&sample).then(|| self.full_since.unwrap_or(now));
        let is_under = waiting < soft / 2 && sample.tail_messages == 0;
        self.under_since = is_under.then(|| self.under_since.unwrap_or(now));
        let lasts = |since: Option<Instant>, span: Duration| {
            since.is_some_and(|since| now.saturating_duration_since(since) >= span)
        };
        let to = match self.pace {
            Pace::Normal | Pace::Watch if bounds.are_passed(&sample) => Pace::Spooling,
            Pace::Normal | Pace::Watch if lasts(self.full_since, FULL) => Pace::Spooling,
            Pace::Watch if lasts(self.over_since, OVER_FOR_SPOOLING) && self.is_stale(&sample, soft, now) => {
                Pace::Spooling
            }
            Pace::Normal if lasts(self.over_since, OVER_FOR_WATCH) => Pace::Watch,
            Pace::Watch | Pace::Spooling if lasts(self.under_since, UNDER) => Pace::Normal,
            pace => pace,
        };
        let from = std::mem::replace(&mut self.pace, to);
        (from != to).then_some(Transition { from, to })
    }

    /// Reverts a transition that could not be made because messages arrived in between.
    pub(crate) fn stay(&mut self, pace: Pace) {
        self.pace = pace;
        self.under_since = None;
    }

    /// Whether more than `soft` could spill to disk and the oldest message is old.
    fn is_stale(&self, sample: &Sample, soft: usize, now: Instant) -> bool {
        let spoolable = sample.spoolable_bytes as u64 + sample.tail_bytes;
        spoolable > soft as u64 && (sample.tail_messages > 0 || self.head_age(now) >= STALE)
    }

    fn learn(&mut self, sample: Sample, now: Instant) {
        if let Some((at, before)) = self.last {
            let elapsed = now.saturating_duration_since(at);
            let drained = sample.taken_bytes.saturating_sub(before.taken_bytes);
            // Bytes taken plus growth of the queue have arrived; dropped messages do not count.
            let arrived = (sample.kept() + drained).saturating_sub(before.kept());
            self.drained.add(drained, elapsed);
            self.arrived.add(arrived, elapsed);
        }
        self.last = Some((now, sample));
        let head = sample.head.unwrap_or(sample.next);
        while self.seen.front().is_some_and(|(next, _)| *next <= head) {
            self.seen.pop_front();
        }
        let is_new = self.seen.back().is_none_or(|(next, _)| *next < sample.next);
        if is_new && self.seen.len() < SEEN_MAX {
            self.seen.push_back((sample.next, now));
        }
    }
}

impl Sample {
    /// Bytes queued in memory and on disk.
    fn waiting(&self) -> usize {
        self.bytes.saturating_add(usize::try_from(self.tail_bytes).unwrap_or(usize::MAX))
    }

    fn kept(&self) -> u64 {
        self.bytes as u64 + self.tail_bytes
    }
}

impl Bounds {
    /// Bytes from which on a receiver is slow at once.
    fn hard(&self) -> usize {
        (self.free_bytes / FREE_PARTS).max(2 * SOFT_FLOOR_BYTES).min(self.bytes / 2)
    }

    /// Whether messages should spill now, early enough to leave room until the next sample.
    fn are_passed(&self, sample: &Sample) -> bool {
        let spoolable = sample.spoolable_bytes.saturating_add(usize::try_from(sample.tail_bytes).unwrap_or(usize::MAX));
        spoolable > self.hard() || sample.spoolable_messages > self.messages / 2
    }

    /// Whether the queue is nearly full. Messages that cannot spill would be lost, so they may use nearly all of it.
    fn are_nearly_reached(&self, sample: &Sample) -> bool {
        let share = (self.free_bytes / FREE_PARTS).max(2 * SOFT_FLOOR_BYTES);
        sample.bytes > share.min(self.bytes / 8 * 7) || sample.messages > self.messages / 8 * 7
    }
}

/// A moving average of a rate per second.
#[derive(Debug, Default, Clone, Copy)]
struct Rate {
    sum: f64,
    /// Confidence in the average: approaches 1 within some seconds.
    weight: f64,
}

impl Rate {
    fn add(&mut self, amount: u64, elapsed: Duration) {
        let elapsed = elapsed.as_secs_f64();
        if elapsed <= 0.0 {
            return;
        }
        let new = 1.0 - (-elapsed / AVERAGED.as_secs_f64()).exp();
        self.sum += new * (amount as f64 / elapsed - self.sum);
        self.weight += new * (1.0 - self.weight);
    }

    fn get(self) -> f64 {
        if self.weight > 0.0 { self.sum / self.weight } else { 0.0 }
    }
}

impl Pace {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Watch => "watch",
            Self::Spooling => "spooling",
        }
    }
}

/// Time whose drained bytes make up the soft limit.
const SOFT: Duration = Duration::from_millis(250);
/// Minimum of the soft limit, for very slow or unknown receivers.
pub(crate) const SOFT_FLOOR_BYTES: usize = 64 * 1024;
/// One receiver may fill this fraction of the free budget. At least 64 such receivers fit, as each leaves less to the
/// next.
const FREE_PARTS: usize = 64;
/// How long more than the soft limit has to be queued.
const OVER_FOR_WATCH: Duration = Duration::from_millis(200);
const OVER_FOR_SPOOLING: Duration = Duration::from_secs(1);
/// How long the queue has to be nearly full.
///
/// A burst fills it only for a moment. A longer span would let a slow member of a share group, beside one that does not
/// read, get no more messages than the other member.
const FULL: Duration = Duration::from_millis(100);
/// Age of the oldest message from which on a backlog counts as stale.
const STALE: Duration = Duration::from_secs(1);
/// How long less than half of the soft limit has to be queued.
const UNDER: Duration = Duration::from_millis(500);
/// Time constant of the averages.
const AVERAGED: Duration = Duration::from_secs(2);
/// Maximum number of remembered samples; covers more than the longest span needed.
const SEEN_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(100);
    const ROOMY: Bounds = Bounds { bytes: 16 << 20, messages: 16_384, free_bytes: 1 << 30 };

    /// A receiver in virtual time, with messages of 1000 bytes.
    struct Model {
        health: Health,
        now: Instant,
        start: Instant,
        bounds: Bounds,
        came: u64,
        went: u64,
        spools: bool,
    }

    impl Model {
        fn new(bounds: Bounds, spools: bool) -> Self {
            let now = Instant::now();
            Self { health: Health::default(), now, start: now, bounds, came: 0, went: 0, spools }
        }

        /// Runs `looks` samples with `came` and `went` messages between two; returns each new state and its time in ms.
        fn run(&mut self, looks: usize, came: u64, went: u64) -> Vec<(Pace, u128)> {
            let mut paces = Vec::new();
            for _ in 0..looks {
                self.now += LOOK;
                self.came += came;
                self.went = (self.went + went).min(self.came);
                let messages = (self.came - self.went) as usize;
                let bytes = messages * 1000;
                let sample = Sample {
                    bytes,
                    messages,
                    spoolable_bytes: if self.spools { bytes } else { 0 },
                    spoolable_messages: if self.spools { messages } else { 0 },
                    head: (messages > 0).then_some(self.went),
                    next: self.came,
                    taken_bytes: self.went * 1000,
                    ..Sample::default()
                };
                if let Some(Transition { to, .. }) = self.health.look(sample, &self.bounds, self.now) {
                    paces.push((to, (self.now - self.start).as_millis()));
                }
            }
            paces
        }
    }

    #[test]
    fn receiver_that_keeps_up_stays_normal_at_any_rate() {
        let mut model = Model::new(ROOMY, true);
        assert_eq!(model.run(100, 10_000, 10_000), []);
        // 200 ms worth of messages stays queued all the time.
        let mut behind = Model::new(ROOMY, true);
        behind.run(1, 3_000, 1_500);
        assert_eq!(behind.run(100, 1_500, 1_500), []);
        assert!((behind.health.drain_rate() - 15e6).abs() < 1e6, "{}", behind.health.drain_rate());
        assert!((behind.health.arrival_rate() - 15e6).abs() < 1e6, "{}", behind.health.arrival_rate());
    }

    #[test]
    fn stopped_receiver_is_watched_then_spools_then_recovers() {
        let mut model = Model::new(ROOMY, true);
        assert_eq!(model.run(20, 100, 100), []);
        let paces = model.run(20, 100, 0);
        let [(Pace::Watch, watch), (Pace::Spooling, spooling)] = paces[..] else { panic!("{paces:?}") };
        assert!(watch < spooling, "{paces:?}");
        assert!((3_000..=4_500).contains(&spooling), "a second after more than 250 ms waits: {paces:?}");
        assert_eq!(model.run(20, 0, 0), [], "nothing is better while it waits");
        assert!(matches!(model.run(30, 0, 200)[..], [(Pace::Normal, _)]));
    }

    #[test]
    fn unspoolable_messages_may_use_nearly_all_of_the_queue() {
        let mut model = Model::new(ROOMY, false);
        let paces = model.run(100, 100, 0);
        assert!(matches!(paces[..], [(Pace::Watch, _)]), "{paces:?}");
        assert!(matches!(model.run(60, 100, 0)[..], [(Pace::Spooling, _)]), "seven eighths of the queue");
    }

    #[test]
    fn briefly_full_queue_does_not_make_receiver_slow() {
        let mut model = Model::new(ROOMY, false);
        for _ in 0..20 {
            assert_eq!(model.run(1, 16_000, 0), []);
            assert_eq!(model.run(10, 0, 16_000), []);
        }
        assert!(matches!(model.run(2, 16_000, 0)[..], [(Pace::Spooling, _)]));
    }

    #[test]
    fn less_free_memory_makes_receiver_slow_sooner() {
        let bytes_at = |free_bytes| {
            let mut model = Model::new(Bounds { free_bytes, ..ROOMY }, true);
            // Fills quickly enough that the messages' age does not matter.
            (0..).find(|_| model.run(1, 100, 0).iter().any(|(pace, _)| *pace == Pace::Spooling))
        };
        assert!(bytes_at(32 << 20) < bytes_at(1 << 30));
        assert!(bytes_at(0) < bytes_at(32 << 20));
        let mut quick = Model::new(Bounds { free_bytes: 0, ..ROOMY }, true);
        assert_eq!(quick.run(100, 60, 60), [], "what is gone at the next look hurts nobody");
    }

    #[test]
    fn burst_or_load_at_the_limit_causes_no_flapping() {
        let mut model = Model::new(ROOMY, true);
        for _ in 0..20 {
            assert_eq!(model.run(1, 2_000, 0), []);
            assert_eq!(model.run(10, 0, 2_000), []);
        }
        let mut limit = Model::new(ROOMY, true);
        let mut paces = limit.run(1, 60, 0);
        for round in 0..200 {
            paces.extend(limit.run(1, if round % 2 == 0 { 20 } else { 0 }, 10));
        }
        assert!(paces.len() <= 1, "{paces:?}");
    }

    #[test]
    fn on_disk_backlog_keeps_receiver_spooling() {
        let mut health = Health::default();
        let now = Instant::now();
        let mut sample = Sample { tail_messages: 10_000, tail_bytes: 10 << 20, ..Sample::default() };
        let transition = health.look(sample, &ROOMY, now);
        assert_eq!(transition, Some(Transition { from: Pace::Normal, to: Pace::Spooling }));
        (sample.tail_messages, sample.tail_bytes) = (1, 10);
        assert_eq!(health.look(sample, &ROOMY, now + 5 * LOOK), None);
        assert_eq!(health.look(sample, &ROOMY, now + 20 * LOOK), None, "one message is there");
        assert_eq!(health.look(Sample::default(), &ROOMY, now + 21 * LOOK), None);
        assert!(health.look(Sample::default(), &ROOMY, now + 26 * LOOK).is_some());
    }
}
