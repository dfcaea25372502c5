//! Records of the messages that a client program reports.

use std::ops::Range;
use std::sync::Arc;

use roaring::RoaringBitmap;

use crate::run::{Came, Counters, DueTimes, Layout, Part, Plan, Recorder, RunClock, Stamp, Unsent};

use super::line::{Line, PublishEnd};

/// Clients of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Clients {
    /// Publishers, by their streams.
    Publishers(Range<u32>),
    /// Subscribers, by their numbers in the layout.
    Subscribers { receivers: Range<u32>, is_group: bool },
}

/// Records and counts the messages of one program.
pub(super) struct Records {
    clients: Clients,
    plan: Arc<Plan>,
    layout: Arc<Layout>,
    clock: RunClock,
    recorder: Recorder,
    start_ns: Option<u64>,
    /// Due times of each stream; none without a schedule.
    schedules: Vec<DueTimes>,
    /// Ended messages of the program's own streams.
    ended: Vec<Ended>,
    is_done: bool,
    /// Payload of the last arrival, as the recorder reads it.
    payload: Vec<u8>,
}

/// Numbers of the ended messages of a stream.
#[derive(Debug, Default)]
struct Ended {
    /// One more than the highest number.
    next: u32,
    numbers: RoaringBitmap,
}

impl Records {
    pub(super) fn new(clients: Clients, plan: &Arc<Plan>, layout: &Arc<Layout>, clock: RunClock) -> Self {
        let own = match &clients {
            Clients::Publishers(streams) => streams.len(),
            Clients::Subscribers { .. } => 0,
        };
        Self {
            schedules: (0..layout.streams()).map_while(|publisher| DueTimes::of(plan, publisher)).collect(),
            recorder: Recorder::new(Arc::clone(layout), plan, u64::MAX),
            ended: (0..own).map(|_| Ended::default()).collect(),
            payload: vec![0; plan.publishers.payload as usize],
            plan: Arc::clone(plan),
            layout: Arc::clone(layout),
            start_ns: None,
            is_done: false,
            clients,
            clock,
        }
    }

    /// Records that all clients of the program are connected.
    pub(super) fn connected(&mut self, took: std::time::Duration) {
        let clients = match &self.clients {
            Clients::Publishers(clients) => clients.len(),
            Clients::Subscribers { receivers, .. } => receivers.len(),
        };
        (0..clients).for_each(|_| self.recorder.connected(took, self.clock.now_ns()));
    }

    pub(super) fn has_started(&self) -> bool {
        self.start_ns.is_some()
    }

    /// True once all messages have their line.
    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Number of the messages that have ended at their publishers.
    pub(super) fn ended(&self) -> u64 {
        self.ended.iter().map(|ended| ended.numbers.len()).sum()
    }

    /// Sets the start of the run.
    pub(super) fn start(&mut self, start_ns: u64) {
        self.start_ns = Some(start_ns);
        self.recorder.start(start_ns);
        self.schedules.iter_mut().for_each(|schedule| schedule.start(start_ns));
    }

    /// p99 of the last full second with arrivals, in microseconds.
    pub(super) fn last_p99_us(&self) -> u64 {
        self.recorder.last_p99_us()
    }

    /// Records a line that was read at `now_ns`.
    ///
    /// # Errors
    /// The line cannot be true. The text says why.
    pub(super) fn take(&mut self, line: Line, now_ns: u64, counters: &Counters) -> Result<(), String> {
        match line {
            Line::Ready => Err("it is ready already".to_owned()),
            Line::Done => self.done(counters),
            Line::Published { stream, number, due_ns, sent_ns, end } => {
                self.published(stream, number, due_ns, sent_ns, end, now_ns, counters)
            }
            Line::Received { receiver, stream, number, due_ns, received_ns, is_repeated } => {
                let stamp = Stamp { due_ns, tag: self.plan.tag, stream, sequence: number, late_us: 0 };
                self.received(receiver, stamp, received_ns, is_repeated, now_ns, counters)
            }
        }
    }

    fn done(&mut self, counters: &Counters) -> Result<(), String> {
        match self.clients {
            Clients::Publishers(_) => {
                self.is_done = true;
                counters.publishing.set(0);
                Ok(())
            }
            Clients::Subscribers { .. } => Err("only publishers are done".to_owned()),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "they are the words of a line")]
    fn published(
        &mut self,
        stream: u32,
        number: u32,
        due_ns: u64,
        sent_ns: u64,
        end: PublishEnd,
        now_ns: u64,
        counters: &Counters,
    ) -> Result<(), String> {
        let Clients::Publishers(streams) = &self.clients else { return Err("subscribers have no P lines".to_owned()) };
        if !streams.contains(&stream) {
            return Err(format!("its streams are {} to {}", streams.start, streams.end - 1));
        }
        if self.is_done {
            return Err("it is done already".to_owned());
        }
        let place = (stream - streams.start) as usize;
        self.check_time(sent_ns, now_ns)?;
        let due_ns = self.due_ns(stream, number, due_ns, TOLERANCE_NS)?;
        if sent_ns.saturating_add(TOLERANCE_NS) < due_ns {
            return Err("it was sent before it was due".to_owned());
        }
        let is_last = self.ended[place].add(number)?;
        if is_last {
            self.recorder.attempted(stream, number..number + 1, due_ns);
        }
        if !self.schedules.is_empty() {
            let late_us = sent_ns.saturating_sub(due_ns) / 1_000;
            self.recorder.sent_late(u32::try_from(late_us).unwrap_or(u32::MAX));
        }
        match end {
            PublishEnd::Acknowledged(acked_ns) => {
                self.check_time(acked_ns, now_ns)?;
                if acked_ns < sent_ns {
                    return Err("it was acknowledged before it was sent".to_owned());
                }
                if self.plan.publishers.qos > 0 {
                    self.recorder.acknowledged(due_ns, acked_ns);
                }
                self.recorder.published(stream, number..number + 1, acked_ns);
                counters.published.add(1);
                counters.expected.add(self.layout.copies(stream));
            }
            PublishEnd::Refused => {
                self.recorder.not_taken(stream, number, sent_ns);
                counters.not_taken.add(1);
            }
            PublishEnd::Unconfirmed => counters.doubtful.add(self.layout.copies(stream)),
        }
        Ok(())
    }

    fn received(
        &mut self,
        receiver: u32,
        stamp: Stamp,
        received_ns: u64,
        is_repeated: bool,
        now_ns: u64,
        counters: &Counters,
    ) -> Result<(), String> {
        let Clients::Subscribers { receivers, is_group } = &self.clients else {
            return Err("publishers have no S lines".to_owned());
        };
        if !receivers.contains(&receiver) {
            return Err(format!("its receivers are {} to {}", receivers.start, receivers.end - 1));
        }
        let is_group = *is_group;
        if stamp.stream >= self.layout.streams() {
            return Err(format!("the run has {} streams", self.layout.streams()));
        }
        self.check_time(received_ns, now_ns)?;
        let due_ns = self.due_ns(stamp.stream, stamp.sequence, stamp.due_ns, STEP_NS)?;
        if received_ns.saturating_add(STEP_NS) < due_ns {
            return Err("it was received before it was due".to_owned());
        }
        Stamp { due_ns, ..stamp }.encode(&mut self.payload);
        match self.recorder.arrived(receiver, &self.payload, is_repeated, received_ns) {
            Came::First => counters.received.add(1),
            Came::Again => {
                counters.copies.add(1);
                counters.doubtful.add(u64::from(is_group));
            }
            Came::NotOurs => {}
        }
        Ok(())
    }

    /// Checks a time of a line that was read at `now_ns`.
    fn check_time(&self, time_ns: u64, now_ns: u64) -> Result<(), String> {
        let Some(start_ns) = self.start_ns else { return Err("the run has not begun".to_owned()) };
        if time_ns.saturating_add(STEP_NS) < start_ns || time_ns > now_ns.saturating_add(STEP_NS) {
            return Err(format!(
                "{time_ns} is no time of the run, where it is {now_ns}; add TENBIN_CLOCK_NS to the monotonic clock"
            ));
        }
        Ok(())
    }

    /// Due time of a message by the plan's schedule. Without a schedule, the given time, which is at most `early_ns` before
    /// the run.
    fn due_ns(&self, stream: u32, number: u32, given_ns: u64, early_ns: u64) -> Result<u64, String> {
        let Some(schedule) = self.schedules.get(stream as usize) else {
            let start_ns = self.start_ns.unwrap_or_default();
            if given_ns.saturating_add(early_ns) < start_ns {
                return Err(format!("it was due at {given_ns}, before the start of the run at {start_ns}"));
            }
            return Ok(given_ns);
        };
        let due_ns = schedule.due_ns(number.into());
        if due_ns.abs_diff(given_ns) > TOLERANCE_NS {
            return Err(format!("message {number} of stream {stream} was due at {due_ns}"));
        }
        Ok(due_ns)
    }

    /// The recorded part. Publishing was stopped at `stop_ns`.
    pub(super) fn into_part(mut self, stop_ns: u64) -> Part {
        if let (Clients::Publishers(streams), true) = (&self.clients, self.start_ns.is_some()) {
            for (stream, ended) in streams.clone().zip(&self.ended) {
                let Some(schedule) = self.schedules.get(stream as usize) else { continue };
                let due = schedule.due_by(stop_ns).min(self.plan.publishers.messages.unwrap_or(u64::MAX));
                let messages = due.saturating_sub(ended.next.into());
                if messages > 0 {
                    self.recorder.unsent(Unsent {
                        messages,
                        deliveries: u32::try_from(self.layout.copies(stream)).unwrap_or(u32::MAX),
                        first_due_ns: schedule.due_ns(ended.next.into()),
                        step_ns: schedule.interval_ns(),
                        now_ns: stop_ns,
                    });
                }
            }
        }
        self.recorder.into_part()
    }
}

impl Ended {
    /// Adds a number; returns whether it is the highest so far.
    ///
    /// # Errors
    /// It was added before, or is far above all others.
    fn add(&mut self, number: u32) -> Result<bool, String> {
        if u64::from(number) > u64::from(self.next) + MOST_UNDER_WAY {
            return Err(format!("messages count from 0, and {} is the next one", self.next));
        }
        if !self.numbers.insert(number) {
            return Err("the message has its line already".to_owned());
        }
        let is_highest = number >= self.next;
        self.next = self.next.max(number + 1);
        Ok(is_highest)
    }
}

/// Greatest difference between a reported due time and the schedule's.
const TOLERANCE_NS: u64 = 1_000_000;

/// Greatest deviation of a program's clock, which may be the system's.
const STEP_NS: u64 = 1_000_000_000;

/// Most messages of a stream that are sent and have not ended.
const MOST_UNDER_WAY: u64 = 100_000_000;
