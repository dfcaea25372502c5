//! Share groups: members, decisions, and the figures by which they scale.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use tenbin_admin::{Answer, ControlError, MemberDrainView, Page, PageQuery, ScaleView};

use super::arrivals::{Arrival, GroupKey, scale};
use super::{Control, page_of};
use crate::lifecycle;
use crate::router::{GroupLoad, Naming, ShareReport, SharedGroup};

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
    (load.backlog, (arrival.per_second() * 1e3) as u64)
}

impl Control {
    pub(super) fn list_groups(&self, page: &PageQuery) -> Answer<Page<Value>> {
        let (after, limit) = page_of(page)?;
        let limit = limit.min(GROUPS_PAGE);
        // One more shows whether there is another page.
        let mut groups = self.shared.routing.router.groups_after(after, limit + 1);
        let has_more = groups.len() > limit;
        groups.truncate(limit);
        let last = groups.last().filter(|_| has_more);
        let cursor = last.map(|group| group.number().to_string());
        Ok(Page { items: groups.iter().map(|group| self.view_of_group(group)).collect(), cursor })
    }

    fn find_group(&self, name: &str, filter: &str) -> Answer<Arc<SharedGroup>> {
        let missing = || ControlError::NotFound(format!("there is no share group {name:?} with filter {filter:?}"));
        self.shared.routing.router.group_named(name, filter).ok_or_else(missing)
    }

    /// A group with its members, as below `$SYS/share`, and its scale.
    pub(super) fn view_of_group(&self, group: &SharedGroup) -> Value {
        let now = Instant::now();
        let mut view = group.report_value(ShareReport::Members, self.shared.clock, now).unwrap_or_default();
        view["shadow"] = group.report_value(ShareReport::Shadow, self.shared.clock, now).unwrap_or_default();
        view["summary"] = self.watch.summary(group.number());
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

    fn arrival_at(&self, group: &SharedGroup, load: &GroupLoad, now: Instant) -> Arrival {
        self.arrivals.look(group.number(), || key_of(group), load, now)
    }

    pub(super) fn scale(&self, group: &SharedGroup, now: Instant) -> ScaleView {
        let load = group.load(self.shared.clock.nanos(now));
        scale(&load, &self.arrival_at(group, &load, now), now)
    }

    /// Groups with series, the busiest first, and the sum of the others.
    ///
    /// Groups that rules name as a whole are always among them. `most` are for groups named by their share name alone,
    /// as many for groups of a pattern, and as many for all others. Half of these places are for the oldest groups, so that new names do not displace
    /// them.
    pub(super) fn listed_groups(&self, most: usize, now: Instant) -> (Vec<BusyGroup>, OtherGroups) {
        let mut by_naming: [Vec<_>; 4] = Default::default();
        for group in self.shared.routing.router.all_groups() {
            let load = group.load(self.shared.clock.nanos(now));
            let arrival = self.arrival_at(&group, &load, now);
            by_naming[self.shared.routing.router.naming(&group) as usize].push((group, load, arrival));
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
        for group in self.shared.routing.router.all_groups() {
            let load = group.load(self.shared.clock.nanos(now));
            let arrival = self.arrival_at(&group, &load, now);
            // Of two alike, the older one.
            let is_named = self.shared.routing.router.naming(&group) == Naming::Whole;
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
        for group in self.shared.routing.router.all_groups() {
            self.arrival_at(&group, &group.load(self.shared.clock.nanos(now)), now);
        }
        self.arrivals.retain(|number| self.shared.routing.router.group_numbered(number).is_some());
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
        let what = if drains { "drains" } else { "drains no more" };
        self.note_operator(&format!("group {name}: {} {what}", client.id));
        tracing::info!(client = ?client.id, drains, "an operator drains a member of share groups");
        if drains {
            return Ok(MemberDrainView { moved: lifecycle::hand_over(&self.shared, &client, now) });
        }
        group.serve(self.shared.clock.moment(now));
        Ok(MemberDrainView { moved: 0 })
    }
}

/// Share name and Topic Filter of a group.
pub(super) fn key_of(group: &SharedGroup) -> GroupKey {
    let (name, filter) = group.names();
    (name.to_owned(), filter.to_owned())
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

/// Groups of a page: each may have many members.
const GROUPS_PAGE: usize = 100;
