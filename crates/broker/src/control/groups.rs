//! Share groups: members, decisions, and the figures by which they scale.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tenbin_admin::{Answer, ControlError, MemberDrainView, Page, PageQuery, ScaleView};

use super::{Control, page_of};
use crate::lifecycle;
use crate::router::{GroupLoad, Naming, ShareReport, SharedGroup};

/// Arrival rates of share groups, averaged over [`AVERAGED_OVER`].
#[derive(Debug, Default)]
pub(super) struct Arrivals(Mutex<HashMap<NonZeroU64, Seen>>);

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
    /// Time of the last look that found new messages.
    seen_at: Instant,
    per_second: f64,
    /// Speed of a member, as last known.
    each_per_second: Option<f64>,
    /// First look that found the oldest waiting message; `None` = none waits.
    pub(super) oldest_at: Option<Instant>,
    /// Messages that went from a member to another one, with members that have left.
    pub(super) redispatched: u64,
}

/// A share group with its figures.
#[derive(Debug)]
pub(super) struct BusyGroup {
    pub(super) group: Arc<SharedGroup>,
    pub(super) load: GroupLoad,
    pub(super) arrival: Arrival,
    pub(super) scale: ScaleView,
}

/// Sums of the groups without series.
#[derive(Debug, Default)]
pub(super) struct OtherGroups {
    pub(super) groups: usize,
    pub(super) members: usize,
    pub(super) waiting: u64,
    pub(super) backlog: u64,
    pub(super) desired: u64,
    /// As [`Arrival::oldest_at`], of all of them.
    pub(super) oldest_at: Option<Instant>,
}

impl OtherGroups {
    fn add(&mut self, load: &GroupLoad, arrival: &Arrival, scale: &ScaleView) {
        self.groups += 1;
        self.members += load.members;
        self.waiting += load.waiting;
        self.backlog += load.backlog;
        self.desired += scale.desired.unwrap_or(0);
        self.oldest_at = self.oldest_at.into_iter().chain(arrival.oldest_at).min();
    }
}

/// How busy a group is: its backlog, then its rate.
fn busyness(load: &GroupLoad, arrival: &Arrival) -> (u64, u64) {
    (load.backlog, (arrival.per_second * 1e3) as u64)
}

impl Seen {
    fn new(load: &GroupLoad, now: Instant) -> Self {
        let arrival = Arrival {
            count: load.arrived,
            looked_at: now,
            seen_at: now,
            per_second: 0.0,
            each_per_second: None,
            oldest_at: None,
            redispatched: 0,
        };
        Self { arrival, marks: VecDeque::new(), redispatched: 0 }
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
    /// Takes the present figures of a group, and returns its rate.
    fn look(&self, number: NonZeroU64, load: &GroupLoad, now: Instant) -> Arrival {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = all.entry(number).or_insert_with(|| Seen::new(load, now));
        seen.find_oldest(load, now);
        let before = std::mem::replace(&mut seen.redispatched, load.redispatched);
        let arrival = &mut seen.arrival;
        arrival.redispatched += load.redispatched.saturating_sub(before);
        let elapsed = now.saturating_duration_since(arrival.looked_at);
        if elapsed >= LOOKED_EACH {
            let new = load.arrived.saturating_sub(arrival.count);
            let kept = (-elapsed.as_secs_f64() / AVERAGED_OVER.as_secs_f64()).exp();
            let rate = new as f64 / elapsed.as_secs_f64();
            arrival.per_second = rate + kept * (arrival.per_second - rate);
            (arrival.count, arrival.looked_at) = (load.arrived, now);
            if new > 0 {
                arrival.seen_at = now;
            }
        }
        if load.known > 0 {
            arrival.each_per_second = Some(load.per_second / load.known as f64);
        }
        *arrival
    }

    /// Forgets groups that have ended.
    fn retain(&self, is_there: impl Fn(NonZeroU64) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|&number, _| is_there(number));
    }
}

impl Control {
    pub(super) fn list_groups(&self, page: &PageQuery) -> Answer<Page<Value>> {
        let (after, limit) = page_of(page)?;
        let limit = limit.min(GROUPS_PAGE);
        // One more shows whether there is another page.
        let mut groups = self.shared.router.groups_after(after, limit + 1);
        let has_more = groups.len() > limit;
        groups.truncate(limit);
        let last = groups.last().filter(|_| has_more);
        let cursor = last.map(|group| group.number().to_string());
        Ok(Page { items: groups.iter().map(|group| self.view_of_group(group)).collect(), cursor })
    }

    fn find_group(&self, name: &str, filter: &str) -> Answer<Arc<SharedGroup>> {
        let missing = || ControlError::NotFound(format!("there is no share group {name:?} with filter {filter:?}"));
        self.shared.router.group_named(name, filter).ok_or_else(missing)
    }

    /// A group with its members, as below `$SYS/share`, and its scale.
    pub(super) fn view_of_group(&self, group: &SharedGroup) -> Value {
        let now = Instant::now();
        let mut view = group.report_value(ShareReport::Members, self.shared.clock, now).unwrap_or_default();
        view["shadow"] = group.report_value(ShareReport::Shadow, self.shared.clock, now).unwrap_or_default();
        view["scale"] = serde_json::to_value(self.scale(group, now)).unwrap_or_default();
        view
    }

    pub(super) fn show_group(&self, name: &str, filter: &str) -> Answer<Value> {
        Ok(self.view_of_group(&*self.find_group(name, filter)?))
    }

    pub(super) fn decisions_of(&self, name: &str, filter: &str) -> Answer<Value> {
        let group = self.find_group(name, filter)?;
        let report = |report| group.report_value(report, self.shared.clock, Instant::now()).unwrap_or_default();
        let (decisions, shadow) = (report(ShareReport::Decisions), report(ShareReport::Shadow));
        Ok(serde_json::json!({ "decisions": decisions, "shadow": shadow }))
    }

    pub(super) fn scale_of(&self, name: &str, filter: &str) -> Answer<ScaleView> {
        Ok(self.scale(&*self.find_group(name, filter)?, Instant::now()))
    }

    pub(super) fn scale(&self, group: &SharedGroup, now: Instant) -> ScaleView {
        let load = group.load(self.shared.clock.nanos(now));
        scale(&load, &self.arrivals.look(group.number(), &load, now), now)
    }

    /// Groups with series, the busiest first, and the sum of the others.
    ///
    /// Groups that rules name as a whole are always among them. `most` are for groups named by their share name alone,
    /// as many for groups of a pattern, and as many for all others. Half of these places are for the oldest groups, so that new names do not displace
    /// them.
    pub(super) fn listed_groups(&self, most: usize, now: Instant) -> (Vec<BusyGroup>, OtherGroups) {
        let mut by_naming: [Vec<_>; 4] = Default::default();
        for group in self.shared.router.all_groups() {
            let load = group.load(self.shared.clock.nanos(now));
            let arrival = self.arrivals.look(group.number(), &load, now);
            by_naming[self.shared.router.naming(&group) as usize].push((group, load, arrival));
        }
        let (mut listed, mut others) = (Vec::new(), OtherGroups::default());
        let namings = [Naming::None, Naming::Pattern, Naming::ShareName, Naming::Whole];
        for (naming, mut groups) in namings.into_iter().zip(by_naming) {
            if naming != Naming::Whole && groups.len() > most {
                groups.sort_unstable_by_key(|(group, ..)| group.number());
                groups[most.div_ceil(2)..].sort_by_key(|(_, load, arrival)| Reverse(busyness(load, arrival)));
                for (_, load, arrival) in groups.drain(most..) {
                    others.add(&load, &arrival, &scale(&load, &arrival, now));
                }
            }
            listed.append(&mut groups);
        }
        listed.sort_by_key(|(group, load, arrival)| (Reverse(busyness(load, arrival)), group.number()));
        let view = |(group, load, arrival)| BusyGroup { group, load, arrival, scale: scale(&load, &arrival, now) };
        (listed.into_iter().map(view).collect(), others)
    }

    /// Groups that rules name as a whole, then those with the longest backlogs, then those with the most messages, with
    /// their figures.
    pub(super) fn busiest_groups(&self, most: usize, now: Instant) -> Vec<BusyGroup> {
        // The busiest ones so far, the least busy of them on top.
        let mut busiest = BinaryHeap::with_capacity(most + 1);
        for group in self.shared.router.all_groups() {
            let load = group.load(self.shared.clock.nanos(now));
            let arrival = self.arrivals.look(group.number(), &load, now);
            // Of two alike, the older one.
            let is_named = self.shared.router.naming(&group) == Naming::Whole;
            let rank = Reverse((is_named, busyness(&load, &arrival), Reverse(group.number())));
            if busiest.len() == most && busiest.peek().is_some_and(|Ranked { rank: least, .. }| rank >= *least) {
                continue;
            }
            let scale = scale(&load, &arrival, now);
            busiest.push(Ranked { rank, of: BusyGroup { group, load, arrival, scale } });
            if busiest.len() > most {
                busiest.pop();
            }
        }
        busiest.into_sorted_vec().into_iter().map(|ranked| ranked.of).collect()
    }

    /// Looks at the arrivals of all groups, so that rates are known for the next request.
    pub(super) fn look_at_arrivals(&self) {
        let now = Instant::now();
        for group in self.shared.router.all_groups() {
            self.arrivals.look(group.number(), &group.load(self.shared.clock.nanos(now)), now);
        }
        self.arrivals.retain(|number| self.shared.router.group_numbered(number).is_some());
    }

    pub(super) fn drain_member_of(
        &self,
        name: &str,
        filter: &str,
        client: &str,
        drains: bool,
    ) -> Answer<MemberDrainView> {
        let group = self.find_group(name, filter)?;
        let missing = || ControlError::NotFound(format!("client {client:?} is no member of the share group"));
        let client = self.find(client).ok().filter(|client| group.has_member(client.number)).ok_or_else(missing)?;
        let now = Instant::now();
        client.load.drain(drains, self.shared.clock.nanos(now));
        tracing::info!(client = ?client.id, drains, "an operator drains a member of share groups");
        if drains {
            return Ok(MemberDrainView { moved: lifecycle::hand_over(&self.shared, &client, now) });
        }
        group.serve(self.shared.clock.moment(now));
        Ok(MemberDrainView { moved: 0 })
    }
}

/// A value in the order of its rank.
struct Ranked<R, T> {
    rank: R,
    of: T,
}

impl<R: Ord, T> Ord for Ranked<R, T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank.cmp(&other.rank)
    }
}

impl<R: Ord, T> PartialOrd for Ranked<R, T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<R: Ord, T> PartialEq for Ranked<R, T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<R: Ord, T> Eq for Ranked<R, T> {}

/// Members that clear the backlog within [`CLEARED_WITHIN`] at [`UTILISATION`] of their speed.
fn scale(load: &GroupLoad, arrival: &Arrival, now: Instant) -> ScaleView {
    let is_idle = load.backlog == 0 && now.saturating_duration_since(arrival.seen_at) >= IDLE;
    let wanted = arrival.per_second + load.backlog as f64 / CLEARED_WITHIN.as_secs_f64();
    let by_speed = arrival.each_per_second.map(|each| (wanted / (UTILISATION * each)).ceil() as u64);
    let desired = match by_speed {
        _ if is_idle => Some(0),
        // One member has to begin, for a speed to be known.
        None if load.members == 0 && wanted > 0.0 => Some(1),
        Some(0) => Some(1),
        by_speed => by_speed,
    };
    let per_second = (load.known > 0).then_some(load.per_second);
    let surplus = per_second.map(|per_second| per_second - arrival.per_second).filter(|&surplus| surplus > 0.0);
    ScaleView {
        desired,
        members: load.members,
        arrivals_per_second: arrival.per_second,
        completions_per_second: per_second,
        backlog: load.backlog,
        drain_seconds: match load.backlog {
            0 => Some(0.0),
            backlog => surplus.map(|surplus| backlog as f64 / surplus),
        },
    }
}

/// Looks that are kept for the age of the oldest message; beyond that, each second one goes.
const MARKS_MAX: usize = 512;
const AVERAGED_OVER: Duration = Duration::from_secs(30);
/// Least time between two looks that change a rate.
const LOOKED_EACH: Duration = Duration::from_secs(1);
/// Time in which the wanted members clear the backlog.
const CLEARED_WITHIN: Duration = Duration::from_secs(60);
/// Part of their speed that members use, so that bursts wait little.
const UTILISATION: f64 = 0.8;
/// Time without messages after which a group needs no members.
const IDLE: Duration = Duration::from_secs(60);
/// Groups of a page: each may have many members.
const GROUPS_PAGE: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn desired_members_follow_arrivals_and_backlog() {
        let begin = Instant::now();
        let arrivals = Arrivals::default();
        let number = NonZeroU64::MIN;
        let load = |arrived, backlog, members: usize| GroupLoad {
            arrived,
            given: arrived,
            waiting: 0,
            backlog,
            members,
            known: members,
            predicted_wait: None,
            redispatched: 0,
            per_second: 10.0 * members as f64,
        };
        let at = |seconds| begin + Duration::from_secs(seconds);
        let look = |seconds, load: &GroupLoad| scale(load, &arrivals.look(number, load, at(seconds)), at(seconds));
        assert_eq!(look(0, &load(0, 0, 2)).desired, Some(1), "not idle yet");
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
    fn oldest_message_is_as_old_as_the_look_that_found_it() {
        let (begin, arrivals, number) = (Instant::now(), Arrivals::default(), NonZeroU64::MIN);
        let mut load = GroupLoad { members: 0, known: 0, per_second: 0.0, ..GroupLoad::default() };
        let mut look = |second, given, waiting, redispatched| {
            (load.given, load.waiting, load.arrived, load.redispatched) =
                (given, waiting, given + waiting, redispatched);
            let now = begin + Duration::from_secs(second);
            let arrival = arrivals.look(number, &load, now);
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
