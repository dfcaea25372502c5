//! Whether a receiver keeps up, judged from looks at its queue: pure, and in any time.
//!
//! ```text
//!            waits more than soft for 0.2 s           waits more than hard, or fills its queue for 0.1 s,
//!                                                     or the oldest that may go to disk waits for a second
//!   Normal ──────────────────────────────► Watch ──────────────────────────────► Spooling
//!      ▲                                     │                                       │
//!      └─────────────────────────────────────┴───────────────────────────────────────┘
//!                     for 0.5 s less than half of soft, and nothing on disk alone
//! ```
//!
//! *Soft* is what the receiver itself takes in 250 ms. *Hard* is a part of what the budget of all queues has left, so that
//! the fuller memory is, the less one receiver may fill.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How a receiver keeps up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum Pace {
    /// As fast as messages come.
    #[default]
    Normal,
    /// More slowly: share groups prefer other members.
    Watch,
    /// What is kept on disk stays there until it is about to be sent.
    Spooling,
}

/// What one look at a queue shows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    /// In memory.
    pub(crate) bytes: usize,
    pub(crate) messages: usize,
    /// Of these, what can be on disk instead.
    pub(crate) spoolable_bytes: usize,
    pub(crate) spoolable_messages: usize,
    /// On disk alone.
    pub(crate) tail_messages: usize,
    pub(crate) tail_bytes: u64,
    /// The oldest message, by a number.
    pub(crate) head: Option<u64>,
    /// The number of the message that comes next.
    pub(crate) next: u64,
    /// Bytes that the receiver has taken from memory since it connected.
    pub(crate) taken_bytes: u64,
    /// Bytes that its socket has not taken, as far as is known.
    pub(crate) unsent_bytes: usize,
}

/// How much may wait, for now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Of one queue, as configured.
    pub(crate) bytes: usize,
    pub(crate) messages: usize,
    /// What all queues together have left.
    pub(crate) free_bytes: usize,
}

/// What is known of one connection of a receiver, look by look.
#[derive(Debug, Default)]
pub(crate) struct Health {
    pace: Pace,
    drained: Rate,
    arrived: Rate,
    last: Option<(Instant, Sample)>,
    /// The next numbers that earlier looks have seen: a message below one of them is as old as that look.
    seen: VecDeque<(u64, Instant)>,
    over_since: Option<Instant>,
    full_since: Option<Instant>,
    under_since: Option<Instant>,
}

/// A change of pace, for people.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Transition {
    pub(crate) from: Pace,
    pub(crate) to: Pace,
}

impl Health {
    pub(crate) fn pace(&self) -> Pace {
        self.pace
    }

    /// Bytes a second that the receiver takes, over about two seconds.
    pub(crate) fn drain_rate(&self) -> f64 {
        self.drained.get()
    }

    /// Bytes a second that come for it.
    pub(crate) fn arrival_rate(&self) -> f64 {
        self.arrived.get()
    }

    /// For how long the oldest message in memory has waited at least.
    pub(crate) fn head_age(&self, now: Instant) -> Duration {
        let since = self.seen.front().filter(|_| self.last.is_some_and(|(_, sample)| sample.head.is_some()));
        since.map_or(Duration::ZERO, |(_, since)| now.saturating_duration_since(*since))
    }

    /// What the receiver takes in 250 ms, in bytes, within bounds.
    pub(crate) fn soft(&self, bounds: &Bounds) -> usize {
        let in_time = self.drained.get() * SOFT.as_secs_f64();
        (in_time as usize).clamp(SOFT_FLOOR_BYTES, (bounds.hard() / 2).max(SOFT_FLOOR_BYTES))
    }

    /// Looks once more; what has changed by it.
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

    /// The change was not to be: messages have come meanwhile.
    pub(crate) fn stay(&mut self, pace: Pace) {
        self.pace = pace;
        self.under_since = None;
    }

    /// Whether what can go to disk is more than `soft`, and old.
    fn is_stale(&self, sample: &Sample, soft: usize, now: Instant) -> bool {
        let spoolable = sample.spoolable_bytes as u64 + sample.tail_bytes;
        spoolable > soft as u64 && (sample.tail_messages > 0 || self.head_age(now) >= STALE)
    }

    fn learn(&mut self, sample: Sample, now: Instant) {
        if let Some((at, before)) = self.last {
            let elapsed = now.saturating_duration_since(at);
            let drained = sample.taken_bytes.saturating_sub(before.taken_bytes);
            // What was taken and what waits more than before has come; what was dropped has not.
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
    /// Bytes that wait, wherever.
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

    /// What can go to disk does so early, while there is room for what comes until the next look.
    fn are_passed(&self, sample: &Sample) -> bool {
        let spoolable = sample.spoolable_bytes.saturating_add(usize::try_from(sample.tail_bytes).unwrap_or(usize::MAX));
        spoolable > self.hard() || sample.spoolable_messages > self.messages / 2
    }

    /// What cannot would be lost, so that it has nearly all of the queue.
    fn are_nearly_reached(&self, sample: &Sample) -> bool {
        let share = (self.free_bytes / FREE_PARTS).max(2 * SOFT_FLOOR_BYTES);
        sample.bytes > share.min(self.bytes / 8 * 7) || sample.messages > self.messages / 8 * 7
    }
}

/// A moving average of something a second.
#[derive(Debug, Default, Clone, Copy)]
struct Rate {
    sum: f64,
    /// How much of the average is known: 1 after some seconds.
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

/// What a receiver takes in so long may wait for it.
const SOFT: Duration = Duration::from_millis(250);
/// However slow it is, or little is known.
pub(crate) const SOFT_FLOOR_BYTES: usize = 64 * 1024;
/// One receiver may fill so many parts of what all queues have left: then there is room for 64 such ones and more, since
/// each leaves the next less.
const FREE_PARTS: usize = 64;
/// How long more than soft has to wait.
const OVER_FOR_WATCH: Duration = Duration::from_millis(200);
const OVER_FOR_SPOOLING: Duration = Duration::from_secs(1);
/// How long the queue is nearly full: a burst fills it for a moment, and a member of a share group that is slow for that,
/// beside one that does not read, gets no more than that one.
const FULL: Duration = Duration::from_millis(100);
/// How old the oldest message is then.
const STALE: Duration = Duration::from_secs(1);
/// How long little has to wait.
const UNDER: Duration = Duration::from_millis(500);
/// Span of the averages.
const AVERAGED: Duration = Duration::from_secs(2);
/// Looks that are remembered: more than lie in the span that matters.
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

        /// For so many looks, messages come and go, so many between two; the paces that it went to, and when in ms.
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
    fn who_keeps_up_is_normal_however_much_there_is() {
        let mut model = Model::new(ROOMY, true);
        assert_eq!(model.run(100, 10_000, 10_000), []);
        // 200 ms of what it takes waits, all the time.
        let mut behind = Model::new(ROOMY, true);
        behind.run(1, 3_000, 1_500);
        assert_eq!(behind.run(100, 1_500, 1_500), []);
        assert!((behind.health.drain_rate() - 15e6).abs() < 1e6, "{}", behind.health.drain_rate());
        assert!((behind.health.arrival_rate() - 15e6).abs() < 1e6, "{}", behind.health.arrival_rate());
    }

    #[test]
    fn who_stops_is_watched_then_spools_and_is_normal_when_it_has_caught_up() {
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
    fn what_cannot_go_to_disk_waits_in_memory_as_long_as_there_is_room() {
        let mut model = Model::new(ROOMY, false);
        let paces = model.run(100, 100, 0);
        assert!(matches!(paces[..], [(Pace::Watch, _)]), "{paces:?}");
        assert!(matches!(model.run(60, 100, 0)[..], [(Pace::Spooling, _)]), "seven eighths of the queue");
    }

    #[test]
    fn a_queue_that_is_full_for_a_moment_makes_nobody_slow() {
        let mut model = Model::new(ROOMY, false);
        for _ in 0..20 {
            assert_eq!(model.run(1, 16_000, 0), []);
            assert_eq!(model.run(10, 0, 16_000), []);
        }
        assert!(matches!(model.run(2, 16_000, 0)[..], [(Pace::Spooling, _)]));
    }

    #[test]
    fn the_less_memory_is_left_the_sooner_a_receiver_is_slow() {
        let bytes_at = |free_bytes| {
            let mut model = Model::new(Bounds { free_bytes, ..ROOMY }, true);
            // Quickly enough that age does not matter.
            (0..).find(|_| model.run(1, 100, 0).iter().any(|(pace, _)| *pace == Pace::Spooling))
        };
        assert!(bytes_at(32 << 20) < bytes_at(1 << 30));
        assert!(bytes_at(0) < bytes_at(32 << 20));
        let mut quick = Model::new(Bounds { free_bytes: 0, ..ROOMY }, true);
        assert_eq!(quick.run(100, 60, 60), [], "what is gone at the next look hurts nobody");
    }

    #[test]
    fn a_burst_changes_nothing_and_a_receiver_at_the_limit_does_not_flutter() {
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
    fn what_waits_on_disk_alone_counts() {
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
