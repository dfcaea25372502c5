//! Times without service, and times to recovery.

use std::ops::Range;

use crate::units::Time;

/// Length of a [`Tick`].
pub const TICK: Time = Time::from_ns(10_000_000);

/// Length of a [`Second`].
const SECOND: Time = Time::from_secs(1);

/// Events of 10 ms. The first one begins at the end of the warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tick {
    /// Messages that became due.
    pub due: u32,
    /// Acknowledgements and refusals that came; at QoS 0 messages that were written.
    pub answered: u32,
}

/// Events of a second. The first one begins at the end of the warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Second {
    /// Messages sent.
    pub sent: u64,
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// Messages acknowledged.
    pub published: u64,
    /// Payload bytes of these.
    pub published_bytes: u64,
    /// Messages received.
    pub received: u64,
    /// Payload bytes of these.
    pub received_bytes: u64,
    /// Refusals.
    pub refused: u64,
    /// Connections established again; `None` if not all clients count them.
    pub reconnects: Option<u64>,
    /// Deliveries that were due and had not come at the end of the second.
    pub backlog: u64,
    /// 99th percentile of the latency of messages that came; `None` if none came.
    pub p99: Option<Time>,
}

/// Longest time within `window` in which something was due and nothing was acknowledged, to 10 ms.
///
/// Ticks without an answer count while messages wait for one. So idle times of a slow publisher do not count.
pub fn unavailable(ticks: &[Tick], window: Range<Time>) -> Time {
    let (mut waiting, mut silent, mut longest) = (0_u64, 0_u64, 0_u64);
    for (index, tick) in ticks.iter().enumerate() {
        let begin = TICK.ns() * index as u64;
        if begin >= window.end.ns() {
            break;
        }
        waiting = (waiting + u64::from(tick.due)).saturating_sub(u64::from(tick.answered));
        let is_silent = tick.answered == 0 && waiting > 0;
        // A silence that begins ahead of the window belongs to another one, with its beginning.
        let is_inside = begin >= window.start.ns();
        silent = if is_silent && is_inside { silent + 1 } else { 0 };
        longest = longest.max(silent);
    }
    Time::from_ns(longest * TICK.ns())
}

/// Normal operation, measured in the phase before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normal {
    /// Received messages a second.
    pub received: f64,
    /// Highest backlog at the end of a second.
    pub backlog: u64,
    /// 99th percentile of the latency.
    pub p99: Time,
}

/// Smallest share of the normal rate.
const RATE: f64 = 0.95;
/// Largest multiple of the normal p99.
const LATENCY: u64 = 2;

impl Normal {
    /// Normal operation in the whole seconds of `before`; `None` without such a second, or if nothing came.
    ///
    /// `p99` is the p99 of the whole phase.
    pub fn of(seconds: &[Second], before: Range<Time>, p99: Option<Time>) -> Option<Self> {
        let inside = whole_seconds(seconds, &before).map(|(_, second)| second).collect::<Vec<_>>();
        let received = inside.iter().map(|second| second.received).sum::<u64>() as f64 / inside.len() as f64;
        let backlog = inside.iter().map(|second| second.backlog).max()?;
        let is_known = received > 0.0;
        is_known.then_some(Self { received, backlog, p99: p99? })
    }

    /// True if `second` is normal: rate ≥ 95 %, backlog gone, p99 ≤ 2 ×.
    fn is_met_by(&self, second: &Second) -> bool {
        // Messages under way at the end of a second are no backlog; their number fluctuates.
        let backlog = (2 * self.backlog).max((self.received * (1.0 - RATE)) as u64);
        second.received as f64 >= RATE * self.received
            && second.backlog <= backlog
            && second.p99.is_some_and(|p99| p99.ns() <= LATENCY * self.p99.ns())
    }
}

/// Time from the fault's end, the start of `after`, to the begin of the first whole second that is normal.
///
/// `None` if there is no such second in `after`.
pub fn recovered(seconds: &[Second], normal: &Normal, after: Range<Time>) -> Option<Time> {
    let (begin, _) = whole_seconds(seconds, &after).find(|(_, second)| normal.is_met_by(second))?;
    Some(begin.minus(after.start))
}

/// Seconds that are wholly in `window`, with their begins.
pub(crate) fn whole_seconds<'s>(
    seconds: &'s [Second],
    window: &Range<Time>,
) -> impl Iterator<Item = (Time, &'s Second)> + use<'s> {
    let (start, end) = (window.start, window.end);
    let begins = (0..).map(Time::from_secs);
    begins.zip(seconds).filter(move |(begin, _)| *begin >= start && begin.plus(SECOND) <= end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(from: f64, to: f64) -> Range<Time> {
        Time::from_secs_f64(from)..Time::from_secs_f64(to)
    }

    /// 10 s with a message each tick, acknowledged at once but not in `silent`.
    fn ticks(silent: Range<usize>) -> Vec<Tick> {
        let tick = |index| Tick { due: 1, answered: u32::from(!silent.contains(&index)) };
        (0..1000).map(tick).collect()
    }

    #[test]
    fn unavailable_is_the_longest_silence_while_messages_wait() {
        assert_eq!(unavailable(&ticks(0..0), secs(0.0, 10.0)), Time::ZERO);
        assert_eq!(unavailable(&ticks(400..473), secs(0.0, 10.0)), Time::from_secs_f64(0.73));
        assert_eq!(unavailable(&ticks(400..1000), secs(0.0, 10.0)), Time::from_secs(6), "to the end");
    }

    #[test]
    fn silence_outside_of_the_window_does_not_count() {
        let ticks = ticks(400..500);
        assert_eq!(unavailable(&ticks, secs(5.0, 10.0)), Time::ZERO);
        assert_eq!(unavailable(&ticks, secs(4.5, 10.0)), Time::from_secs_f64(0.5));
        assert_eq!(unavailable(&ticks, secs(0.0, 4.2)), Time::from_secs_f64(0.2));
    }

    #[test]
    fn idle_publishers_are_no_unavailability() {
        // One message a second, acknowledged in the tick in which it is due.
        let mut ticks = vec![Tick::default(); 1000];
        ticks.iter_mut().step_by(100).for_each(|tick| *tick = Tick { due: 1, answered: 1 });
        assert_eq!(unavailable(&ticks, secs(0.0, 10.0)), Time::ZERO);
        // The answer of one of them comes 300 ms late.
        ticks[500].answered = 0;
        ticks[530].answered = 1;
        assert_eq!(unavailable(&ticks, secs(0.0, 10.0)), Time::from_secs_f64(0.3));
    }

    fn second(received: u64, backlog: u64, p99_ms: u64) -> Second {
        Second { received, backlog, p99: Some(Time::from_ns(p99_ms * 1_000_000)), ..Second::default() }
    }

    fn normal() -> Normal {
        Normal { received: 1000.0, backlog: 3, p99: Time::from_ns(10_000_000) }
    }

    #[test]
    fn recovery_needs_rate_and_backlog_and_latency() {
        let mut seconds = vec![second(1000, 3, 10); 4];
        seconds.push(second(0, 1000, 10)); // 4: the fault
        seconds.push(second(900, 1100, 900)); // 5: too slow
        seconds.push(second(2050, 40, 900)); // 6: late messages
        seconds.push(second(1000, 51, 12)); // 7: a backlog
        seconds.push(second(950, 50, 20)); // 8: normal, on each bound
        seconds.push(second(0, 0, 10)); // 9: no matter
        assert_eq!(recovered(&seconds, &normal(), secs(5.0, 10.0)), Some(Time::from_secs(3)));
        assert_eq!(recovered(&seconds, &normal(), secs(4.4, 10.0)), Some(Time::from_secs_f64(3.6)));
        assert_eq!(recovered(&seconds, &normal(), secs(5.0, 8.9)), None, "second 8 is not whole");
    }

    #[test]
    fn recovery_is_unknown_without_normal_seconds() {
        let silent = [Second::default(); 10];
        assert_eq!(recovered(&silent, &normal(), secs(2.0, 10.0)), None);
        assert_eq!(Normal::of(&silent, secs(0.0, 5.0), Some(TICK)), None, "nothing came");
        assert_eq!(Normal::of(&[second(5, 0, 1)], secs(0.0, 0.5), Some(TICK)), None, "no whole second");
    }

    #[test]
    fn normal_operation_is_the_mean_of_whole_seconds() {
        let seconds = [second(0, 900, 1), second(990, 2, 1), second(1010, 7, 1), second(0, 0, 1)];
        let normal = Normal::of(&seconds, secs(0.5, 3.2), Some(TICK));
        assert_eq!(normal, Some(Normal { received: 1000.0, backlog: 7, p99: TICK }));
    }
}
