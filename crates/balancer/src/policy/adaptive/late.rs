//! Late binding: a message waits with the group until a member can begin with it.
//!
//! A message that is sent early waits behind the member's present one, which may turn out long. So a member that told
//! its [concurrency](crate::MemberLoad::set_concurrency) gets only as many messages as it can work on, and those that
//! fill the round trip to it; and a member with a small Receive Maximum no more than that. Other members count as ready at
//! all times, as for [`adaptive`](super): those that told nothing, whose acknowledgements come early, or that take less
//! than a millisecond.
//!
//! Acknowledgements earn that: a member without any, or whose next one is long overdue, gets [`FIRST`] messages while
//! another is at work. Otherwise it would take all that the others have no room for, and keep it.

use super::{RANK_SHIFT, Sighting, in_steps, weigh};
use crate::{estimate::flag, group_view::View, hot::Hot, log2::log2_q16, seats::Seats, sync::Relaxed};

/// Returns the best slot among those that can begin with the message now; `None` if the message should wait.
///
/// `waiting`: messages that wait, without this one. If they are at least half the number of members, the best member gets
/// one message more than it can begin with, so that it is not idle until the next message arrives.
pub(crate) fn choose(seats: &Seats, view: &View, waiting: usize, now: u64) -> Option<Sighting> {
    let (mut ready, mut best) = (Best::NONE, Best::NONE);
    let (mut doubtful_ready, mut doubtful_best) = (Best::NONE, Best::NONE);
    let mut index = 0;
    for (loads, turns) in seats.by_line() {
        for (load, turn) in loads.iter().zip(turns) {
            let hot = load.hot();
            let candidate = Best::of(hot, view, now, turn.load(Relaxed), index);
            let least = match (candidate.is_doubtful, candidate.room > 0) {
                (false, true) => &mut ready,
                (false, false) => &mut best,
                (true, true) => &mut doubtful_ready,
                (true, false) => &mut doubtful_best,
            };
            *least = least.or(candidate);
            index += 1;
        }
    }
    if ready.rank() == READY {
        return ready.sighting();
    }
    if best.rank() == READY {
        let has_many = 2 * waiting >= index;
        return if has_many && best.room == 0 { best.sighting() } else { None };
    }
    // No other member is at work.
    let (ready, best) = (ready.or(doubtful_ready), best.or(doubtful_best));
    // If all are full, draining or offline, the best gets the message nevertheless, but no more than it can begin with.
    if ready.rank() <= best.rank() { ready.sighting() } else { None }
}

/// A candidate.
#[derive(Clone, Copy)]
struct Best {
    merit: u128,
    sighting: Sighting,
    /// Messages that it can take beyond its outstanding ones; below 0 if it has more than it can begin with.
    room: i64,
    is_doubtful: bool,
}

impl Best {
    const NONE: Self = Self { merit: u128::MAX, sighting: NO_SIGHTING, room: 0, is_doubtful: false };

    fn of(hot: &Hot, view: &View, now: u64, turn: u64, index: usize) -> Self {
        let finish = hot.finish();
        let weight = weigh(hot, view, now);
        let room = room(hot);
        // The way counts only where few messages can be on it. Otherwise long queues of near members would form.
        let way = if hot.concurrency() > 0 && room < i64::MAX { hot.delay_ns() } else { 0 };
        let key = hot.rank() << RANK_SHIFT | in_steps(weight.wait.saturating_add(way), weight.penalty) & KEY_MASK;
        Self {
            merit: u128::from(key) << 64 | u128::from(turn),
            sighting: Sighting { index, finish, service: weight.service, is_by_turn: true },
            room,
            is_doubtful: is_doubtful(hot, weight.late),
        }
    }

    fn or(self, other: Self) -> Self {
        if other.merit < self.merit { other } else { self }
    }

    fn rank(&self) -> u64 {
        (self.merit >> 64) as u64 >> RANK_SHIFT
    }

    fn sighting(self) -> Option<Sighting> {
        (self.merit != u128::MAX).then_some(self.sighting)
    }
}

/// Returns how many messages the member can take beyond its outstanding ones; `MAX` = any number.
fn room(hot: &Hot) -> i64 {
    let Some(limit) = limit(hot) else { return i64::MAX };
    let room = limit as i64 - hot.outstanding().messages as i64;
    // A Receive Maximum cannot be exceeded: one more message would wait in the client's queue.
    if room <= 0 && limit == hot.receive_maximum() { NO_ROOM } else { room }
}

/// Returns whether the member may have got no message until `now` because it was doubtful.
///
/// A pick may add a message at the same time, and its clock reading may be later. So outstanding messages do not count,
/// and half the delay is enough.
pub(crate) fn may_be_doubtful(hot: &Hot, now: u64) -> bool {
    hot.concurrency() == 0 && (hot.flags() & flag::ACKS == 0 || now.saturating_sub(hot.due()) > LATE_NS / 2)
}

/// Returns whether the member has messages beyond its first ones, and nothing shows that it will acknowledge them.
fn is_doubtful(hot: &Hot, late_ns: u64) -> bool {
    let is_told = hot.concurrency() > 0;
    !is_told && hot.outstanding().messages >= FIRST && (hot.flags() & flag::ACKS == 0 || late_ns > LATE_NS)
}

/// Returns how many messages the member may have outstanding; `None` = any number.
///
/// Messages on the way to it count from a tenth of a processing time on.
pub(crate) fn limit(hot: &Hot) -> Option<u64> {
    let (flags, concurrency, receive_maximum) = (hot.flags(), hot.concurrency(), hot.receive_maximum());
    let is_trusted = flags & flag::ACKS == 0 || flags & flag::ACK_MODE != 0;
    let service_ns = hot.speed().processing_ns();
    let is_short = service_ns > 0 && service_ns < SHORT_NS;
    if !is_trusted || is_short {
        return None;
    }
    let most = (receive_maximum > 0).then_some(receive_maximum);
    if concurrency == 0 {
        return most;
    }
    let on_the_way = (2 * hot.delay_ns() + service_ns / 10 * 9).checked_div(service_ns).unwrap_or(0);
    let limit = concurrency + behind(concurrency) + on_the_way;
    Some(most.map_or(limit, |most| most.min(limit)))
}

/// Returns how many messages a client has behind those that it works on, so that its threads stay busy.
///
/// Acknowledgements keep the order of receipt `[MQTT-4.6.0-2]`. So those of c messages come when the longest is done: on
/// average after 1 + 1/2 + … + 1/c ≈ 1 + ln c processing times, if these are exponential.
fn behind(concurrency: u64) -> u64 {
    (concurrency * log2_q16(concurrency) * LN_2_PERCENT / 100) >> 16
}

/// Messages that a member gets before its first acknowledgement, if it told no concurrency.
const FIRST: u64 = 4;
/// Delay of an acknowledgement from which a member counts as one that may never send it.
const LATE_NS: u64 = 1_000_000_000;
const NO_SIGHTING: Sighting = Sighting { index: 0, finish: 0, service: 0, is_by_turn: true };
const LN_2_PERCENT: u64 = 69;

/// Room of a member that gets no message more, however many wait.
const NO_ROOM: i64 = -1;
const READY: u64 = 0;
const KEY_MASK: u64 = (1 << RANK_SHIFT) - 1;
/// Mean processing time below which messages do not wait: the group's lock would cost more.
const SHORT_NS: u64 = 1_000_000;
