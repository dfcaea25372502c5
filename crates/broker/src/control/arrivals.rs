//! Arrivals at share groups over time, and the number of members that follows from them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tenbin_admin::ScaleView;

use crate::router::GroupLoad;

/// Share name and Topic Filter of a group.
pub(super) type GroupKey = (String, String);

/// Arrival rates of share groups, averaged over [`AVERAGED_OVER`].
#[derive(Debug, Default)]
pub(super) struct Arrivals(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    by_number: HashMap<NonZeroU64, Seen>,
    /// Figures of the last run, of groups that have not come back yet.
    of_last_run: BTreeMap<GroupKey, KnownRate>,
}

/// A share group as the looks at it have found it.
#[derive(Debug)]
struct Seen {
    arrival: Arrival,
    /// Times of looks, with the number of messages that had arrived. Looks before the oldest waiting message are gone.
    marks: VecDeque<(Instant, u64)>,
    /// [`GroupLoad::redispatched`] at the last look.
    redispatched: u64,
}

/// Arrivals at a share group, and more that shows only in a series of looks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    /// Messages that had arrived at the last look.
    count: u64,
    looked_at: Instant,
    /// Time of the last look that found new messages, or of the first look.
    seen_at: Instant,
    /// Whether a message has ever arrived.
    has_seen: bool,
    /// Mean that began at 0, and so is too small by `weight`.
    mean: f64,
    /// 1 − e^(−t/τ) after the time t of looks.
    weight: f64,
    /// Mean over [`RECENT`].
    recent: f64,
    /// Since when `recent` has been far from the mean, and the messages that had arrived then.
    far_since: Option<(Instant, u64)>,
    /// Speed of a member, as last known.
    each_per_second: Option<f64>,
    /// First look that found the oldest waiting message; `None` = none waits.
    pub(super) oldest_at: Option<Instant>,
    /// Messages that went from a member to another one, with members that have left.
    pub(super) redispatched: u64,
}

/// Figures of a group that a restart keeps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct KnownRate {
    group: String,
    filter: String,
    mean: f64,
    weight: f64,
    each_per_second: Option<f64>,
    /// Seconds since the last message; `None` = there was none.
    idle_seconds: Option<f64>,
}

impl KnownRate {
    /// Whether the figures can be those of a group.
    fn is_sound(&self) -> bool {
        let is_positive = |figure: f64| figure.is_finite() && figure >= 0.0;
        let figures = [self.mean, self.each_per_second.unwrap_or(0.0), self.idle_seconds.unwrap_or(0.0)];
        figures.into_iter().all(is_positive) && (0.0..=1.0).contains(&self.weight)
    }
}

impl Arrival {
    fn new(load: &GroupLoad, known: Option<&KnownRate>, now: Instant) -> Self {
        let idle = known.and_then(|known| known.idle_seconds);
        let idle = idle.map(|seconds| Duration::from_secs_f64(seconds.min(IDLE.as_secs_f64())));
        Self {
            count: load.arrived,
            looked_at: now,
            seen_at: idle.and_then(|idle| now.checked_sub(idle)).unwrap_or(now),
            has_seen: idle.is_some() || load.arrived > 0,
            mean: known.map_or(0.0, |known| known.mean),
            weight: known.map_or(0.0, |known| known.weight),
            recent: known.map_or(0.0, |known| known.mean),
            far_since: None,
            each_per_second: known.and_then(|known| known.each_per_second),
            oldest_at: None,
            redispatched: 0,
        }
    }

    /// Messages a second.
    pub(super) fn per_second(&self) -> f64 {
        if self.weight > 0.0 { self.mean / self.weight } else { 0.0 }
    }

    /// Whether the looks have lasted long enough for a rate.
    fn is_known(&self) -> bool {
        self.weight >= 1.0 - kept_after(KNOWN_AFTER, AVERAGED_OVER)
    }

    fn take(&mut self, load: &GroupLoad, now: Instant) {
        let elapsed = now.saturating_duration_since(self.looked_at);
        if elapsed >= LOOKED_EACH {
            let new = load.arrived.saturating_sub(self.count);
            let rate = new as f64 / elapsed.as_secs_f64();
            let kept = kept_after(elapsed, AVERAGED_OVER);
            self.mean = rate + kept * (self.mean - rate);
            self.weight = 1.0 - kept * (1.0 - self.weight);
            self.recent = rate + kept_after(elapsed, RECENT) * (self.recent - rate);
            self.notice_step(load.arrived, now);
            (self.count, self.looked_at) = (load.arrived, now);
            if new > 0 {
                (self.seen_at, self.has_seen) = (now, true);
            }
        }
        if load.known > 0 {
            self.each_per_second = Some(load.per_second / load.known as f64);
        }
    }
}

impl Arrival {
    /// Begins the mean anew where the load has changed at once, so that members are not added or taken away in many steps.
    ///
    /// Single bursts, and the chance of arrivals, are no such change.
    fn notice_step(&mut self, arrived: u64, now: Instant) {
        let mean = self.per_second();
        let by_chance = CHANCE * (mean / (2.0 * RECENT.as_secs_f64())).sqrt();
        let is_far = (self.recent > 2.0 * mean || self.recent < mean / 2.0) && (self.recent - mean).abs() > by_chance;
        if !is_far || !self.is_known() {
            self.far_since = None;
            return;
        }
        let (since, count) = *self.far_since.get_or_insert((now, arrived));
        let lasted = now.saturating_duration_since(since);
        if lasted >= RECENT {
            let rate = arrived.saturating_sub(count) as f64 / lasted.as_secs_f64();
            self.weight = 1.0 - kept_after(lasted, AVERAGED_OVER);
            (self.mean, self.recent, self.far_since) = (rate * self.weight, rate, None);
        }
    }
}

/// What is left of the weight of a mean over `over`, after `elapsed`.
fn kept_after(elapsed: Duration, over: Duration) -> f64 {
    (-elapsed.as_secs_f64() / over.as_secs_f64()).exp()
}

impl Seen {
    fn new(load: &GroupLoad, known: Option<&KnownRate>, now: Instant) -> Self {
        Self { arrival: Arrival::new(load, known, now), marks: VecDeque::new(), redispatched: 0 }
    }

    /// Finds the first look at which the oldest waiting message had come. The group gives the oldest first, so that it
    /// is the one behind those given.
    fn find_oldest(&mut self, load: &GroupLoad, now: Instant) {
        if load.waiting == 0 {
            self.marks.clear();
        } else {
            if self.marks.back().is_none_or(|(_, arrived)| *arrived < load.arrived) {
                self.marks.push_back((now, load.arrived));
            }
            while self.marks.len() > 1 && self.marks.front().is_some_and(|(_, arrived)| *arrived <= load.given) {
                self.marks.pop_front();
            }
            if self.marks.len() > MARKS_MAX {
                let mut stays = false;
                self.marks.retain(|_| {
                    stays = !stays;
                    stays
                });
            }
        }
        self.arrival.oldest_at = self.marks.front().map(|(at, _)| *at);
    }
}

impl Arrivals {
    /// Takes the present figures of a group, and returns its rate. `key`: its names, for the figures of the last run.
    pub(super) fn look(
        &self,
        number: NonZeroU64,
        key: impl FnOnce() -> GroupKey,
        load: &GroupLoad,
        now: Instant,
    ) -> Arrival {
        let All { by_number, of_last_run } = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = by_number.entry(number).or_insert_with(|| {
            let known = if of_last_run.is_empty() { None } else { of_last_run.remove(&key()) };
            Seen::new(load, known.as_ref(), now)
        });
        seen.find_oldest(load, now);
        let before = std::mem::replace(&mut seen.redispatched, load.redispatched);
        seen.arrival.redispatched += load.redispatched.saturating_sub(before);
        seen.arrival.take(load, now);
        seen.arrival
    }

    /// Forgets groups that have ended.
    pub(super) fn retain(&self, is_there: impl Fn(NonZeroU64) -> bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.by_number.retain(|&number, _| is_there(number));
    }

    /// Figures for the next run. `key`: the names of a group that is still there.
    pub(super) fn known(&self, key: impl Fn(NonZeroU64) -> Option<GroupKey>, now: Instant) -> Vec<KnownRate> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let present = all.by_number.iter().filter_map(|(&number, Seen { arrival, .. })| {
            let (group, filter) = key(number)?;
            let idle = now.saturating_duration_since(arrival.seen_at).as_secs_f64();
            Some(KnownRate {
                group,
                filter,
                mean: arrival.mean,
                weight: arrival.weight,
                each_per_second: arrival.each_per_second,
                idle_seconds: arrival.has_seen.then_some(idle),
            })
        });
        present.chain(all.of_last_run.values().cloned()).take(KEPT_MAX).collect()
    }

    /// Takes the figures of the last run.
    pub(super) fn restore(&self, known: Vec<KnownRate>) {
        let sound = known.into_iter().take(KEPT_MAX).filter(KnownRate::is_sound);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).of_last_run =
            sound.map(|known| ((known.group.clone(), known.filter.clone()), known)).collect();
    }
}

/// Members that clear the backlog within [`CLEARED_WITHIN`] at [`UTILISATION`] of their speed.
pub(super) fn scale(load: &GroupLoad, arrival: &Arrival, now: Instant) -> ScaleView {
    let arrivals = arrival.per_second();
    // A stopped member completes nothing, and neither do all of them.
    let per_second = (load.known + load.stalled > 0).then_some(load.per_second);
    let surplus = per_second.map(|per_second| per_second - arrivals).filter(|&surplus| surplus > 0.0);
    ScaleView {
        desired: desired(load, arrival, now),
        members: load.members,
        stalled: load.stalled,
        arrivals_per_second: arrivals,
        completions_per_second: per_second,
        backlog: load.backlog,
        drain_seconds: match load.backlog {
            0 => Some(0.0),
            backlog => surplus.map(|surplus| backlog as f64 / surplus),
        },
    }
}

fn desired(load: &GroupLoad, arrival: &Arrival, now: Instant) -> Option<u64> {
    // A group without members that has seen no message needs none; present members get a minute for the first one.
    let is_unused = load.members == 0 && !arrival.has_seen;
    // Messages in their pause are no work yet.
    let backlog = load.backlog.saturating_sub(load.retries as u64);
    if backlog == 0 && (is_unused || now.saturating_duration_since(arrival.seen_at) >= IDLE) {
        return Some(0);
    }
    if !arrival.is_known() {
        return None;
    }
    let wanted = arrival.per_second() + backlog as f64 / CLEARED_WITHIN.as_secs_f64();
    match arrival.each_per_second {
        // Stopped members count among the members that are there, and do nothing.
        Some(each) => Some(((wanted / (UTILISATION * each) - ROUNDING).ceil() as u64).max(1) + load.stalled as u64),
        // One member has to begin, for a speed to be known.
        None => (load.members == 0 && wanted > 0.0).then_some(1),
    }
}

/// Looks that are kept for the age of the oldest message; beyond that, each second one goes.
const MARKS_MAX: usize = 512;
/// Groups whose figures a restart keeps.
const KEPT_MAX: usize = 500;
const AVERAGED_OVER: Duration = Duration::from_secs(30);
/// Time over which arrivals show that the load has changed, and for which the change has to last.
const RECENT: Duration = Duration::from_secs(5);
/// Standard deviations of random arrivals that are no change.
const CHANCE: f64 = 4.0;
/// Time of looks before which a rate says little.
const KNOWN_AFTER: Duration = Duration::from_secs(5);
/// Least time between two looks that change a rate.
const LOOKED_EACH: Duration = Duration::from_secs(1);
/// Time in which the wanted members clear the backlog.
const CLEARED_WITHIN: Duration = Duration::from_secs(60);
/// Part of their speed that members use, so that bursts wait little.
const UTILISATION: f64 = 0.8;
/// Time without messages after which a group needs no members.
const IDLE: Duration = Duration::from_secs(60);

/// An error of the division that asks for no further member.
const ROUNDING: f64 = 1e-9;

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> GroupKey {
        ("workers".to_owned(), "jobs/#".to_owned())
    }

    /// Members that complete ten messages a second each.
    fn load(arrived: u64, backlog: u64, members: usize) -> GroupLoad {
        GroupLoad {
            arrived,
            given: arrived,
            backlog,
            members,
            known: members,
            per_second: 10.0 * members as f64,
            ..GroupLoad::default()
        }
    }

    fn look(arrivals: &Arrivals, load: &GroupLoad, at: Instant) -> ScaleView {
        scale(load, &arrivals.look(NonZeroU64::MIN, key, load, at), at)
    }

    #[test]
    fn desired_members_follow_arrivals_and_backlog() {
        let (begin, arrivals) = (Instant::now(), Arrivals::default());
        let look = |seconds, load: &GroupLoad| look(&arrivals, load, begin + Duration::from_secs(seconds));
        look(0, &load(0, 0, 2));
        // 16 messages a second for ten minutes: two members at 80 %.
        for second in 1..600 {
            look(second, &load(16 * second, 0, 2));
        }
        let busy = look(600, &load(16 * 600, 0, 2));
        assert!((busy.arrivals_per_second - 16.0).abs() < 0.01, "{busy:?}");
        assert_eq!((busy.desired, busy.drain_seconds), (Some(2), Some(0.0)));
        // A backlog of 480 needs 8 a second more.
        let behind = look(601, &load(16 * 601, 480, 2));
        assert_eq!((behind.desired, behind.drain_seconds.map(f64::round)), (Some(3), Some(120.0)), "{behind:?}");
        let unable = look(602, &load(16 * 602, 480, 1));
        assert_eq!(unable.drain_seconds, None, "one member is too few");
        let gone = look(603, &load(16 * 603, 480, 0));
        assert_eq!(gone.desired, Some(3), "the members' speed is remembered");
        let idle = look(900, &load(16 * 603, 0, 0));
        assert_eq!(look(1000, &load(16 * 603, 0, 0)).desired, Some(0), "{idle:?}");
    }

    #[test]
    fn changed_load_is_followed_in_one_step() {
        let (begin, arrivals) = (Instant::now(), Arrivals::default());
        let mut arrived = 0;
        let mut figures = |from: u64, to: u64, rate: u64| {
            let mut each = |second| {
                arrived += rate;
                look(&arrivals, &load(arrived, 0, 1), begin + Duration::from_secs(second)).desired
            };
            (from..to).map(|second| each(second).unwrap_or(0)).collect::<Vec<_>>()
        };
        assert_eq!(figures(0, 60, 8).last(), Some(&1));
        let up = figures(60, 120, 80);
        assert!(up[..4].iter().all(|figure| *figure < 10), "{up:?}");
        assert!(up[8..].iter().all(|figure| *figure == 10), "{up:?}");
        let down = figures(120, 180, 8);
        assert!(down[12..].iter().all(|figure| *figure == 1), "{down:?}");
        // Bursts of two seconds in ten are no changes: 40 a second need 5 members.
        figures(180, 400, 40);
        for burst in 40..60 {
            let [high, low] = [figures(10 * burst, 10 * burst + 2, 200), figures(10 * burst + 2, 10 * burst + 10, 0)];
            assert!(high.iter().chain(&low).all(|figure| (4..=7).contains(figure)), "{high:?} {low:?}");
        }
    }

    #[test]
    fn rate_is_right_from_the_fifth_second_on() {
        let (begin, arrivals) = (Instant::now(), Arrivals::default());
        // 24 messages a second need three members at 80 %.
        for second in 0..60 {
            let scale = look(&arrivals, &load(24 * second, 0, 1), begin + Duration::from_secs(second));
            let expected = if second < 5 { None } else { Some(3) };
            assert_eq!(scale.desired, expected, "second {second}: {scale:?}");
        }
    }

    #[test]
    fn stopped_member_completes_nothing_and_is_replaced() {
        let (begin, arrivals) = (Instant::now(), Arrivals::default());
        for second in 0..30 {
            look(&arrivals, &load(16 * second, 0, 2), begin + Duration::from_secs(second));
        }
        let stopped = GroupLoad { stalled: 1, known: 1, per_second: 10.0, ..load(16 * 30, 5, 2) };
        let scale_now = look(&arrivals, &stopped, begin + Duration::from_secs(30));
        assert_eq!((scale_now.desired, scale_now.completions_per_second), (Some(4), Some(10.0)), "{scale_now:?}");
        assert_eq!(scale_now.drain_seconds, None);
        let all = GroupLoad { stalled: 2, known: 0, per_second: 0.0, ..load(16 * 31, 20, 2) };
        let scale_now = look(&arrivals, &all, begin + Duration::from_secs(31));
        assert_eq!((scale_now.desired, scale_now.completions_per_second), (Some(5), Some(0.0)), "{scale_now:?}");
    }

    #[test]
    fn group_that_has_seen_nothing_needs_no_members() {
        let (begin, arrivals) = (Instant::now(), Arrivals::default());
        assert_eq!(look(&arrivals, &load(0, 0, 0), begin).desired, Some(0));
        let first = GroupLoad { waiting: 1, given: 0, ..load(1, 1, 0) };
        assert_eq!(look(&arrivals, &first, begin + Duration::from_secs(10)).desired, Some(1));
    }

    #[test]
    fn messages_in_their_pause_need_no_members() {
        let (begin, arrivals) = (Instant::now(), Arrivals::default());
        for second in 0..30 {
            look(&arrivals, &load(16 * second, 0, 2), begin + Duration::from_secs(second));
        }
        let paused = GroupLoad { retries: 900, ..load(16 * 30, 900, 2) };
        assert_eq!(look(&arrivals, &paused, begin + Duration::from_secs(30)).desired, Some(2));
        assert_eq!(look(&arrivals, &paused, begin + Duration::from_secs(120)).desired, Some(0));
    }

    #[test]
    fn restart_keeps_the_figure() {
        let (begin, before) = (Instant::now(), Arrivals::default());
        for second in 0..60 {
            look(&before, &load(24 * second, 0, 1), begin + Duration::from_secs(second));
        }
        let now = begin + Duration::from_secs(60);
        let known = before.known(|_| Some(key()), now);
        let after = Arrivals::default();
        after.restore(known.clone());
        assert_eq!(after.known(|_| None, now), known, "until the group comes back");
        let scale = look(&after, &load(0, 0, 1), now);
        assert_eq!(scale.desired, Some(3), "{scale:?}");
        let damaged = KnownRate { mean: f64::NAN, ..known[0].clone() };
        after.restore(vec![damaged]);
        assert_eq!(after.known(|_| None, now), []);
    }

    #[test]
    fn oldest_message_is_as_old_as_the_look_that_found_it() {
        let (begin, arrivals, number) = (Instant::now(), Arrivals::default(), NonZeroU64::MIN);
        let mut load = GroupLoad { members: 0, known: 0, per_second: 0.0, ..GroupLoad::default() };
        let mut look = |second, given, waiting, redispatched| {
            (load.given, load.waiting, load.arrived, load.redispatched) =
                (given, waiting, given + waiting, redispatched);
            let now = begin + Duration::from_secs(second);
            let arrival = arrivals.look(number, key, &load, now);
            (arrival.oldest_at.map(|at| now.duration_since(at).as_secs()), arrival.redispatched)
        };
        assert_eq!(look(0, 7, 0, 0), (None, 0));
        assert_eq!(look(5, 7, 3, 0), (Some(0), 0));
        assert_eq!(look(10, 7, 5, 2), (Some(5), 2));
        assert_eq!(look(15, 9, 3, 2), (Some(10), 2), "the third of the first three still waits");
        assert_eq!(look(20, 10, 2, 0), (Some(10), 2), "those of the second look wait; a member has left");
        assert_eq!(look(25, 12, 0, 1), (None, 3));
        assert_eq!(look(30, 12, 1, 1), (Some(0), 3));
    }
}
