use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll};

use tenbin_codec::{ConnAck, PacketType, QoS, TopicName};

use super::comeback::come_back;
use super::control::Control;
use super::driver::Driver;
use super::frame::{Frame, FrameOptions, Frames, append_ack};
use super::handshake::Client;
use super::in_flight::{Again, InFlight, Sent, Step};
use super::link::Link;
use super::schedule::Schedule;
use super::shared::Phase;
use super::sink::End;
use super::streams::Streams;
use crate::LoadgenError;
use crate::run::{CutWhose, Pace, Stamp, Unsent};

/// A publishing connection: sends what is due, or what it may, in blocks of many frames, and completes the handshakes of
/// QoS 1 and 2 with a limited number of messages in flight.
pub(super) struct Publisher {
    driver: Rc<Driver>,
    control: Rc<Control>,
    /// Its number among the connections of the thread.
    seat: usize,
    client: Client,
    tag: u16,
    qos: QoS,
    streams: Streams,
    frames: Frames,
    timing: Timing,
    /// Messages that go out in one block.
    block: u64,
    /// Number of the next message.
    next: u64,
    /// How many there are in all, and of these, how many are due before the time is over.
    total: u64,
    end: u64,
    /// Whether it counts as one that has messages left.
    is_publishing: bool,
    in_flight: InFlight,
    /// PUBRELs that wait for the next block.
    answers: Vec<u8>,
    /// At QoS 0: number of the first message that is not written, and how much of the block has been looked at for that.
    unwritten: u64,
    looked_at: usize,
    /// The due time for which it waits.
    waits_for: Option<u64>,
}

/// When messages go out.
#[derive(Debug, Clone, Copy)]
enum Timing {
    /// When the socket takes them.
    AtOnce,
    /// At their own times.
    Scheduled(Schedule),
    /// When the window is open.
    Windowed,
}

impl Publisher {
    /// Connects publisher `number`.
    ///
    /// # Errors
    /// The broker does not take the connection, or says that it will not take the messages; the client is named.
    pub(super) async fn open(driver: Rc<Driver>, number: u32) -> Result<(Self, Link), LoadgenError> {
        let publishers = &driver.plan().publishers;
        let qos = QoS::from_bits(publishers.qos).unwrap_or_default();
        let streams = Streams::of(driver.layout(), number, publishers.topics);
        let topics = (streams.first()..streams.first() + streams.topics())
            .map(|stream| TopicName::try_from(driver.layout().topic(stream)))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| LoadgenError::Arguments(format!("topic of publisher {number}: {error}")))?;
        let options = FrameOptions {
            version: driver.common.greeting.version(),
            qos,
            retain: publishers.retain,
            payload_len: publishers.payload as usize,
        };
        let frames = Frames::new(options, topics);

        let id = driver.layout().publisher_client_id(number);
        let mut client = driver.client(id, driver.layout().publisher_broker(number), number, publishers.spread);
        client.has_will = true;
        let connected = driver.open(&client).await?;
        check_capabilities(&connected.connack, options, frames.len_max())
            .map_err(|what| LoadgenError::connect(&client.place, format_args!("{}: {what}", client.id)))?;
        let (control, seat) = driver.enter(CutWhose::Publishers, number);
        let share = match publishers.pace {
            Pace::Closed { window } => window / streams.copies_max().max(1),
            Pace::Open { .. } | Pace::Unlimited => u64::MAX,
        };
        // More than a u32 can number are as good as no end.
        let most = u64::from(streams.topics()).saturating_mul(u32::MAX.into());
        let total = publishers.messages.map_or(most, |messages| messages.min(most));
        let publisher = Self {
            tag: driver.plan().tag,
            qos,
            timing: Timing::AtOnce,
            block: block_len(share, publishers.count, frames.len_max()),
            next: 0,
            total,
            end: total,
            is_publishing: true,
            in_flight: InFlight::new(qos, in_flight_limit(&driver, &connected.connack)),
            answers: Vec::new(),
            unwritten: 0,
            looked_at: 0,
            waits_for: None,
            control,
            seat,
            client,
            streams,
            frames,
            driver,
        };
        publisher.driver.counters().publishing.add(1);
        Ok((publisher, connected.link))
    }

    /// Publishes until the run is over. A connection that is lost is an error, unless the plan cuts publishers'.
    pub(super) async fn run(mut self, link: Link) {
        self.begin();
        let mut link = Some(link);
        while let Some(mut now) = link.take() {
            let end = poll_fn(|cx| self.poll(&mut now, cx)).await;
            if let Ok(End::Over) = end {
                link = Some(now);
                break;
            }
            drop(now);
            self.forget_block();
            let Some(connected) = come_back(&self.driver, &self.client, CutWhose::Publishers, end).await else { break };
            // It was away when it was to be cut again.
            self.control.take_cut();
            let mut new = connected.link;
            self.in_flight.set_limit(in_flight_limit(&self.driver, &connected.connack));
            if connected.connack.session_present {
                self.send_again(&mut new)
            } else {
                self.forget_in_flight()
            }
            link = Some(new);
        }
        self.finish();
        self.driver.retire(&self.client, link).await;
    }

    /// It is known now when the run begins.
    fn begin(&mut self) {
        let plan = self.driver.plan();
        match plan.publishers.pace {
            Pace::Open { interval } => {
                let start_ns = self.driver.start_ns();
                let schedule = Schedule::new(start_ns, interval, self.control.number, plan.publishers.count);
                let limit_ns = u64::try_from(plan.schedule.time_limit.as_nanos()).unwrap_or(u64::MAX);
                // What is due when the time is over is not sent.
                self.end = self.total.min(schedule.due_by(start_ns.saturating_add(limit_ns) - 1));
                self.timing = Timing::Scheduled(schedule);
            }
            Pace::Closed { .. } => self.timing = Timing::Windowed,
            Pace::Unlimited => self.timing = Timing::AtOnce,
        }
    }

    fn poll(&mut self, link: &mut Link, cx: &mut Context<'_>) -> Poll<Result<End, String>> {
        self.control.follow(cx);
        for _ in 0..ROUNDS {
            if self.driver.phase() == Phase::Ended {
                return Poll::Ready(Ok(End::Over));
            }
            if let Some(away) = self.control.take_cut() {
                return Poll::Ready(Ok(End::Cut(away)));
            }
            if self.driver.phase() != Phase::Running {
                // What has become due since it last looked is not unsent for that.
                if self.is_publishing && matches!(self.timing, Timing::Scheduled(_)) && link.is_written() {
                    self.refill(link);
                }
                self.finish();
            }
            let read = self.take_frames(link, cx)?;
            if link.is_written() {
                self.refill(link);
                link.poll_ping(cx);
            }
            let wrote = match link.poll_write(cx)? {
                Poll::Ready(1..) => {
                    self.count_written(link)?;
                    true
                }
                _ => false,
            };
            if !read && !wrote && self.waits(link) {
                return Poll::Pending;
            }
        }
        // The other connections' turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Fills the empty block with answers and as many messages as may go.
    fn refill(&mut self, link: &mut Link) {
        link.clear();
        self.looked_at = 0;
        link.out.append(&mut self.answers);
        if !self.is_publishing {
            return;
        }
        if self.next == self.total {
            return self.finish();
        }
        let room = self.block.min(self.in_flight.room()).min(self.end - self.next);
        if room == 0 {
            return;
        }
        let now_ns = self.driver.now_ns();
        match self.timing {
            Timing::AtOnce => self.append(link, room, now_ns, 0, now_ns),
            Timing::Scheduled(schedule) => {
                let due = schedule.due_by(now_ns).saturating_sub(self.next).min(room);
                if due > 0 {
                    let due_ns = schedule.due_ns(self.next);
                    self.driver.recorder().sent_late(late_us(due_ns, now_ns));
                    self.append(link, due, due_ns, schedule.interval_ns(), now_ns);
                }
            }
            Timing::Windowed => {
                let Some(window) = &self.driver.shared().window else { return };
                let count = room.min(window.room(self.streams.copies_max()));
                if count > 0 {
                    let after_ns = window.claim(self.streams.deliveries(self.next..self.next + count));
                    self.append(link, count, now_ns.max(after_ns + 1), 0, now_ns);
                }
            }
        }
        if self.next == self.total {
            self.finish();
        }
    }

    /// Appends `count` messages, the first of them due at `due_ns` and the others `step_ns` after each other.
    fn append(&mut self, link: &mut Link, count: u64, mut due_ns: u64, step_ns: u64, now_ns: u64) {
        let messages = self.next..self.next + count;
        let (mut topic, mut sequence) = self.streams.at(self.next);
        for message in messages.clone() {
            let late_us = late_us(due_ns, now_ns);
            let packet_id = self.in_flight.begin(Sent { message, due_ns, late_us });
            let stamp = Stamp { due_ns, tag: self.tag, stream: self.streams.first() + topic, sequence, late_us };
            self.frames.append(topic as usize, packet_id, stamp, &mut link.out);
            due_ns = due_ns.saturating_add(step_ns);
            topic += 1;
            if topic == self.streams.topics() {
                (topic, sequence) = (0, sequence + 1);
            }
        }
        self.next = messages.end;
        let mut recorder = self.driver.recorder();
        for (stream, sequences) in self.streams.parts(messages) {
            recorder.attempted(stream, sequences.end);
        }
        self.driver.counters().in_flight.add(count);
    }

    /// At QoS 0 a message is published once its last byte is written.
    fn count_written(&mut self, link: &Link) -> Result<(), String> {
        if self.qos.is_acknowledged() || self.unwritten == self.next {
            return Ok(());
        }
        let mut upto = self.unwritten;
        if link.is_written() {
            upto = self.next;
        } else {
            while let Some((frame, size)) = Frame::split(&link.out[self.looked_at..link.written()])? {
                self.looked_at += size;
                upto += u64::from(frame.packet_type() == Some(PacketType::Publish));
            }
        }
        let messages = self.unwritten..upto;
        self.unwritten = upto;
        self.driver.counters().in_flight.sub(messages.end - messages.start);
        publish(&self.driver, &self.streams, messages);
        Ok(())
    }

    /// Takes the acknowledgements that one read brings; whether it brought something.
    fn take_frames(&mut self, link: &mut Link, cx: &mut Context<'_>) -> Result<bool, String> {
        let Self { driver, streams, in_flight, answers, .. } = self;
        // They nearly always come in the order of the messages: then there is one call for all of them.
        let mut done = 0..0;
        let mut completed = 0;
        let polled = link.poll_frames(cx, &mut driver.buffer.borrow_mut(), |frame| {
            match in_flight.acknowledge(&frame) {
                Some(Step::Done(sent)) => {
                    completed += 1;
                    if sent.message != done.end {
                        publish(driver, streams, done.clone());
                        done = sent.message..sent.message;
                    }
                    done.end += 1;
                }
                Some(Step::Release(id)) => append_ack(PacketType::PubRel, id, answers),
                Some(Step::Refused(sent)) => {
                    completed += 1;
                    driver.counters().not_taken.add(1);
                    driver.recorder().not_taken();
                    unclaim(driver, streams, sent);
                }
                Some(Step::Nothing) => {}
                None if frame.packet_type() == Some(PacketType::PingResp) => {}
                None => return Err(frame.complaint()),
            }
            Ok(())
        });
        publish(driver, streams, done);
        driver.counters().in_flight.sub(completed);
        match polled {
            Poll::Ready(taken) => taken.map(|()| true),
            Poll::Pending => Ok(false),
        }
    }

    /// Sees to it that it is woken when it can go on; `false` where it can right now.
    fn waits(&mut self, link: &Link) -> bool {
        if !link.is_written() || !self.is_publishing || self.in_flight.room() == 0 {
            return true; // the socket wakes it
        }
        match self.timing {
            Timing::AtOnce => false,
            Timing::Scheduled(schedule) => {
                let due_ns = schedule.due_ns(self.next);
                if self.waits_for != Some(due_ns) {
                    self.waits_for = Some(due_ns);
                    self.driver.pacer.wake_at(due_ns, self.seat);
                }
                true
            }
            Timing::Windowed => {
                let Some(window) = &self.driver.shared().window else { return true };
                window.ask(self.driver.thread);
                let is_closed = window.room(self.streams.copies_max()) == 0;
                if is_closed {
                    self.driver.wait_for_window(self.seat);
                }
                is_closed
            }
        }
    }

    /// Begins a new connection with what the old one has left open [MQTT-4.4.0-1].
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

    /// What a lost connection takes with it: at QoS 0 what was not written, and all answers, for those are made anew.
    fn forget_block(&mut self) {
        self.answers.clear();
        self.looked_at = 0;
        if !self.qos.is_acknowledged() {
            let deliveries = self.streams.deliveries(self.unwritten..self.next);
            self.driver.counters().in_flight.sub(self.next - self.unwritten);
            if let Some(window) = &self.driver.shared().window {
                window.unclaim(u64::MAX, deliveries);
            }
            self.unwritten = self.next;
        }
    }

    /// What a lost session takes with it. It may have come, and stays unconfirmed; so it keeps its place in the window
    /// until it comes or is given up.
    fn forget_in_flight(&mut self) {
        for again in self.in_flight.again() {
            if let Again::Publish(_, sent) = again {
                let deliveries = self.streams.deliveries(sent.message..sent.message + 1);
                self.driver.counters().doubtful.add(deliveries);
            }
        }
        self.driver.counters().in_flight.sub(self.in_flight.len() as u64);
        self.in_flight.clear();
    }

    /// It has nothing more to send, or may not.
    fn finish(&mut self) {
        if !std::mem::take(&mut self.is_publishing) {
            return;
        }
        self.driver.counters().publishing.sub(1);
        if let Timing::Scheduled(schedule) = self.timing {
            let now_ns = self.driver.now_ns();
            let due = schedule.due_by(now_ns).min(self.end);
            if due > self.next {
                let messages = due - self.next;
                // Where topics have unequally many subscribers, it is the mean that counts.
                let deliveries = self.streams.deliveries(self.next..due).div_ceil(messages);
                self.driver.recorder().unsent(Unsent {
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

/// These messages are the broker's now.
fn publish(driver: &Driver, streams: &Streams, messages: Range<u64>) {
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

/// Nobody gets this message.
fn unclaim(driver: &Driver, streams: &Streams, sent: Sent) {
    if let Some(window) = &driver.shared().window {
        window.unclaim(sent.due_ns, streams.deliveries(sent.message..sent.message + 1));
    }
}

fn late_us(due_ns: u64, now_ns: u64) -> u32 {
    u32::try_from(now_ns.saturating_sub(due_ns) / 1000).unwrap_or(u32::MAX)
}

/// As the plan says, and the broker.
fn in_flight_limit(driver: &Driver, connack: &ConnAck) -> u16 {
    let receive_maximum = connack.properties.receive_maximum.map_or(u16::MAX, |maximum| maximum.get());
    driver.plan().publishers.in_flight.min(receive_maximum)
}

/// What a broker has said in CONNACK that it will not take.
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

/// Messages in one block: large writes, but so small a part of the window that all publishers have a share, and of the
/// memory too.
fn block_len(window: u64, publishers: u32, frame_len: usize) -> u64 {
    let publishers = u64::from(publishers.max(1));
    let share = window / (2 * publishers);
    let size = (BLOCKS_SIZE / publishers).clamp(BLOCK_SIZE / 8, BLOCK_SIZE);
    share.min(size / frame_len as u64).max(1)
}

/// Bytes of a block.
const BLOCK_SIZE: u64 = 32 * 1024;

/// Bytes of all publishers' blocks together, where there are many.
const BLOCKS_SIZE: u64 = 64 << 20;

/// Blocks before other connections have their turn.
const ROUNDS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_leaves_room_for_all_publishers() {
        assert_eq!(block_len(20_000, 10, 120), 273); // 32 KiB
        assert_eq!(block_len(2_000, 10, 120), 100);
        assert_eq!(block_len(5, 10, 120), 1);
        assert_eq!(block_len(20_000, 1, 100_000), 1);
        assert_eq!(block_len(u64::MAX, 100_000, 100), 40); // 4 KiB
    }

    #[test]
    fn lateness_is_never_negative() {
        assert_eq!([late_us(5000, 9000), late_us(9000, 5000), late_us(0, u64::MAX)], [4, 0, u32::MAX]);
    }
}
