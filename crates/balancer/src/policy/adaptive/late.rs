//! Late binding: a message waits with the group until a member can begin with it.
//!
//! A message that is sent early waits behind the member's present one, which may turn out long. So a member that works on
//! one message at a time, as [learnt](crate::limit), gets the next one when it has none. Other members count as for
//! [`adaptive`](super): a message goes to them at once, unless a busy single member is expected to begin with it earlier.
//!
//! While many messages wait, single members get more than one. No member is idle then, and their acknowledgements show
//! whether they really work on one at a time.

use super::{RANK_SHIFT, READY, SCAN_MAX, Sighting, Weight, in_steps, sample, weigh};
use crate::{
    availability::Finding,
    estimate::flag,
    group_view::View,
    hot::{Hot, mark},
    limit::{LATE_NS, with_behind},
    policy::Policy,
    rng::Rng,
    rules::{LateBinding, Rules},
    seats::Seats,
    sync::Relaxed,
};

/// A message that may wait.
pub(crate) struct Message<'a> {
    pub(crate) view: &'a View,
    pub(crate) rules: &'a Rules,
    /// Whether any member of the group acknowledges single messages, and is not late.
    pub(crate) has_acks: bool,
    /// Other messages that wait for each member of the group, in sixteenths.
    pub(crate) waiting: u64,
    pub(crate) now: u64,
}

/// Returns the best slot among those that can begin with the message now; `None` if the message should wait.
///
/// With more than [`SCAN_MAX`] slots, a random few are compared first. They suffice if one of them can begin.
pub(crate) fn choose(seats: &Seats, message: &Message<'_>, rng: &mut Rng) -> Option<Sighting> {
    let loads = seats.loads();
    if loads.len() > SCAN_MAX {
        let mut some = Found::NONE;
        for _ in 0..SAMPLES {
            for index in sample(loads.len(), rng) {
                let hot = loads[index].hot();
                some.compare(message, index, hot, hot.sent_at());
            }
            if some.ready.rank() == READY || some.full.rank() > READY {
                break;
            }
        }
        if let Some(seen) = some.best().filter(|_| some.ready.or(some.other).rank() == READY) {
            return Some(Sighting { is_by_turn: false, ..seen });
        }
    }
    let mut all = Found::NONE;
    let mut index = 0;
    for (line, turns) in seats.by_line() {
        for (load, turn) in line.iter().zip(turns) {
            all.compare(message, index, load.hot(), turn.load(Relaxed));
            index += 1;
        }
    }
    all.best()
}

/// The best candidates so far.
struct Found {
    /// Of those that have less than their limit.
    ready: Best,
    /// Of those that may have any number, or are silent.
    other: Best,
    full: Best,
    /// Of those that refused their last message, and have never acknowledged one.
    refusing: Best,
}

impl Found {
    const NONE: Self = Self { ready: Best::NONE, other: Best::NONE, full: Best::NONE, refusing: Best::NONE };

    fn compare(&mut self, message: &Message<'_>, index: usize, hot: &Hot, turn: u64) {
        if hot.eligibility().has(Finding::Stuck) {
            return;
        }
        let &Message { view, rules, waiting, now, .. } = message;
        let weight = weigh(hot, view, now);
        let candidate = Best::of(hot, &weight, turn, index);
        let messages = hot.in_work();
        let is_late = weight.late > late_ns(weight.service);
        let refuses = hot.marks() & mark::REFUSED != 0 && hot.flags() & flag::ACKS == 0;
        let (best, candidate) = match limit_by(hot, rules, waiting) {
            // It would refuse one after the other while nothing is known of the others' speed.
            _ if refuses && now.saturating_sub(hot.sent_at()) < LATE_NS => (&mut self.refusing, candidate),
            // By the clock it works, although it has no message: it refused the last one.
            Some(limit) if messages < limit && messages == 0 && weight.wait > 0 => (&mut self.other, candidate),
            Some(limit) if messages < limit => (&mut self.ready, candidate),
            Some(_) if messages < lifted(hot, message, &weight) => (&mut self.other, candidate),
            Some(_) if hot.flags() & flag::ACKS == 0 => (&mut self.full, candidate.at_some_time()),
            Some(_) => (&mut self.full, candidate),
            None if is_late && messages >= UNSURE_MOST => (&mut self.full, candidate.at_some_time()),
            None => (&mut self.other, candidate),
        };
        *best = best.or(candidate);
    }

    fn best(&self) -> Option<Sighting> {
        let Self { ready, other, full, refusing } = self;
        let best = ready.or(*other);
        if best.or(*full).merit == u128::MAX {
            return refusing.sighting();
        }
        // A full member may begin with the message earlier than one without a limit.
        let waits =
            full.rank() < best.rank() || full.rank() == READY && ready.rank() != READY && full.merit < other.merit;
        if waits { None } else { best.sighting() }
    }
}

/// A candidate.
#[derive(Clone, Copy)]
struct Best {
    merit: u128,
    sighting: Sighting,
}

impl Best {
    const NONE: Self = Self { merit: u128::MAX, sighting: NO_SIGHTING };

    fn of(hot: &Hot, weight: &Weight, turn: u64, index: usize) -> Self {
        // A parallel member begins with several messages at once; the way to it and back is no work. U is longer than the
        // work where acknowledgements keep the order of receipt: half of U / S was best in simulations.
        let at_once = if hot.concurrency() > 1 { 0 } else { hot.learnt().at_once().saturating_sub(1) / 2 };
        let at_once = at_once.saturating_mul(weight.service).saturating_sub(2 * hot.delay_ns());
        let key = hot.rank() << RANK_SHIFT | in_steps(weight.wait.saturating_sub(at_once), weight.penalty) & KEY_MASK;
        let sighting = Sighting { index, finish: hot.finish(), service: weight.service, is_by_turn: true };
        Self { merit: u128::from(key) << 64 | u128::from(turn), sighting }
    }

    /// The candidate if nothing shows when it begins with the message.
    fn at_some_time(self) -> Self {
        Self { merit: self.merit | u128::from(KEY_MASK) << 64, ..self }
    }

    fn or(self, other: Self) -> Self {
        if other.merit < self.merit { other } else { self }
    }

    fn rank(self) -> u64 {
        (self.merit >> (64 + RANK_SHIFT)) as u64
    }

    fn sighting(self) -> Option<Sighting> {
        (self.merit != u128::MAX).then_some(self.sighting)
    }
}

/// Returns how many messages the member may have outstanding while `waiting` others wait for each member, in sixteenths;
/// `None` = any number.
pub(crate) fn limit(hot: &Hot, rules: &Rules, waiting: u64) -> Option<u64> {
    (rules.policy == Policy::Adaptive).then(|| limit_by(hot, rules, waiting)).flatten()
}

#[inline]
fn limit_by(hot: &Hot, rules: &Rules, waiting: u64) -> Option<u64> {
    if !may_wait_for(hot) {
        return None;
    }
    let is_far = hot.delay_ns() >= FAR_NS;
    let limit = match (rules.late_binding, told(hot, rules)) {
        (LateBinding::Off, _) | (LateBinding::Told, 0) => None,
        (LateBinding::Told, told) => Some(with_behind(told) + on_the_way(hot)),
        (LateBinding::Learn, told) => hot.learnt().limit(told, is_far, waiting),
    };
    // It may take messages and never acknowledge them.
    let is_unseen = hot.flags() & flag::ACKS == 0 && rules.late_binding == LateBinding::Learn;
    let limit = if is_unseen { Some(limit.map_or(UNSURE_MOST, |limit| limit.min(UNSURE_MOST))) } else { limit };
    // A message beyond it would wait in the client's queue.
    match hot.receive_maximum() {
        0 => limit,
        most => Some(limit.map_or(most, |limit| limit.min(most))),
    }
}

/// Returns the limit of a member that is silent: it may wait for more messages before it acknowledges, or hold back one
/// acknowledgement for ever.
#[cold]
fn lifted(hot: &Hot, message: &Message<'_>, weight: &Weight) -> u64 {
    let &Message { rules, has_acks, now, .. } = message;
    if rules.late_binding != LateBinding::Learn || told(hot, rules) > 0 {
        return 0;
    }
    let messages = hot.in_work();
    let lifted = if !has_acks {
        // The number doubles after a silence that is as long as it is large.
        let is_silent = now.saturating_sub(hot.sent_at()) >= messages.max(1) * SILENCE_NS;
        let goes_on = messages > UNSURE_MOST && !messages.is_power_of_two();
        if is_silent || goes_on { messages + 1 } else { 0 }
    } else if hot.flags() & flag::ACKS != 0 {
        let times = weight.late / late_ns(weight.service);
        if times == 0 { 0 } else { UNSURE_MOST.min(2 + u64::from(times.ilog2())) }
    } else {
        0
    };
    match hot.receive_maximum() {
        0 => lifted,
        most => lifted.min(most),
    }
}

/// Returns whether the member acknowledges single messages, and is not late with one.
pub(crate) fn acknowledges_singly(hot: &Hot, now: u64) -> bool {
    let is_late = || now.saturating_sub(hot.due()) > late_ns(hot.speed().processing_ns());
    hot.flags() & flag::ACKS != 0 && hot.marks() & mark::COLLECTS == 0 && !is_late()
}

/// Returns how long after its due time an acknowledgement is late.
fn late_ns(service_ns: u64) -> u64 {
    LATE_NS.max(8 * service_ns)
}

/// Returns how many messages the member works on at a time, as it or the operator told; 0 = unknown.
#[inline]
fn told(hot: &Hot, rules: &Rules) -> u64 {
    if hot.concurrency() > 0 { hot.concurrency() } else { rules.concurrency.into() }
}

/// Returns how many messages are on the way to the member and back while it works, from a tenth of a message on.
fn on_the_way(hot: &Hot) -> u64 {
    let service_ns = hot.speed().processing_ns();
    (2 * hot.delay_ns() + service_ns / 10 * 9).checked_div(service_ns).unwrap_or(0)
}

/// Returns whether messages may wait until the member can begin with them, by some rules: it acknowledges after its work, or may
/// do so, and its messages are not too short.
#[inline]
pub(crate) fn may_wait_for(hot: &Hot) -> bool {
    let seen = hot.flags() & (flag::ACKS | flag::ACK_MODE);
    let is_at_qos_0 = seen & flag::ACKS == 0 && hot.marks() & mark::AT_QOS_0 != 0;
    seen != flag::ACKS && !is_at_qos_0 && !is_short(hot)
}

/// Returns whether messages should not wait because the group's lock would cost more.
#[inline]
pub(crate) fn is_short(hot: &Hot) -> bool {
    let service_ns = hot.speed().processing_ns();
    service_ns > 0 && service_ns < SHORT_NS
}

const NO_SIGHTING: Sighting = Sighting { index: 0, finish: 0, service: 0, is_by_turn: true };
const KEY_MASK: u64 = (1 << RANK_SHIFT) - 1;
/// How often a few members of a large group are compared before all are.
const SAMPLES: usize = 4;
/// Mean processing time below which messages do not wait.
const SHORT_NS: u64 = 1_000_000;
/// Time of the way to a client from which its first messages do not wait.
const FAR_NS: u64 = 2_000_000;
/// Silence for each message of a member that may collect them.
const SILENCE_NS: u64 = LATE_NS / 16;
/// Messages of a member that has not acknowledged any yet, or is late.
const UNSURE_MOST: u64 = 8;
