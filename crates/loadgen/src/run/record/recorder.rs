use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::lane::{LaneTally, SentStream};
use super::latencies::Latencies;
use super::numbered::Numbered;
use super::tally::{ConnectionCounts, ReceiverTally, SecondTally, at_second};
use super::ticks::TickTally;
use super::trace::{Trace, WorkRecord};
use super::{Layout, Part};
use crate::run::{MessageRecord, Pace, Plan, PublishRecord, Stamp};

/// Recorder of one driver thread for everything its clients send and receive.
///
/// It takes no locks, reads no clock and, once a stream has begun, allocates next to nothing. All times are those of
/// the run's clock, in nanoseconds since 1970-01-01 UTC. All arrivals at one receiver, and all events of one stream at
/// its publisher, must go to one recorder. Methods panic if the layout has no stream or receiver of that number.
#[derive(Debug)]
pub struct Recorder {
    layout: Arc<Layout>,
    tag: u16,
    payload_len: usize,
    /// Whether the run has no publishers, so that all arrivals are foreign.
    only_receives: bool,
    keeps_records: bool,
    /// Whether due times follow from the plan.
    is_scheduled: bool,
    start_ns: u64,
    last_ns: u64,
    open: OpenSecond,
    seconds: Vec<SecondTally>,
    streams: Numbered<SentStream>,
    receivers: Numbered<ReceiverTally>,
    /// By `receiver · streams + stream`.
    lanes: Numbered<LaneTally>,
    last_p99_us: u64,
    connections: ConnectionCounts,
    connects: Latencies,
    not_taken: u64,
    unsent: Vec<Unsent>,
    latest_send_us: u32,
    arrivals: Vec<MessageRecord>,
    departures: Vec<PublishRecord>,
    /// Only if the plan asks for them.
    ticks: Option<Box<TickTally>>,
    /// Only in a scenario that keeps records.
    trace: Option<Trace>,
}

/// Messages that were due at regular intervals and never sent.
#[derive(Debug, Clone, Copy)]
pub struct Unsent {
    /// Number of messages.
    pub messages: u64,
    /// Deliveries that each message would have called for.
    pub deliveries: u32,
    /// When the first message was due.
    pub first_due_ns: u64,
    /// Interval from one due time to the next.
    pub step_ns: u64,
    /// When the time was over.
    pub now_ns: u64,
}

/// The second that current arrivals and acknowledgements belong to.
#[derive(Debug)]
struct OpenSecond {
    number: usize,
    from_ns: u64,
    to_ns: u64,
    latency: Latencies,
    uncorrected: Latencies,
    received_bytes: u64,
    acknowledgement: Latencies,
}

/// Classification of an arrival at a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// The first copy of a message of this run. Payloads too small for a sequence number always count as first.
    First,
    /// A further copy.
    Again,
    /// Not a message of this run, or not for this receiver.
    NotOurs,
}

/// Content of an arrival's payload.
enum Seen {
    Message(Stamp),
    /// Payload too small for more than a time.
    Time {
        due_ns: u64,
    },
    Foreign,
    Wrong,
}

impl Recorder {
    /// A recorder for clients of this layout.
    ///
    /// Seconds count from `start_ns`; earlier events count in second 0. Pass `u64::MAX` if the start is not known yet,
    /// and call [`Recorder::start`].
    pub fn new(layout: Arc<Layout>, plan: &Plan, start_ns: u64) -> Self {
        let streams = u64::from(layout.streams());
        let receivers = layout.receivers().len() as u64;
        Self {
            tag: plan.tag,
            payload_len: plan.publishers.payload as usize,
            only_receives: plan.publishers.count == 0,
            keeps_records: plan.records,
            is_scheduled: plan.publishers.pace.is_scheduled(),
            start_ns,
            last_ns: 0,
            open: OpenSecond::new(),
            seconds: Vec::new(),
            streams: Numbered::new(streams),
            receivers: Numbered::new(receivers),
            lanes: Numbered::new(receivers.saturating_mul(streams)),
            last_p99_us: 0,
            connections: ConnectionCounts::default(),
            connects: Latencies::new(DIGITS),
            not_taken: 0,
            unsent: Vec::new(),
            latest_send_us: 0,
            arrivals: Vec::new(),
            departures: Vec::new(),
            ticks: plan.ticks.then(|| Box::new(TickTally::new(start_ns))),
            trace: (plan.records && matches!(plan.publishers.pace, Pace::Arrivals { .. })).then(Trace::default),
            layout,
        }
    }

    /// Sets the beginning of second 0. Call it before anything is published.
    pub fn start(&mut self, start_ns: u64) {
        self.close_second();
        self.start_ns = start_ns;
        if let Some(ticks) = &mut self.ticks {
            ticks.start(start_ns);
        }
    }

    /// Records that messages of `stream` were handed to a socket; the first one was due at `due_ns`, the others then or
    /// later.
    ///
    /// Numbers below the first one count as handed over too.
    pub fn attempted(&mut self, stream: u32, sequences: Range<u32>, due_ns: u64) {
        let is_scheduled = self.is_scheduled;
        let sent = self.stream(stream);
        if !is_scheduled && !sequences.is_empty() {
            sent.note_due(sequences.start, due_ns);
        }
        sent.attempt(sequences.end);
    }

    /// Records published messages of `stream`: written at QoS 0, acknowledged at QoS 1 and 2.
    pub fn published(&mut self, stream: u32, sequences: Range<u32>, now_ns: u64) {
        let second = self.second_of(now_ns);
        at_second(&mut self.seconds, second).published += sequences.len() as u64;
        self.last_ns = self.last_ns.max(now_ns);
        if let Some(ticks) = &mut self.ticks {
            ticks.answer(sequences.len() as u32, now_ns);
        }
        if self.keeps_records {
            let record = |sequence| PublishRecord { stream, sequence, published_ns: now_ns };
            self.departures.extend(sequences.clone().map(record));
        }
        self.stream(stream).publish(sequences);
    }

    /// Records the acknowledgement of a message that was due at `due_ns`, for the time that it took.
    ///
    /// [`Recorder::published`] records the message itself. There is none at QoS 0.
    #[inline]
    pub fn acknowledged(&mut self, due_ns: u64, now_ns: u64) {
        self.turn_second(now_ns);
        self.open.acknowledgement.record(now_ns.saturating_sub(due_ns));
        if let Some(ticks) = &mut self.ticks {
            ticks.acknowledge(due_ns, now_ns);
        }
    }

    /// Records that the broker refused a message that was handed to a socket.
    pub fn not_taken(&mut self, stream: u32, sequence: u32, now_ns: u64) {
        self.not_taken += 1;
        self.stream(stream).refuse(sequence);
        self.second(now_ns).refused += 1;
        if let Some(ticks) = &mut self.ticks {
            ticks.answer(1, now_ns);
        }
    }

    /// Records how long after its due time a message was handed to a socket.
    pub fn sent_late(&mut self, late_us: u32) {
        self.latest_send_us = self.latest_send_us.max(late_us);
    }

    /// Records the creation of a scenario's next `messages` messages.
    pub(crate) fn created(&mut self, now_ns: u64, messages: u64) {
        if let Some(trace) = &mut self.trace {
            trace.created_ns.extend(std::iter::repeat_n(now_ns, messages as usize));
        }
    }

    /// Records a message of a scenario that a worker has finished.
    pub(crate) fn worked(&mut self, record: WorkRecord) {
        if let Some(trace) = &mut self.trace {
            trace.works.push(record);
        }
    }

    /// Records a load report of a scenario's worker.
    pub(crate) fn reported(&mut self, receiver: u32, at_ns: u64, mean: Duration) {
        if let Some(trace) = &mut self.trace {
            trace.reports.push((receiver, at_ns, mean));
        }
    }

    /// p99 of the latencies of the last full second with arrivals, in microseconds; 0 for none.
    pub fn last_p99_us(&self) -> u64 {
        self.last_p99_us
    }

    /// Records messages that were due but not handed to a socket when the time was over.
    pub fn unsent(&mut self, unsent: Unsent) {
        self.unsent.push(unsent);
    }

    /// Records an arrival at a receiver; `dup` is its DUP flag.
    ///
    /// Lanes are per member: a message that arrives at two members of a share group is [`Came::First`] at both.
    pub fn arrived(&mut self, receiver: u32, payload: &[u8], dup: bool, now_ns: u64) -> Came {
        let mut came = Came::First;
        let seen = match self.read(payload, now_ns) {
            Seen::Message(stamp) => {
                came = self.arrived_in_lane(receiver, &stamp, dup);
                if came == Came::NotOurs { Seen::Wrong } else { Seen::Message(stamp) }
            }
            seen => seen,
        };
        let (stamp, late_us) = match seen {
            Seen::Message(stamp) => (stamp, Some(stamp.late_us)),
            Seen::Time { due_ns } => {
                (Stamp { due_ns, tag: self.tag, stream: u32::MAX, sequence: u32::MAX, late_us: 0 }, None)
            }
            Seen::Foreign => {
                self.receiver(receiver).counts.foreign += 1;
                return Came::NotOurs;
            }
            Seen::Wrong => {
                self.receiver(receiver).counts.wrong += 1;
                return Came::NotOurs;
            }
        };
        self.turn_second(now_ns);
        let second = self.open.number;
        let latency_ns = self.open.arrived(stamp.due_ns, late_us, now_ns);
        self.open.received_bytes += payload.len() as u64;
        let tally = self.receiver(receiver);
        tally.counts.receive(second, dup);
        tally.latency.record(latency_ns);
        self.last_ns = self.last_ns.max(now_ns);
        if let Some(ticks) = &mut self.ticks
            && came == Came::First
        {
            ticks.arrive(stamp.due_ns, now_ns);
        }
        if self.keeps_records {
            let Stamp { stream, sequence, due_ns, late_us, .. } = stamp;
            self.arrivals.push(MessageRecord { stream, sequence, receiver, due_ns, late_us, received_ns: now_ns });
        }
        came
    }

    /// Records that a simulated worker took a message out of its queue; the message was due at `due_ns`.
    pub fn taken(&mut self, receiver: u32, due_ns: u64, taken_ns: u64) {
        let digits = self.layout.receiver_digits();
        let waiting = self.receiver(receiver).waiting.get_or_insert_with(|| Box::new(Latencies::new(digits)));
        waiting.record(taken_ns.saturating_sub(due_ns));
    }

    /// Records that a simulated worker processed a message, and the time it took.
    pub fn processed(&mut self, receiver: u32, took: Duration, now_ns: u64) {
        let second = self.second_of(now_ns);
        self.receiver(receiver).counts.process(second, took);
    }

    /// Records a client's first successful CONNACK, and the time since its connection was begun or due.
    pub fn connected(&mut self, took: Duration, now_ns: u64) {
        self.connections.accept(took, now_ns);
        self.last_ns = self.last_ns.max(now_ns);
        self.connects.record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Records a refused connection: CONNACK with an error, or closed instead.
    pub fn refused(&mut self, now_ns: u64) {
        self.connections.refused += 1;
        self.second(now_ns).connections_refused += 1;
    }

    /// Records a connection that ended unexpectedly.
    pub fn lost(&mut self, now_ns: u64) {
        self.connections.lost += 1;
        self.second(now_ns).connections_lost += 1;
    }

    /// Records a connection that the run cut.
    pub fn cut(&mut self) {
        self.connections.cut += 1;
    }

    /// Records that a client reconnected after a cut or a loss, and whether its session was present.
    pub fn reconnected(&mut self, session_present: bool, now_ns: u64) {
        self.connections.reconnected += 1;
        self.second(now_ns).reconnects += 1;
        self.connections.sessions_present += u64::from(session_present);
    }

    /// Records a switch to a server that DISCONNECT has named. `is_home`: it is the client's first one.
    pub fn switched(&mut self, took: Duration, is_home: bool, now_ns: u64) {
        self.connections.switch(took, is_home, now_ns);
    }

    /// Records a Will Message.
    pub fn will(&mut self) {
        self.connections.wills += 1;
    }

    /// Ends recording; returns the results.
    pub fn into_part(mut self) -> Part {
        self.close_second();
        let streams = u64::from(self.layout.streams());
        let lane_of = |number: u64| ((number / streams) as u32, (number % streams) as u32);
        Part {
            start_ns: (self.start_ns < u64::MAX).then_some(self.start_ns),
            last_ns: self.last_ns,
            seconds: self.seconds,
            streams: renumber(self.streams, |number| number as u32, |stream| stream),
            receivers: renumber(self.receivers, |number| number as u32, ReceiverTally::pack),
            lanes: renumber(self.lanes, lane_of, LaneTally::pack),
            connections: self.connections,
            connects: self.connects.pack(),
            not_taken: self.not_taken,
            unsent: self.unsent.iter().map(|unsent| unsent.messages).sum(),
            unsent_waited: waited(&self.unsent).pack(),
            latest_send_us: self.latest_send_us,
            arrivals: self.arrivals,
            departures: self.departures,
            ticks: self.ticks.map(|ticks| ticks.pack()).unwrap_or_default(),
            trace: self.trace.unwrap_or_default(),
        }
    }

    #[inline]
    fn read(&self, payload: &[u8], now_ns: u64) -> Seen {
        if self.only_receives {
            return read_time(payload, now_ns);
        }
        let is_whole = payload.len() == self.payload_len;
        if self.payload_len < Stamp::LEN {
            return match Stamp::decode_due_ns(payload) {
                Some(due_ns) if is_whole => Seen::Time { due_ns },
                _ => Seen::Foreign,
            };
        }
        match Stamp::decode(payload) {
            Some(stamp) if stamp.tag != self.tag => Seen::Foreign,
            // `u32::MAX` is no sequence number: one more than it would overflow.
            Some(stamp) if is_whole && stamp.sequence < u32::MAX => Seen::Message(stamp),
            Some(_) => Seen::Wrong,
            None => Seen::Foreign,
        }
    }

    /// Records an arrival in its lane; [`Came::NotOurs`] if the stream is not for this receiver.
    #[inline]
    fn arrived_in_lane(&mut self, receiver: u32, stamp: &Stamp, dup: bool) -> Came {
        let came = |is_first| if is_first { Came::First } else { Came::Again };
        let streams = self.layout.streams();
        if stamp.stream >= streams {
            return Came::NotOurs;
        }
        let number = u64::from(receiver) * u64::from(streams) + u64::from(stamp.stream);
        if let Some(lane) = self.lanes.get_mut(number) {
            return came(lane.arrive(stamp.sequence, dup));
        }
        if self.layout.streams_for(receiver).binary_search(&stamp.stream).is_err() {
            return Came::NotOurs;
        }
        came(self.lanes.get_or_insert_with(number, LaneTally::default).arrive(stamp.sequence, dup))
    }

    #[inline]
    fn receiver(&mut self, receiver: u32) -> &mut ReceiverTally {
        let layout = &self.layout;
        self.receivers.get_or_insert_with(receiver.into(), || ReceiverTally::new(layout.receiver_digits()))
    }

    fn stream(&mut self, stream: u32) -> &mut SentStream {
        self.streams.get_or_insert_with(stream.into(), SentStream::default)
    }

    /// Counters of the second of `now_ns`. The open second's histograms are not yet counted in.
    fn second(&mut self, now_ns: u64) -> &mut SecondTally {
        let second = self.second_of(now_ns);
        at_second(&mut self.seconds, second)
    }

    fn second_of(&self, now_ns: u64) -> usize {
        let second = now_ns.saturating_sub(self.start_ns) / NS_PER_SECOND;
        usize::try_from(second).unwrap_or(usize::MAX).min(LAST_SECOND)
    }

    /// Makes the second of `now_ns` the open one.
    #[inline]
    fn turn_second(&mut self, now_ns: u64) {
        if !(self.open.from_ns..self.open.to_ns).contains(&now_ns) {
            self.close_second();
            self.open_second(now_ns);
        }
    }

    fn open_second(&mut self, now_ns: u64) {
        let number = self.second_of(now_ns);
        let begins_ns = self.start_ns.saturating_add(number as u64 * NS_PER_SECOND);
        self.open.number = number;
        // Early arrivals count in second 0; arrivals after the last second count in the last one.
        self.open.from_ns = if number == 0 { 0 } else { begins_ns };
        self.open.to_ns = if number == LAST_SECOND { u64::MAX } else { begins_ns.saturating_add(NS_PER_SECOND) };
    }

    /// Closes the open second.
    fn close_second(&mut self) {
        let open = &mut self.open;
        if !open.latency.is_empty() || !open.acknowledgement.is_empty() {
            if !open.latency.is_empty() {
                self.last_p99_us = open.latency.p99_us();
            }
            let closed = SecondTally {
                received: open.latency.len(),
                latency: open.latency.take(),
                uncorrected: open.uncorrected.take(),
                received_bytes: std::mem::take(&mut open.received_bytes),
                acknowledgement: open.acknowledgement.take(),
                ..SecondTally::default()
            };
            at_second(&mut self.seconds, open.number).merge(closed);
        }
        (open.from_ns, open.to_ns) = (0, 0);
    }
}

impl OpenSecond {
    /// No open second.
    fn new() -> Self {
        let [latency, uncorrected, acknowledgement] = [(); 3].map(|()| Latencies::new(DIGITS));
        Self { number: 0, from_ns: 0, to_ns: 0, latency, uncorrected, received_bytes: 0, acknowledgement }
    }

    /// Records an arrival; returns its latency. Clocks that differ a little can make it negative, which counts as 0.
    #[inline]
    fn arrived(&mut self, due_ns: u64, late_us: Option<u32>, now_ns: u64) -> u64 {
        let latency_ns = now_ns.saturating_sub(due_ns);
        self.latency.record(latency_ns);
        if let Some(late_us) = late_us {
            self.uncorrected.record(latency_ns.saturating_sub(u64::from(late_us) * 1_000));
        }
        latency_ns
    }
}

/// Reads the time of another program's message: another run's, or MQTTLoader's, whose times are in microseconds.
///
/// A time more than a day from now means that the payload does not begin with a time.
fn read_time(payload: &[u8], now_ns: u64) -> Seen {
    let Some(time) = Stamp::decode_due_ns(payload) else { return Seen::Foreign };
    let due_ns = if now_ns.abs_diff(time) > DAY_NS { time.saturating_mul(1_000) } else { time };
    if now_ns.abs_diff(due_ns) > DAY_NS { Seen::Foreign } else { Seen::Time { due_ns } }
}

/// Waiting times of unsent messages at the end, each counted once per delivery.
fn waited(unsent: &[Unsent]) -> Latencies {
    let mut waited = Latencies::new(DIGITS);
    for &Unsent { messages, deliveries, first_due_ns, step_ns, now_ns } in unsent {
        for message in 0..messages {
            let due_ns = first_due_ns.saturating_add(step_ns.saturating_mul(message));
            waited.record_times(now_ns.saturating_sub(due_ns), deliveries);
        }
    }
    waited
}

fn renumber<T, K, V>(values: Numbered<T>, number: impl Fn(u64) -> K, pack: impl Fn(T) -> V) -> Vec<(K, V)> {
    values.into_sorted().into_iter().map(|(key, value)| (number(key), pack(value))).collect()
}

const NS_PER_SECOND: u64 = 1_000_000_000;
const DAY_NS: u64 = 24 * 60 * 60 * NS_PER_SECOND;

/// Last second of the longest run, some eleven days; later times, for example by a wrong clock, count here.
const LAST_SECOND: usize = 1_000_000;

/// Significant digits of the latencies of a second, and thereby of the run.
pub(super) const DIGITS: u8 = 3;
