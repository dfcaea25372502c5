//! Messages that members did not process, and that are delivered again after a pause.
//!
//! They are beside the backlog, so that they hold up no other message. Messages on disk stay there, and come back page by
//! page when they are due.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_balancer::Rng;
use tenbin_session::Delivery;

use super::super::dead_letters::Fate;
use super::super::share_group::SharedGroup;
use super::Queued;
use super::waiting::WaitingAt;
use crate::backlog::{Budget, Limits, Usage};
use crate::durable::{Location, PAGE_MESSAGES, Page, PageOf, Place, QueueKind, Sequence};
use crate::values::Moment;

/// Messages of a share group that wait for their next delivery, by the end of their pause.
#[derive(Debug, Default)]
pub(super) struct Retries {
    /// By end of the pause and number.
    waiting: BTreeMap<(Instant, u64), Retry>,
    /// When each message began to wait, by number: the first has waited longest.
    since: BTreeMap<u64, Instant>,
    next_number: u64,
    /// Messages on disk that are being read, by offset.
    reading: Vec<OnDisk>,
    /// Usage of the waiting messages on disk, and of those in memory.
    on_disk: Usage,
    in_memory: Usage,
    /// Usage of memory that the budget knows of.
    settled: Usage,
    /// The time for which the group is scheduled.
    scheduled: Option<Instant>,
    /// Members have enough messages until then.
    not_before: Option<Instant>,
    /// When members look next for messages that they did not acknowledge in time; `None` = never.
    next_look: Option<Instant>,
}

#[derive(Debug)]
enum Retry {
    InMemory(Delivery),
    OnDisk(OnDisk),
}

/// A message whose entry in the group's queue has its deliveries and its due time.
#[derive(Debug)]
struct OnDisk {
    sequence: Sequence,
    bytes: usize,
    last_receiver: u64,
    /// It is read to become a dead letter.
    fate: Option<Box<Fate>>,
}

impl Retries {
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.reading.len()
    }

    /// Returns whether new messages have to be refused, so that the waiting ones stay within the group's limits.
    pub(super) fn are_full(&self, limits: &Limits) -> bool {
        let is_any = self.len() > 0;
        is_any
            && (self.are_too_many()
                || self.on_disk.bytes as u64 >= limits.stored_bytes && self.on_disk.messages > 0
                || limits.memory_is_over(self.in_memory) && self.in_memory.messages > 0)
    }

    /// Returns whether members may get no further messages, which they could reject, too.
    pub(super) fn are_too_many(&self) -> bool {
        self.len() >= RETRIES_MAX
    }

    /// When the message that has waited longest began to wait.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.since.first_key_value().map(|(_, &since)| since)
    }

    /// Sets when members look next for messages that they did not acknowledge in time, and returns that time unless it is
    /// known already. `interval`: `None` = never.
    pub(super) fn next_look(&mut self, interval: Option<Duration>, now: Instant) -> Option<Instant> {
        let is_known = self.next_look.is_some_and(|at| at > now);
        if interval.is_none() || !is_known {
            self.next_look = interval.map(|interval| now + interval);
        }
        self.next_look.filter(|_| !is_known)
    }

    /// Reports changes since the last call to the budget.
    pub(super) fn settle(&mut self, budget: &Budget) {
        budget.change(self.settled, self.in_memory);
        self.settled = self.in_memory;
    }

    /// Drops all messages, and returns their number.
    pub(super) fn clear(&mut self) -> u64 {
        let dropped = self.len() as u64;
        let Self { settled, next_number, next_look, .. } = *self;
        *self = Self { settled, next_number, next_look, ..Self::default() };
        dropped
    }

    fn add(&mut self, end: Instant, retry: Retry, since: Instant) {
        let usage = self.usage_of(&retry);
        usage.bytes += retry.bytes();
        usage.messages += 1;
        self.waiting.insert((end, self.next_number), retry);
        self.since.insert(self.next_number, since);
        self.next_number += 1;
    }

    fn usage_of(&mut self, retry: &Retry) -> &mut Usage {
        match retry {
            Retry::InMemory(_) => &mut self.in_memory,
            Retry::OnDisk(_) => &mut self.on_disk,
        }
    }

    /// Takes the message whose pause ends first, if that is over.
    fn pop_due(&mut self, now: Instant) -> Option<Retry> {
        let first = self.waiting.first_entry().filter(|first| first.key().0 <= now)?;
        let ((_, number), retry) = first.remove_entry();
        self.since.remove(&number);
        let usage = self.usage_of(&retry);
        usage.bytes = usage.bytes.saturating_sub(retry.bytes());
        usage.messages -= 1;
        Some(retry)
    }

    /// Returns when to look at the group, unless that is scheduled. No look is due while messages are being read.
    fn schedule(&mut self, now: Instant) -> Option<Instant> {
        let next = self.waiting.first_key_value().filter(|_| self.reading.is_empty()).map(|(&(due, _), _)| due)?;
        let next = self.not_before.map_or(next, |at| at.max(next));
        let is_known = self.scheduled.is_some_and(|at| at <= next && at > now);
        (!is_known).then(|| *self.scheduled.insert(next))
    }
}

impl Retry {
    fn bytes(&self) -> usize {
        match self {
            Self::InMemory(delivery) => delivery.queued_bytes(),
            Self::OnDisk(entry) => entry.bytes + RECORD_BYTES,
        }
    }
}

impl SharedGroup {
    /// Gives a message, which a member did not process, to another member once it is due. `from`: its entry on disk.
    /// `fate`: it becomes a dead letter instead, once it is read whole.
    pub(in super::super) fn retry(
        self: &Arc<Self>,
        mut delivery: Delivery,
        from: Option<Place>,
        fate: Option<Fate>,
        now: Moment,
    ) {
        let due = delivery.due().filter(|due| *due > now.at);
        let moved = self.take_back(from, &delivery);
        delivery.stored = moved.map(|Sequence(sequence)| Location::Group(sequence).to_stored());
        let is_external = delivery.template.is_external();
        if due.is_none() && !is_external {
            self.change_queued(|queued| {
                self.announce();
                self.keep_first(queued, delivery);
            });
            return self.dispatch_waiting(now, &mut Rng::new(now.nanos.0));
        }
        let end = end_of_pause(due.unwrap_or(now.at), &delivery);
        let (bytes, last_receiver) = (delivery.template.whole_len(), delivery.last_receiver().unwrap_or(0));
        let retry = match moved {
            Some(sequence) => Retry::OnDisk(OnDisk { sequence, bytes, last_receiver, fate: fate.map(Box::new) }),
            // Its payload is nowhere: the group has ended.
            None if is_external => return self.drop_unacknowledged(),
            None => Retry::InMemory(delivery.detach()),
        };
        let next = self.change_queued(|queued| {
            let retries = queued.retries();
            retries.add(end, retry, now.at);
            retries.schedule(now.at)
        });
        self.schedule(next);
    }

    /// Moves the entry of a message behind the others of the group's queue: see [`Durable::take_back`].
    pub(in super::super) fn take_back(&self, from: Option<Place>, delivery: &Delivery) -> Option<Sequence> {
        let store = self.queues.durable.as_ref().zip(self.stored());
        store.zip(from).and_then(|((durable, queue), from)| durable.take_back(&queue, from, delivery))
    }

    /// Delivers messages whose pause is over.
    pub(in super::super) fn give_due(self: &Arc<Self>, now: Instant) {
        let (page, is_given) = self.change_queued(|queued| {
            let Some(retries) = &mut queued.retries else { return (None, false) };
            retries.scheduled.take_if(|at| *at <= now);
            if !retries.reading.is_empty() {
                return (None, false);
            }
            // With too many, members get nothing until some of these are back.
            let is_enough = !queued.queue.is_short() && !retries.are_too_many();
            retries.not_before = is_enough.then_some(now + ENOUGH_PAUSE);
            if retries.not_before.is_some() {
                return (None, false);
            }
            let mut in_memory = Vec::new();
            while in_memory.len() + retries.reading.len() < PAGE_MESSAGES
                && let Some(retry) = retries.pop_due(now)
            {
                match retry {
                    Retry::InMemory(delivery) => in_memory.push(delivery),
                    Retry::OnDisk(entry) => retries.reading.push(entry),
                }
            }
            retries.reading.sort_unstable_by_key(|entry| entry.sequence);
            let ranges: Vec<_> = retries.reading.iter().map(|entry| entry.sequence..=entry.sequence).collect();
            let is_given = !in_memory.is_empty();
            if is_given {
                self.announce();
            }
            in_memory.into_iter().rev().for_each(|delivery| queued.queue.push_front(delivery));
            (Some(ranges).filter(|ranges| !ranges.is_empty()), is_given)
        });
        if is_given {
            let now = self.queues.clock.moment(now);
            self.dispatch_waiting(now, &mut Rng::new(now.nanos.0));
        }
        match (page, self.queues.durable.as_ref().zip(self.stored())) {
            (Some(ranges), Some((durable, queue))) => {
                let page = PageOf {
                    queue: queue.id(),
                    kind: QueueKind::Group,
                    ranges: ranges.into(),
                    bytes: RETRIES_BYTES,
                    by_reference: None,
                    with_expired: true,
                };
                let group = Arc::downgrade(self);
                durable.reader.page_for(page, move |page| {
                    if let Some(group) = group.upgrade() {
                        group.take_due(page);
                    }
                });
            }
            _ => self.schedule_retries(now),
        }
    }

    /// Takes messages that were read, as their pause is over.
    fn take_due(self: &Arc<Self>, page: Page) {
        let now = self.queues.clock.moment(Instant::now());
        let (done, doomed) = self.change_queued(|queued| {
            self.announce();
            let mut reading = std::mem::take(&mut queued.retries().reading);
            let last = page.messages.last().map(|(sequence, _)| *sequence);
            let (mut done, mut doomed) = (Vec::new(), Vec::new());
            for (sequence, delivery) in page.messages.into_iter().rev() {
                let Ok(place) = reading.binary_search_by_key(&sequence, |entry| entry.sequence) else { continue };
                let entry = reading.remove(place);
                match (delivery, entry.fate) {
                    (None, _) => done.push(sequence),
                    (Some(delivery), Some(fate)) => doomed.push((delivery, fate)),
                    (Some(delivery), None) => {
                        let delivery = delivery.taken_from(entry.last_receiver);
                        queued.queue.push_front(Delivery { share: Some(self.number()), ..delivery });
                    }
                }
            }
            // A page ends early if it is long, or if the next message cannot be read for now. Other entries without a
            // message are gone from the disk.
            let due = if page.is_broken { now.at + BROKEN_PAUSE } else { now.at };
            let is_left = |entry: &OnDisk| page.is_broken || last.is_some_and(|last| entry.sequence > last);
            for entry in reading.into_iter().filter(is_left) {
                queued.retries().add(due, Retry::OnDisk(entry), now.at);
            }
            (done, doomed)
        });
        self.end_places(done);
        for (delivery, fate) in doomed {
            let place = self.stored().and_then(|queue| queue.place_of(delivery.stored));
            match self.work.load_full() {
                Some(rules) => self.doom(rules, delivery, place, *fate),
                // A reload has taken the rules away: the message goes on as any of the group.
                None => {
                    let delivery = Delivery { share: Some(self.number()), ..delivery };
                    self.change_queued(|queued| self.keep_first(queued, delivery));
                }
            }
        }
        self.dispatch_waiting(now, &mut Rng::new(now.nanos.0));
        self.schedule_retries(now.at);
    }

    /// Puts messages on disk that are not due aside, from a page of the backlog. The last run left them.
    pub(super) fn keep_until_due(&self, queued: &mut Queued, delivery: &Delivery, due: Instant, now: Instant) {
        if let Some(Location::Group(sequence)) = delivery.location() {
            let (sequence, bytes) = (Sequence(sequence), delivery.template.whole_len());
            let entry = OnDisk { sequence, bytes, last_receiver: 0, fate: None };
            queued.retries().add(end_of_pause(due, delivery), Retry::OnDisk(entry), now);
        }
    }

    /// Puts all messages aside that the last run left in their pause. Without it, each would wait for its page of the
    /// backlog, which is read for members alone.
    pub(crate) async fn find_paused(self: &Arc<Self>) {
        let mut next = self.work.load().is_some().then_some(WaitingAt::Disk(0));
        while let Some(from) = next
            && let Some(page) = self.waiting_page(from).await
        {
            let now = Instant::now();
            self.change_queued(|queued| {
                for (_, delivery) in page.messages {
                    let due = delivery.due().filter(|due| *due > now);
                    if let Some((due, Location::Group(sequence))) = due.zip(delivery.location())
                        && queued.spill.entries.take(Sequence(sequence), delivery.template.whole_len())
                    {
                        self.keep_until_due(queued, &delivery, due, now);
                    }
                }
            });
            self.schedule_retries(now);
            next = page.next;
        }
    }

    /// Schedules the next look at the waiting messages.
    pub(super) fn schedule_retries(self: &Arc<Self>, now: Instant) {
        let next = self.change_queued(|queued| queued.retries.as_mut()?.schedule(now));
        self.schedule(next);
    }

    fn schedule(self: &Arc<Self>, at: Option<Instant>) {
        if let Some(at) = at {
            self.queues.due.add(self, at);
        }
    }

    /// Returns the number of messages that wait for their next delivery, and for how long the first of them has waited.
    pub(in super::super) fn retries(&self, now: Instant) -> (usize, Duration) {
        let queued = self.backlog.lock();
        let Some(retries) = &queued.retries else { return (0, Duration::ZERO) };
        let oldest = retries.oldest().map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        (retries.len(), oldest)
    }
}

/// When a message leaves its pause: it is due, or has expired.
fn end_of_pause(due: Instant, delivery: &Delivery) -> Instant {
    delivery.expires_at.map_or(due, |at| at.min(due))
}

/// Messages that may wait for their next delivery in one group. New messages are refused beyond it.
const RETRIES_MAX: usize = 1 << 20;
/// Bytes of message bodies in one read.
const RETRIES_BYTES: usize = 256 * 1024;
/// Bytes on disk beside a message's body, about.
const RECORD_BYTES: usize = 64;
/// Pause before the next look at messages that are due, while members have enough others.
const ENOUGH_PAUSE: Duration = Duration::from_millis(250);
/// Pause after a failed read.
const BROKEN_PAUSE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use tenbin_codec::QoS;
    use tenbin_store::Sync;

    use super::super::super::share_group::tests::{Stage, payloads};
    use super::*;
    use crate::durable::Durable;

    const SECOND: Duration = Duration::from_secs(1);

    struct Retrying {
        stage: Stage,
        _directory: tempfile::TempDir,
    }

    impl Retrying {
        fn new(has_store: bool) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let open = || Arc::new(Durable::open(directory.path(), Sync::Never, 0).unwrap());
            let stage = Stage::with(has_store.then(open));
            Self { stage, _directory: directory }
        }

        /// Takes a message back from session 9, so that it is due after these seconds.
        fn retry(&self, payload: &'static str, seconds: u32) {
            let Stage { group, now } = &self.stage;
            let delivery = group.kept(self.stage.published_as(payload, QoS::AtLeastOnce));
            let from = group.stored().and_then(|queue| queue.place_of(delivery.stored));
            let due = (seconds > 0).then(|| now.at + SECOND * seconds);
            group.retry(delivery.taken_back(9, due), from, None, *now);
        }

        /// Looks at the group after these seconds, and returns what its member gets.
        fn after(&self, seconds: u32, member: &crate::outbox::Outbox, count: usize) -> Vec<String> {
            self.stage.group.queues.due.look(self.stage.now.at + SECOND * seconds);
            let (begin, mut taken) = (Instant::now(), Vec::new());
            while taken.len() < count {
                assert!(begin.elapsed() < 20 * SECOND, "{taken:?}");
                taken.extend(payloads(member));
                std::thread::sleep(Duration::from_millis(1));
            }
            taken
        }
    }

    #[test]
    fn messages_come_back_when_they_are_due() {
        for has_store in [false, true] {
            let retrying = Retrying::new(has_store);
            let group = &retrying.stage.group;
            let member = retrying.stage.member(1, QoS::AtLeastOnce, false);
            member.attach(u32::MAX, None);
            [("c", 30), ("a", 10), ("b", 10)].into_iter().for_each(|(payload, due)| retrying.retry(payload, due));
            assert_eq!((group.waiting(), group.retries(retrying.stage.now.at + SECOND)), (3, (3, SECOND)));
            assert!(!group.backlog.has_backlog(), "new messages pass them");
            retrying.retry("now", 0);
            assert_eq!(payloads(&member), ["now"], "store {has_store}");
            let first = group.queues.due.next().expect("a time");
            assert_eq!(first, retrying.stage.now.at + 10 * SECOND);
            assert!(!group.queues.due.look(first - SECOND), "it is too early");
            assert_eq!(retrying.after(10, &member, 2), ["a", "b"], "store {has_store}");
            assert_eq!(retrying.after(30, &member, 1), ["c"]);
            assert_eq!((group.waiting(), group.queues.budget.messages()), (0, 0));
        }
    }

    #[test]
    fn message_that_expires_in_its_pause_goes_then() {
        for has_store in [false, true] {
            let retrying = Retrying::new(has_store);
            let Stage { group, now, .. } = &retrying.stage;
            let published = retrying.stage.published_as("again", QoS::AtLeastOnce);
            let delivery = group.kept(Delivery { expires_at: Some(now.at + 5 * SECOND), ..published });
            let from = group.stored().and_then(|queue| queue.place_of(delivery.stored));
            group.retry(delivery.taken_back(9, Some(now.at + 30 * SECOND)), from, None, *now);
            assert!(!group.queues.due.look(now.at + 4 * SECOND), "it is too early");
            assert!(group.queues.due.look(now.at + 5 * SECOND));
            let begin = Instant::now();
            while group.waiting() > 0 {
                assert!(begin.elapsed() < 20 * SECOND, "store {has_store}");
                group.dispatch_waiting(Moment { at: now.at + 5 * SECOND, ..*now }, &mut Rng::new(1));
            }
            assert_eq!(group.queues.metrics.dropped_expired.get(), 1, "store {has_store}");
        }
    }

    #[test]
    fn message_taken_back_goes_to_another_member_first() {
        let retrying = Retrying::new(false);
        let members = [1, 9].map(|number| retrying.stage.member(number, QoS::AtLeastOnce, false));
        members.iter().for_each(|member| member.attach(u32::MAX, None));
        for _ in 0..4 {
            retrying.retry("again", 0);
        }
        assert_eq!(members.each_ref().map(|member| payloads(member).len()), [4, 0]);
        retrying.stage.group.leave(1);
        retrying.retry("again", 0);
        assert_eq!(payloads(&members[1]), ["again"], "there is no other");
    }

    #[test]
    fn new_messages_are_refused_while_too_many_wait_for_their_pause() {
        let retrying = Retrying::new(false);
        let limit = retrying.stage.group.queues.limits.memory().messages;
        (0..limit).for_each(|_| retrying.retry("again", 10));
        let group = &retrying.stage.group;
        assert!(group.backlog.is_over_quota());
        retrying.stage.waits(retrying.stage.published_as("new", QoS::AtLeastOnce));
        assert_eq!(group.waiting(), limit, "it is refused");
    }

    #[test]
    fn ended_group_drops_its_waiting_messages() {
        let retrying = Retrying::new(false);
        let queues = Arc::clone(&retrying.stage.group.queues);
        (0..3).for_each(|_| retrying.retry("again", 10));
        assert_eq!(queues.budget.messages(), 3);
        assert_eq!(retrying.stage.group.end(), 3);
        assert_eq!((queues.budget.messages(), queues.budget.used()), (0, 0));
    }
}
