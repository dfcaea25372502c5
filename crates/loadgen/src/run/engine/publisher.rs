use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll};

use tenbin_codec::{ConnAck, PacketType, QoS, TopicName};

use super::block::Block;
use super::connection::{self, Connection, Traffic};
use super::driver_thread::DriverThread;
use super::frame::{FrameOptions, Frames, append_ack};
use super::in_flight::{AckStep, Again, InFlight, Sent};
use super::link::Link;
use super::shared::Phase;
use super::streams::Streams;
use crate::LoadgenError;
use crate::run::{CutWhose, DueTimes, Pace, Plan, Stamp, Unsent};

/// A publishing connection.
///
/// It sends messages in blocks of many frames: as they become due, or as fast as window and socket allow. It completes
/// the handshakes of QoS 1 and 2 with a limited number of messages in flight.
pub(super) struct Publisher {
    connection: Connection,
    tag: u16,
    qos: QoS,
    streams: Streams,
    frames: Frames,
    timing: Timing,
    block: Block,
    /// Number of the next message.
    next: u64,
    /// Number of messages in all, and number of messages due before the time is over.
    total: u64,
    end: u64,
    /// Whether it still counts as publishing.
    is_publishing: bool,
    in_flight: InFlight,
    /// PUBRELs for the next block.
    answers: Vec<u8>,
    /// The due time it waits for.
    waits_for: Option<u64>,
}

/// Rule for when messages are sent.
#[derive(Debug, Clone)]
enum Timing {
    /// As soon as the socket accepts them.
    AtOnce,
    /// At their due times.
    Scheduled(DueTimes),
    /// While the window is open.
    Windowed,
}

impl Timing {
    /// The timing of publisher `number`.
    fn of(plan: &Plan, number: u32) -> Self {
        match (DueTimes::of(plan, number), plan.publishers.pace) {
            (Some(due_times), _) => Self::Scheduled(due_times),
            (None, Pace::Closed { .. }) => Self::Windowed,
            (None, _) => Self::AtOnce,
        }
    }
}

impl Publisher {
    /// Connects publisher `number`.
    ///
    /// # Errors
    /// The broker does not accept the connection, or announces that it will not accept the messages. The error names
    /// the client.
    pub(super) async fn open(driver: Rc<DriverThread>, number: u32) -> Result<(Self, Link), LoadgenError> {
        let publishers = &driver.plan().publishers;
        let qos = QoS::from_bits(publishers.qos).unwrap_or_default();
        let streams = Streams::of(driver.layout(), number, publishers.topics);
        let topics = (streams.first()..streams.first() + streams.topics())
            .map(|stream| TopicName::try_from(driver.layout().topic(stream)))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| LoadgenError::Arguments(format!("topic of publisher {number}: {error}")))?;
        let options = FrameOptions {
            version: driver.common.connector.version(),
            qos,
            retain: publishers.retain,
            payload_len: publishers.payload as usize,
        };
        let frames = Frames::new(options, topics);

        let id = driver.layout().publisher_client_id(number);
        let mut client = driver.client(id, driver.layout().publisher_broker(number), number, publishers.spread);
        client.has_will = true;
        client.keep_alive = publishers.keep_alive;
        let connected = driver.open(&client).await?;
        check_capabilities(&connected.connack, options, frames.len_max())
            .map_err(|what| LoadgenError::connect(&client.door().place, format_args!("{}: {what}", client.id)))?;
        let share = match publishers.pace {
            Pace::Closed { window } => window / streams.copies_max().max(1),
            Pace::Open { .. } | Pace::Arrivals { .. } | Pace::Unlimited => u64::MAX,
        };
        // A u32 cannot number more, which is as good as no end.
        let most = u64::from(streams.topics()).saturating_mul(u32::MAX.into());
        let total = publishers.messages.map_or(most, |messages| messages.min(most));
        let publisher = Self {
            tag: driver.plan().tag,
            qos,
            timing: Timing::of(driver.plan(), number),
            block: Block::new(share, publishers.count, frames.len_max()),
            next: 0,
            total,
            end: total,
            is_publishing: true,
            in_flight: InFlight::new(qos, in_flight_limit(&driver, &connected.connack)),
            answers: Vec::new(),
            waits_for: None,
            connection: Connection::new(driver, client, CutWhose::Publishers, number),
            streams,
            frames,
        };
        publisher.connection.driver.counters().publishing.add(1);
        Ok((publisher, connected.link))
    }

    /// Publishes until the run is over.
    pub(super) async fn run(mut self, link: Link) {
        self.begin();
        let link = connection::keep(&mut self, link).await;
        self.finish();
        self.connection.driver.retire(&self.connection.client, link).await;
    }

    /// Starts the schedule, now that the start of the run is known.
    fn begin(&mut self) {
        let start_ns = self.connection.driver.start_ns();
        if let Timing::Scheduled(schedule) = &mut self.timing {
            schedule.start(start_ns);
            let limit_ns =
                u64::try_from(self.connection.driver.plan().schedule.time_limit.as_nanos()).unwrap_or(u64::MAX);
            // Messages due at the end of the time limit or later are not sent.
            self.end = self.total.min(schedule.due_by(start_ns.saturating_add(limit_ns) - 1));
        }
    }

    /// Fills the empty block with acknowledgements and as many messages as are allowed.
    fn refill(&mut self, link: &mut Link) {
        link.clear();
        self.block.begin();
        link.out.append(&mut self.answers);
        if !self.is_publishing {
            return;
        }
        if self.next == self.total {
            return self.finish();
        }
        let room = self.block.len_max.min(self.in_flight.room()).min(self.end - self.next);
        if room == 0 {
            return;
        }
        let now_ns = self.connection.driver.now_ns();
        match &self.timing {
            Timing::AtOnce => self.append(link, room, now_ns, |_| now_ns),
            Timing::Scheduled(schedule) => {
                let schedule = schedule.clone();
                self.append_due(link, &schedule, room, now_ns);
            }
            Timing::Windowed => {
                let Some(window) = &self.connection.driver.shared().window else { return };
                let count = room.min(window.room(self.streams.copies_max()));
                if count > 0 {
                    let deliveries = self.streams.deliveries(self.next..self.next + count);
                    let due_ns = self.block.claim(window, deliveries, now_ns);
                    self.append(link, count, now_ns, |_| due_ns);
                }
            }
        }
        if self.next == self.total {
            self.finish();
        }
    }

    /// Appends the messages that are due, `room` at most.
    fn append_due(&mut self, link: &mut Link, schedule: &DueTimes, room: u64, now_ns: u64) {
        let due = schedule.due_by(now_ns).saturating_sub(self.next).min(room);
        if due == 0 {
            return;
        }
        let due_ns = schedule.due_ns(self.next);
        self.connection.driver.recorder().sent_late(late_us(due_ns, now_ns));
        if !schedule.counts_from_creation() {
            return self.append(link, due, now_ns, |message| schedule.due_ns(message));
        }
        self.connection.driver.recorder().created(now_ns, due);
        // It was waiting for its timer, so that the delay is the timer's.
        if self.waits_for == Some(due_ns) {
            self.append(link, due, now_ns, |_| now_ns);
        } else {
            self.append(link, due, now_ns, |message| schedule.due_ns(message));
        }
    }

    /// Appends `count` messages, with these due times.
    #[inline]
    fn append(&mut self, link: &mut Link, count: u64, now_ns: u64, due_ns: impl Fn(u64) -> u64) {
        let messages = self.next..self.next + count;
        let first_due_ns = due_ns(self.next);
        let (mut topic, mut sequence) = self.streams.at(self.next);
        for message in messages.clone() {
            let due_ns = due_ns(message);
            let late_us = late_us(due_ns, now_ns);
            let packet_id = self.in_flight.begin(Sent { message, due_ns, late_us });
            let stamp = Stamp { due_ns, tag: self.tag, stream: self.streams.first() + topic, sequence, late_us };
            self.frames.append(topic as usize, packet_id, stamp, &mut link.out);
            topic += 1;
            if topic == self.streams.topics() {
                (topic, sequence) = (0, sequence + 1);
            }
        }
        self.next = messages.end;
        let mut recorder = self.connection.driver.recorder();
        for (stream, sequences) in self.streams.parts(messages) {
            recorder.attempted(stream, sequences, first_due_ns);
        }
        self.connection.driver.counters().in_flight.add(count);
    }

    /// Counts written messages, which at QoS 0 are published.
    fn count_written(&mut self, link: &Link) -> Result<(), String> {
        if self.qos.is_acknowledged() {
            return Ok(());
        }
        let messages = self.block.take_written(link, self.next)?;
        self.connection.driver.counters().in_flight.sub(messages.end - messages.start);
        publish(&self.connection.driver, &self.streams, messages);
        Ok(())
    }

    /// Handles the acknowledgements of one read; returns whether there was one.
    fn take_frames(&mut self, link: &mut Link, cx: &mut Context<'_>) -> Result<bool, String> {
        let Self { connection: Connection { driver, .. }, streams, in_flight, answers, .. } = self;
        // They usually arrive in the order of the messages: then one call covers all of them.
        let mut done = 0..0;
        let mut completed = 0;
        let mut now_ns = 0;
        let read = link.take_frames(cx, &mut driver.buffer.borrow_mut(), |frame| {
            match in_flight.acknowledge(&frame) {
                Some(AckStep::Done(sent)) => {
                    completed += 1;
                    // All acknowledgements of one read have the same time.
                    if now_ns == 0 {
                        now_ns = driver.now_ns();
                    }
                    driver.recorder().acknowledged(sent.due_ns, now_ns);
                    if sent.message != done.end {
                        publish(driver, streams, done.clone());
                        done = sent.message..sent.message;
                    }
                    done.end += 1;
                }
                Some(AckStep::Release(id)) => append_ack(PacketType::PubRel, id, answers),
                Some(AckStep::Refused(sent)) => {
                    completed += 1;
                    driver.counters().not_taken.add(1);
                    let (topic, sequence) = streams.at(sent.message);
                    driver.recorder().not_taken(streams.first() + topic, sequence, driver.now_ns());
                    unclaim(driver, streams, sent);
                }
                Some(AckStep::Nothing) => {}
                None if frame.packet_type() == Some(PacketType::PingResp) => {}
                None => return Err(frame.complaint()),
            }
            Ok(())
        });
        publish(driver, streams, done);
        driver.counters().in_flight.sub(completed);
        read
    }

    /// Registers for a wake-up; returns `false` if the publisher can go on right now.
    fn waits(&mut self, link: &Link) -> bool {
        if !link.is_written() || !self.is_publishing || self.in_flight.room() == 0 {
            return true; // the socket wakes it
        }
        match &self.timing {
            Timing::AtOnce => false,
            Timing::Scheduled(schedule) => {
                let due_ns = schedule.due_ns(self.next);
                if self.waits_for != Some(due_ns) {
                    self.waits_for = Some(due_ns);
                    self.connection.driver.pacer.wake_at(due_ns, self.connection.number);
                }
                true
            }
            Timing::Windowed => {
                let Some(window) = &self.connection.driver.shared().window else { return true };
                window.announce(self.connection.driver.thread);
                let is_closed = window.room(self.streams.copies_max()) == 0;
                if is_closed {
                    self.connection.driver.wait_for_window(self.connection.number);
                }
                is_closed
            }
        }
    }

    /// Sends unacknowledged packets again on a new connection [MQTT-4.4.0-1].
    fn send_again(&self, link: &mut Link) {
        for again in self.in_flight.again() {
            match again {
                Again::Release(id) => append_ack(PacketType::PubRel, id, &mut link.out),
                Again::Publish(id, Sent { message, due_ns, late_us }) => {
                    let (topic, sequence) = self.streams.at(message);
                    let stamp =
                        Stamp { due_ns, tag: self.tag, stream: self.streams.first() + topic, sequence, late_us };
                    self.frames.append_again(topic as usize, id, stamp, &mut link.out);
                }
            }
        }
    }

    /// Drops the in-flight messages of a lost session.
    ///
    /// The broker may have them, so that they stay unconfirmed. They keep their part of the window until they arrive or
    /// are given up.
    fn forget_in_flight(&mut self) {
        for again in self.in_flight.again() {
            if let Again::Publish(_, sent) = again {
                let deliveries = self.streams.deliveries(sent.message..sent.message + 1);
                self.connection.driver.counters().doubtful.add(deliveries);
            }
        }
        self.connection.driver.counters().in_flight.sub(self.in_flight.len() as u64);
        self.in_flight.clear();
    }

    /// Ends publishing: all messages are sent, or the time is over.
    fn finish(&mut self) {
        if !std::mem::take(&mut self.is_publishing) {
            return;
        }
        self.connection.driver.counters().publishing.sub(1);
        if let Timing::Scheduled(schedule) = &self.timing {
            let now_ns = self.connection.driver.now_ns();
            let due = schedule.due_by(now_ns).min(self.end);
            if due > self.next {
                let messages = due - self.next;
                // If topics have different numbers of subscribers, the mean counts.
                let deliveries = self.streams.deliveries(self.next..due).div_ceil(messages);
                self.connection.driver.recorder().unsent(Unsent {
                    messages,
                    deliveries: u32::try_from(deliveries).unwrap_or(u32::MAX),
                    first_due_ns: schedule.due_ns(self.next),
                    step_ns: schedule.interval_ns(),
                    now_ns,
                });
            }
        }
    }
}

impl Traffic for Publisher {
    fn connection(&self) -> &Connection {
        &self.connection
    }

    fn exchange(&mut self, link: &mut Link, cx: &mut Context<'_>) -> Result<bool, String> {
        if self.connection.driver.phase() != Phase::Running {
            // Send messages that became due since the last exchange; they do not count as unsent.
            if self.is_publishing && matches!(self.timing, Timing::Scheduled(_)) && link.is_written() {
                self.refill(link);
            }
            self.finish();
        }
        let read = self.take_frames(link, cx)?;
        if link.is_written() {
            self.refill(link);
        }
        link.poll_ping(cx)?;
        let wrote = matches!(link.poll_write(cx)?, Poll::Ready(1..));
        if wrote {
            self.count_written(link)?;
        }
        Ok(read || wrote || !self.waits(link))
    }

    /// Drops the block: unwritten messages at QoS 0, and all PUBRELs, which are sent anew.
    ///
    /// A client that reconnects sends dropped messages later, with the same due times.
    fn lost(&mut self) {
        self.answers.clear();
        if !self.qos.is_acknowledged() {
            let dropped = self.block.drop_unwritten(self.next);
            let driver = &self.connection.driver;
            driver.counters().in_flight.sub(dropped.end - dropped.start);
            if let Some(window) = &driver.shared().window {
                self.block.unclaim(window, self.streams.deliveries(dropped.clone()));
            }
            if !dropped.is_empty() && driver.plan().on_lost.reconnects() && driver.phase() == Phase::Running {
                self.block.send_later(dropped.start);
                self.next = dropped.start;
                if !std::mem::replace(&mut self.is_publishing, true) {
                    driver.counters().publishing.add(1);
                }
            }
        }
    }

    fn resume(&mut self, link: &mut Link, connack: &ConnAck) {
        self.in_flight.set_limit(in_flight_limit(&self.connection.driver, connack));
        if connack.session_present {
            self.send_again(link);
        } else {
            self.forget_in_flight();
        }
    }
}

/// Counts these messages as published.
fn publish(driver: &DriverThread, streams: &Streams, messages: Range<u64>) {
    if messages.is_empty() {
        return;
    }
    driver.counters().published.add(messages.end - messages.start);
    driver.counters().expected.add(streams.deliveries(messages.clone()));
    let now_ns = driver.now_ns();
    let mut recorder = driver.recorder();
    for (stream, sequences) in streams.parts(messages) {
        recorder.published(stream, sequences, now_ns);
    }
}

/// Returns the window's room of a message that the broker refused.
fn unclaim(driver: &DriverThread, streams: &Streams, sent: Sent) {
    if let Some(window) = &driver.shared().window {
        window.unclaim(sent.due_ns, streams.deliveries(sent.message..sent.message + 1));
    }
}

fn late_us(due_ns: u64, now_ns: u64) -> u32 {
    u32::try_from(now_ns.saturating_sub(due_ns) / 1000).unwrap_or(u32::MAX)
}

/// The lower limit of plan and broker.
fn in_flight_limit(driver: &DriverThread, connack: &ConnAck) -> u16 {
    let receive_maximum = connack.properties.receive_maximum.map_or(u16::MAX, |maximum| maximum.get());
    driver.plan().publishers.in_flight.min(receive_maximum)
}

/// Checks the publisher's options against the limits in CONNACK.
fn check_capabilities(connack: &ConnAck, options: FrameOptions, frame_len: usize) -> Result<(), String> {
    let properties = &connack.properties;
    if properties.maximum_qos.is_some_and(|maximum| options.qos > maximum) {
        return Err(format!("QoS {} is not taken", options.qos));
    }
    if options.retain && properties.retain_available == Some(false) {
        return Err("retained messages are not taken".to_owned());
    }
    match properties.maximum_packet_size {
        Some(maximum) if frame_len > maximum.get() as usize => {
            Err(format!("packets of {frame_len} bytes are not taken, {maximum} at most"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_never_negative() {
        assert_eq!([late_us(5000, 9000), late_us(9000, 5000), late_us(0, u64::MAX)], [4, 0, u32::MAX]);
    }
}
