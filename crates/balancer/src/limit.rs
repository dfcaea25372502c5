//! How many messages a client should have outstanding, learnt from its acknowledgements.
//!
//! A message that is sent to a client that works on another one waits behind it, which may turn out long. So the message is
//! better kept with the group until some client has nothing to do. A client that works on several messages at a time, or
//! at the end of a long path, must have several to be busy. Clients do not tell, so it is learnt from two figures:
//!
//! ```text
//! U   time from sending to acknowledgement of a message that the client had alone
//! S   time for a message while the client had several: length of a busy period ÷ its messages
//! ```
//!
//! U / S is the number of messages that the client has in work or on the way while it is busy. If it is about 1, more
//! messages make the client no faster: it is [`Single`](Service::Single). The figures need no model of threads, paths,
//! proxies, batches, or habits of acknowledging.
//!
//! A client is tried while messages wait with the group: it gets more than its limit, so that S is measured. Tries and
//! messages alone alternate, so that both figures are known equally well. The clearer it is that a client is single, the
//! more messages must wait for a try.

use std::time::Duration;

use crate::log2::log2_q16;

/// How a client serves messages, as its acknowledgements show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// Too few acknowledgements so far.
    #[default]
    Unknown,
    /// More messages do not make it faster: it gets the next one when it has none.
    Single,
    /// As [`Single`](Self::Single), and several messages make it slower, because it acknowledges a message when it has
    /// read the next one.
    Slowed,
    /// Its messages take equally long. It gets them at once, since it is known when it can begin with them.
    Regular,
    /// It needs several messages to be busy.
    Parallel,
}

impl Service {
    /// Returns its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Single => "single",
            Self::Slowed => "slowed",
            Self::Regular => "regular",
            Self::Parallel => "parallel",
        }
    }
}

/// The lesson about a client, with its figures; see [`MemberLoad::snapshot`](crate::MemberLoad::snapshot).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lesson {
    /// How it serves messages.
    pub service: Service,
    /// Mean time from sending to acknowledgement of a message that it had alone; zero = unknown.
    pub alone: Duration,
    /// Mean time for a message while it had several, in the deepest of its queues that are known; zero = unknown.
    pub busy: Duration,
    /// Busy periods in which it had several messages, since it connected.
    pub tries: u64,
    /// Time for a message in the last of them.
    pub last_try: Duration,
}

/// The way in which a client serves messages, in one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Learnt(pub(crate) u8);

impl Learnt {
    const UNKNOWN: Self = Self(0);
    /// It should have messages alone, because it was tried more often.
    const UNKNOWN_ALONE: Self = Self(1);
    const SINGLE: Self = Self(2);
    const SINGLE_ALONE: Self = Self(3);
    /// There is little doubt.
    const SINGLE_CLEAR: Self = Self(4);
    /// Several messages make it slower: it acknowledges the first when it has read the second.
    const SINGLE_SLOWED: Self = Self(5);
    /// Its messages take equally long, so that it is known when it can begin with the next one.
    const REGULAR: Self = Self(6);
    /// The messages that it has at once are added.
    const PARALLEL: u8 = 6;

    fn parallel(at_once: f64) -> Self {
        Self(Self::PARALLEL.saturating_add(at_once.round().max(1.0) as u8))
    }

    #[inline]
    pub(crate) fn is_unknown(self) -> bool {
        self.0 <= Self::UNKNOWN_ALONE.0
    }

    fn service(self) -> Service {
        match self {
            Self::SINGLE_SLOWED => Service::Slowed,
            Self::REGULAR => Service::Regular,
            _ if self.is_unknown() => Service::Unknown,
            Self(learnt) if learnt < Self::PARALLEL => Service::Single,
            _ => Service::Parallel,
        }
    }

    /// Messages that a parallel client has in work or on the way while it is busy; otherwise 0.
    #[inline]
    pub(crate) fn at_once(self) -> u64 {
        self.0.saturating_sub(Self::PARALLEL).into()
    }

    /// Returns how many messages the client may have outstanding; `None` = any number.
    ///
    /// `told`: its concurrency, 0 = unknown. `waiting`: messages that wait for each member of the group, in sixteenths.
    pub(crate) fn limit(self, told: u64, is_far: bool, waiting: u64) -> Option<u64> {
        let (least, tries) = match (self, told) {
            (Self::REGULAR, _) => return None,
            // It would idle for a way and back after each message.
            (Self::UNKNOWN | Self::UNKNOWN_ALONE, 0 | 1) if is_far => return None,
            (Self::UNKNOWN, 0) => (1, Tries::UNKNOWN),
            (Self::UNKNOWN, 1) => (1, Tries::TOLD),
            (Self::SINGLE, _) => (1, Tries::SINGLE),
            (Self::SINGLE_CLEAR, _) => (1, Tries::CLEAR),
            (Self::SINGLE_SLOWED, _) => (1, Tries::SLOWED),
            (Self::UNKNOWN_ALONE, 0 | 1) | (Self::SINGLE_ALONE, _) => return Some(1),
            (Self::UNKNOWN | Self::UNKNOWN_ALONE, told) => (with_behind(told.min(TOLD_MOST)), Tries::PARALLEL),
            (_, told) => {
                let at_once = self.at_once() + 1;
                let is_likely = (at_once..=2 * at_once).contains(&told);
                (with_behind(if is_likely { told } else { at_once }), Tries::PARALLEL)
            }
        };
        Some(least << tries.doublings(waiting / least))
    }
}

/// By how much a limit grows while messages wait.
struct Tries {
    /// The limit doubles when 1, 3, 7, … messages wait for each member, times 4 and divided by this.
    quarters: u64,
    /// How often it doubles at most.
    most: u32,
}

impl Tries {
    const UNKNOWN: Self = Self { quarters: 16, most: 4 };
    const TOLD: Self = Self { quarters: 16, most: 3 };
    const SINGLE: Self = Self { quarters: 16, most: 2 };
    const CLEAR: Self = Self { quarters: 16, most: 1 };
    const SLOWED: Self = Self { quarters: 1, most: 1 };
    const PARALLEL: Self = Self { quarters: 16, most: 1 };

    /// `waiting` in sixteenths.
    fn doublings(&self, waiting: u64) -> u32 {
        (1 + self.quarters * waiting / 64).ilog2().min(self.most)
    }
}

/// Learns how one client serves messages. Pure: no clock, no atomics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Learner {
    verdict: Verdict,
    /// U / S.
    at_once: f64,
    /// Whether there is little doubt that the client is single, and whether several messages make it slower.
    is_clear: bool,
    is_slowed: bool,
    /// U: times of messages that the client had alone.
    alone: Times,
    /// Times of first messages of busy periods. They are longer than U if the client acknowledges late.
    first: Times,
    /// S: times with an average of at least 2, 4, 8 messages.
    busy: [Times; 3],
    period: Period,
    tries: u64,
    last_try_ns: u64,
    /// Times so far, of all kinds.
    age: u32,
    /// Time of the last acknowledgement; 0 = none.
    last_at: u64,
    /// Messages outstanding after it, and those of them that the client does not work on.
    left: u64,
    held: u64,
    /// Messages acknowledged at the last instant, and lately at one instant.
    instant: u64,
    batch: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Verdict {
    #[default]
    Unknown,
    Single,
    Parallel,
}

/// A time in which the client always had a message, or a part of it.
#[derive(Clone, Copy, Debug, Default)]
struct Period {
    from: u64,
    /// Acknowledged messages.
    messages: u64,
    acknowledgements: u64,
    /// Sum of the outstanding messages before each acknowledgement.
    outstanding: u64,
    /// Whether the client still has messages.
    goes_on: bool,
    /// Whether it is the rest of a longer one.
    is_rest: bool,
    /// Whether acknowledgements in it are not known.
    is_broken: bool,
}

impl Period {
    /// The rest after a part of a period.
    fn rest(from: u64, goes_on: bool) -> Self {
        Self { from, goes_on, is_rest: goes_on, ..Self::default() }
    }
}

/// Acknowledgements of one instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) now: u64,
    /// Messages acknowledged now, and outstanding before.
    pub(crate) messages: u64,
    pub(crate) outstanding: u64,
    /// When the first of the acknowledged messages was sent.
    pub(crate) first_sent_at: u64,
}

impl Learner {
    /// Takes note of acknowledgements from which it does not learn.
    pub(crate) fn interrupt(&mut self) {
        self.period = Period { is_broken: true, ..Period::default() };
    }

    /// Ends a busy period without an acknowledgement.
    #[inline]
    pub(crate) fn ended(&mut self) {
        if self.period.goes_on {
            self.period = Period::default();
        }
    }

    /// Takes acknowledgements.
    pub(crate) fn acknowledged(&mut self, seen: &Seen) {
        let left = seen.outstanding.saturating_sub(seen.messages);
        // It got the message although it was silent, and acknowledges it before older ones.
        let was_silent = seen.first_sent_at.saturating_sub(self.last_at) >= LATE_NS;
        self.held = if was_silent && self.left > 0 { left.min(HELD_MOST) } else { self.held.min(left) };
        self.instant = if seen.now == self.last_at { self.instant + seen.messages } else { seen.messages };
        self.batch = self.instant.max(self.batch.saturating_sub((self.batch / BATCHES_KEPT).max(1)));
        (self.last_at, self.left) = (seen.now, left);
        self.learn(&Seen { outstanding: seen.outstanding.saturating_sub(self.held).max(seen.messages), ..*seen });
    }

    /// Messages that it does not work on.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Whether it collects messages, and acknowledges them together.
    pub(crate) fn collects(&self) -> bool {
        self.batch >= BATCH
    }

    fn learn(&mut self, seen: &Seen) {
        if self.period.is_broken {
            self.period = Period::rest(seen.now, seen.outstanding > seen.messages);
            return;
        }
        if !self.period.goes_on {
            self.period = Period { from: seen.first_sent_at, ..Period::default() };
            self.first.add(seen.now.saturating_sub(seen.first_sent_at), 1);
        }
        let period = &mut self.period;
        period.messages += seen.messages;
        period.acknowledgements += 1;
        period.outstanding += seen.outstanding;
        period.goes_on = seen.outstanding > seen.messages;
        if period.goes_on && period.messages < PERIOD_MOST {
            return;
        }
        let Period { from, messages, acknowledgements, outstanding, goes_on, is_rest, .. } = *period;
        self.period = Period::rest(seen.now, goes_on);
        let ns = seen.now.saturating_sub(from);
        if messages > 1 || goes_on {
            let depth = (outstanding / acknowledgements).max(2);
            self.busy[depth.ilog2().min(3) as usize - 1].add(ns, messages);
            (self.tries, self.last_try_ns) = (self.tries + 1, ns / messages.max(1));
        } else if !is_rest && (self.verdict != Verdict::Parallel || self.alone.count < LEAST) {
            self.alone.add(ns, messages);
        }
        self.age += 1;
        if self.age.is_multiple_of(KEPT) {
            // A busy client seldom has a message alone.
            let alone = [&mut self.alone, &mut self.first].into_iter().filter(|times| times.count > 2.0 * LEAST);
            alone.chain(&mut self.busy).for_each(Times::halve);
        }
        if self.verdict == Verdict::Parallel && self.age.is_multiple_of(CHECKED_AFTER) {
            (self.alone, self.first, self.busy) = Default::default();
        }
        self.judge();
    }

    fn judge(&mut self) {
        let Some((busy, border)) = self.telling() else { return };
        let is_rough = self.alone.count < LEAST;
        let alone = if is_rough { &self.first } else { &self.alone };
        if alone.count < LEAST {
            return;
        }
        let error = (alone.error() + busy.error()).sqrt();
        let at_once = alone.mean() / busy.mean();
        let ln = at_once.ln() - border;
        self.verdict = match self.verdict {
            Verdict::Unknown if is_rough && ln - ROUGH <= error / 2.0 => return,
            Verdict::Unknown if ln > error / 2.0 => Verdict::Parallel,
            Verdict::Unknown => Verdict::Single,
            Verdict::Single if ln > error => Verdict::Parallel,
            Verdict::Parallel if ln < -error / 2.0 => {
                // Its tries are to show whether it is.
                self.busy = Default::default();
                Verdict::Single
            }
            same => same,
        };
        self.is_clear = ln < -error / 2.0;
        self.is_slowed = at_once.ln() < -error / 2.0;
        self.at_once = at_once;
    }

    /// The times that the verdict is about, and their border: of the deepest queues that are known of a parallel client, and
    /// otherwise the most.
    fn telling(&self) -> Option<(Times, f64)> {
        let mut known = self.busy.iter().zip(BORDERS).filter(|(busy, _)| busy.count >= LEAST);
        let telling = match self.verdict {
            Verdict::Parallel => known.next_back(),
            _ => known.max_by(|(one, _), (other, _)| one.count.total_cmp(&other.count)),
        };
        telling.map(|(busy, border)| (*busy, border))
    }

    pub(crate) fn lesson(&self) -> Lesson {
        let mean = |times: &Times| Duration::from_nanos(if times.count > 0.0 { times.mean() as u64 } else { 0 });
        Lesson {
            service: self.learnt().service(),
            alone: mean(&self.alone),
            busy: self.telling().map_or(Duration::ZERO, |(busy, _)| mean(&busy)),
            tries: self.tries,
            last_try: Duration::from_nanos(self.last_try_ns),
        }
    }

    pub(crate) fn learnt(&self) -> Learnt {
        let tried: f64 = self.busy.iter().map(|busy| busy.count).sum();
        let rarity = if self.is_clear { CLEAR_RARITY } else { 1.0 };
        match self.verdict {
            Verdict::Unknown if self.collects() => Learnt::parallel(self.batch as f64),
            Verdict::Unknown if tried > self.alone.count + TRIES_FIRST && tried < TRIES_MOST => Learnt::UNKNOWN_ALONE,
            Verdict::Unknown if self.alone.count >= LEAST && self.alone.variation() < EQUAL => Learnt::REGULAR,
            Verdict::Unknown => Learnt::UNKNOWN,
            Verdict::Single if self.alone.count >= LEAST && self.alone.variation() < REGULAR => Learnt::REGULAR,
            Verdict::Single if self.is_slowed => Learnt::SINGLE_SLOWED,
            Verdict::Single if tried * rarity > self.alone.count => Learnt::SINGLE_ALONE,
            Verdict::Single if self.is_clear => Learnt::SINGLE_CLEAR,
            Verdict::Single => Learnt::SINGLE,
            Verdict::Parallel => Learnt::parallel(self.at_once),
        }
    }
}

/// Returns how many messages a client has together with those behind the ones that it works on, so that its threads stay
/// busy.
///
/// Acknowledgements keep the order of receipt `[MQTT-4.6.0-2]`. So the acknowledgements of c messages come when the longest is done: on
/// average after 1 + 1/2 + … + 1/c ≈ 1 + ln c processing times, if these are exponential.
pub(crate) fn with_behind(concurrency: u64) -> u64 {
    concurrency + ((concurrency * log2_q16(concurrency) * LN_2_PERCENT / 100) >> 16)
}

/// Sums over times, each with the number of messages acknowledged in it.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    count: f64,
    messages: f64,
    ns: f64,
    /// Sums of squares and of products.
    ns_ns: f64,
    ns_messages: f64,
    messages_messages: f64,
}

impl Times {
    fn add(&mut self, ns: u64, messages: u64) {
        let (ns, messages) = (ns as f64, messages as f64);
        self.count += 1.0;
        self.messages += messages;
        self.ns += ns;
        self.ns_ns += ns * ns;
        self.ns_messages += ns * messages;
        self.messages_messages += messages * messages;
    }

    fn halve(&mut self) {
        let Self { count, messages, ns, ns_ns, ns_messages, messages_messages } = self;
        [count, messages, ns, ns_ns, ns_messages, messages_messages].into_iter().for_each(|sum| *sum /= 2.0);
    }

    /// Time for a message.
    fn mean(&self) -> f64 {
        (self.ns / self.messages.max(1.0)).max(1.0)
    }

    /// Squared coefficient of variation, times the messages of a time.
    fn variation(&self) -> f64 {
        let mean = self.mean();
        let residue = self.ns_ns - 2.0 * mean * self.ns_messages + mean * mean * self.messages_messages;
        residue.max(0.0) / (self.ns * self.ns).max(1.0) * self.count
    }

    /// Squared standard error of the mean, relative to it.
    fn error(&self) -> f64 {
        // A few times may happen to be equal, and times of a network vary too.
        let least = if self.count < 2.0 * LEAST { VARIATION_FEW } else { VARIATION_LEAST };
        self.variation() / (self.count - 1.0).max(1.0) + least / self.count.max(1.0)
    }
}

/// Largest concurrency that is believed before the client's acknowledgements show it.
const TOLD_MOST: u64 = 8;
/// Silence from which on a member may get a message beyond its limit.
pub(crate) const LATE_NS: u64 = 1_000_000_000;
/// Messages acknowledged at one instant by a client that collects them.
const BATCH: u64 = 8;
/// Instants after which a batch is forgotten.
const BATCHES_KEPT: u64 = 16;
/// Messages that a client may hold without working on them.
const HELD_MOST: u64 = 8;
/// Messages after which a busy period is divided.
const PERIOD_MOST: u64 = 8;
/// Times that suffice to judge.
const LEAST: f64 = 4.0;
/// Logarithms of U / S between a single and a parallel client, with at least 2, 4, 8 messages. A client with threads that
/// acknowledges in the order of receipt is faster by 1.33, 1.92, 2.7, if its work is exponential.
const BORDERS: [f64; 3] = [0.2, 0.3, 0.4];
/// Addition to a border if only the times of first messages are known.
const ROUGH: f64 = 0.5;
/// Messages alone for each try of a client that is clearly single.
const CLEAR_RARITY: f64 = 4.0;
/// Tries before the client has had a message alone.
const TRIES_FIRST: f64 = 8.0;
/// Tries after which it is no use to wait for a message alone: the client completes none.
const TRIES_MOST: f64 = 32.0;
/// Times after which the times of a parallel client are measured anew: its messages may take another time now.
const CHECKED_AFTER: u32 = 8192;
/// Times of all kinds after which all earlier ones count half.
const KEPT: u32 = 192;
/// Squared coefficient of variation that is assumed in addition, while there are few times and later.
const VARIATION_FEW: f64 = 0.5;
const VARIATION_LEAST: f64 = 0.02;
/// Squared coefficients of variation of regular work: of a client of which only times alone are known, and of a single one.
const EQUAL: f64 = 0.006;
const REGULAR: f64 = 0.05;
const LN_2_PERCENT: u64 = 69;

#[cfg(test)]
mod tests;
