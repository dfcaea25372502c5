use std::rc::Rc;
use std::task::{Context, Poll};

use rustc_hash::FxHashSet;
use tenbin_codec::{ConnAck, PacketType, ProtocolVersion, QoS};

use super::connection::{self, Connection, Traffic};
use super::driver_thread::DriverThread;
use super::frame::{Frame, append_ack, server_reference};
use super::handshake::{subscription, will_payload};
use super::link::Link;
use super::read_pace::ReadPace;
use crate::LoadgenError;
use crate::run::{Came, CutWhose, Recorder, Slow, Spread, Stamp};

/// A subscriber that only receives.
///
/// It splits frames, passes payloads to the recorder in place, and acknowledges all messages of one read with one
/// write. All messages of one read have the same time of arrival.
pub(super) struct Sink {
    connection: Connection,
    intake: Intake,
    /// Limit of a subscriber that reads slowly, from the start of the run on.
    slow: Option<Slow>,
    pace: Option<ReadPace>,
}

/// Receiving state of a subscriber.
struct Intake {
    /// Its number in the layout; `None` if it only counts Wills.
    receiver: Option<u32>,
    /// Whether it is a member of a share group.
    is_shared: bool,
    version: ProtocolVersion,
    /// Packet Identifiers of QoS 2 between PUBREC and PUBREL.
    unreleased: FxHashSet<u16>,
    /// Acknowledgements for the next write.
    answers: Vec<u8>,
    /// Payload of this run's Wills, if it has any.
    will: Option<Vec<u8>>,
    /// The server that the broker has named at last.
    referred: Option<String>,
}

impl Sink {
    /// Connects and subscribes receiver `number` of the layout.
    ///
    /// # Errors
    /// The broker does not accept the connection or the subscription. The error names client, filter and reason.
    pub(super) async fn open(driver: Rc<DriverThread>, number: u32) -> Result<(Self, Link), LoadgenError> {
        let receiver = &driver.layout().receivers()[number as usize];
        let audience = &driver.plan().audiences[receiver.audience];
        let qos = QoS::from_bits(audience.qos).unwrap_or_default();
        let mut client = driver.client(receiver.client_id.clone(), receiver.broker, receiver.member, audience.spread);
        client.subscription = Some(subscription(&receiver.filter, qos)?);
        client.keep_alive = audience.keep_alive;
        let slow = audience.slow.filter(|slow| receiver.member + slow.members >= audience.count);
        // A slow reader does not see answers in time.
        client.expects_answers &= slow.is_none();
        let connected = driver.open(&client).await?;
        let intake = Intake::new(&driver, Some(number));
        let connection = Connection::new(driver, client, CutWhose::Subscribers, number);
        Ok((Self { connection, intake, slow, pace: None }, connected.link))
    }

    /// Connects and subscribes a further client, which counts the Wills at `broker` and is never cut.
    ///
    /// # Errors
    /// As [`Sink::open`].
    pub(super) async fn open_for_wills(driver: Rc<DriverThread>, broker: u32) -> Result<(Self, Link), LoadgenError> {
        let connection = &driver.plan().connection;
        let will = connection.will.as_ref().expect("it is for plans with Wills");
        let qos = QoS::from_bits(will.qos).unwrap_or_default();
        let id = format!("{}-wills-{broker}", connection.client_id_prefix);
        let mut client = driver.client(id, broker as usize, 0, Spread::Broker(broker as u16));
        client.subscription = Some(subscription(&will.topic, qos)?);
        let connected = driver.open(&client).await?;
        let intake = Intake::new(&driver, None);
        // No cut has this number.
        let connection = Connection::new(driver, client, CutWhose::Subscribers, u32::MAX);
        Ok((Self { connection, intake, slow: None, pace: None }, connected.link))
    }

    /// Receives messages until the run is over.
    pub(super) async fn run(mut self, link: Link) {
        let driver = Rc::clone(&self.connection.driver);
        let start = driver.common.clock.instant(driver.start_ns()).into();
        self.pace = self.slow.map(|slow| ReadPace::new(&slow, start));
        let link = connection::keep(&mut self, link).await;
        driver.retire(&self.connection.client, link).await;
    }

    /// Whether a read is allowed now; if not, the task is woken when it is.
    fn is_time_to_read(&mut self, cx: &mut Context<'_>) -> bool {
        self.pace.as_mut().is_none_or(|pace| pace.is_due(cx))
    }

    /// Handles the frames of one read; returns whether there was one.
    fn take_frames(&mut self, link: &mut Link, cx: &mut Context<'_>) -> Result<bool, String> {
        let (driver, intake) = (&*self.connection.driver, &mut self.intake);
        let mut recorder = driver.recorder();
        let window = driver.shared().window.as_ref();
        let mut batch = Batch { since_ns: window.map_or(0, |window| window.since_ns()), ..Batch::default() };
        let mut buffer = driver.buffer.borrow_mut();
        let room = self.pace.as_ref().map_or(buffer.len(), |pace| pace.room(buffer.len()));
        let read = link.take_frames(cx, &mut buffer[..room], |frame| {
            if batch.now_ns == 0 {
                batch.now_ns = driver.now_ns();
            }
            intake.take(&frame, &mut recorder, &mut batch)
        });
        if let Some(pace) = &mut self.pace {
            pace.took(batch.arrivals + batch.copies);
        }
        let counters = driver.counters();
        counters.wills.add(batch.wills);
        if batch.arrivals + batch.copies > 0 {
            counters.received.add(batch.arrivals);
            counters.copies.add(batch.copies);
            counters.doubtful.add(batch.doubtful);
            if let Some(window) = window {
                window.receive(batch.awaited);
            }
        }
        read
    }
}

impl Traffic for Sink {
    fn connection(&self) -> &Connection {
        &self.connection
    }

    fn exchange(&mut self, link: &mut Link, cx: &mut Context<'_>) -> Result<bool, String> {
        // Stop reading from a broker that does not accept acknowledgements.
        let may_read = self.intake.answers.len() < ANSWERS_MAX && self.is_time_to_read(cx);
        let read = may_read && self.take_frames(link, cx)?;
        if link.is_written() {
            link.clear();
            std::mem::swap(&mut link.out, &mut self.intake.answers);
        }
        link.poll_ping(cx)?;
        let wrote = matches!(link.poll_write(cx)?, Poll::Ready(1..));
        Ok(read || wrote)
    }

    fn referred(&mut self) -> Option<String> {
        self.intake.referred.take()
    }

    fn lost(&mut self) {
        self.intake.answers.clear();
    }

    fn resume(&mut self, _: &mut Link, connack: &ConnAck) {
        if !connack.session_present {
            self.intake.unreleased.clear();
        }
    }
}

/// Counts of one read.
#[derive(Default)]
struct Batch {
    now_ns: u64,
    /// The window has given up messages that were due by then.
    since_ns: u64,
    /// First copies of this run's messages.
    arrivals: u64,
    /// Further copies.
    copies: u64,
    /// Of both, messages that another member of the share group may have too.
    doubtful: u64,
    /// Messages that the window waits for.
    awaited: u64,
    wills: u64,
}

impl Intake {
    fn new(driver: &DriverThread, receiver: Option<u32>) -> Self {
        let audience = |number: u32| driver.layout().receivers()[number as usize].audience;
        Self {
            receiver,
            is_shared: receiver.is_some_and(|number| driver.plan().audiences[audience(number)].share.is_some()),
            version: driver.common.connector.version(),
            unreleased: FxHashSet::default(),
            answers: Vec::new(),
            will: driver.plan().connection.will.is_some().then(|| will_payload(driver.plan().tag)),
            referred: None,
        }
    }

    #[inline]
    fn take(&mut self, frame: &Frame<'_>, recorder: &mut Recorder, batch: &mut Batch) -> Result<(), String> {
        match frame.packet_type() {
            Some(PacketType::Publish) => return self.take_publish(frame, recorder, batch),
            Some(PacketType::PubRel) => {
                let id = frame.ack_packet_id().ok_or("malformed PUBREL")?;
                self.unreleased.remove(&id);
                append_ack(PacketType::PubComp, id, &mut self.answers);
            }
            Some(PacketType::PingResp) => {}
            _ => {
                self.referred = server_reference(frame);
                return Err(frame.complaint());
            }
        }
        Ok(())
    }

    #[inline]
    fn take_publish(&mut self, frame: &Frame<'_>, recorder: &mut Recorder, batch: &mut Batch) -> Result<(), String> {
        let arrival = frame.publish(self.version).ok_or("malformed PUBLISH")?;
        match arrival.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => append_ack(PacketType::PubAck, arrival.packet_id, &mut self.answers),
            QoS::ExactlyOnce => {
                append_ack(PacketType::PubRec, arrival.packet_id, &mut self.answers);
                // Sent again because the broker has no PUBREC: the application has it already [MQTT-4.3.3-10].
                if !self.unreleased.insert(arrival.packet_id) {
                    return Ok(());
                }
            }
        }
        let is_will = self.will.as_deref() == Some(arrival.payload);
        let Some(receiver) = self.receiver.filter(|_| !is_will) else {
            // Subscribers with broad filters may get Wills too; only one client counts them.
            if is_will && self.receiver.is_none() {
                recorder.will();
                batch.wills += 1;
            }
            return Ok(());
        };
        let came = recorder.arrived(receiver, arrival.payload, arrival.dup, batch.now_ns);
        if came == Came::NotOurs {
            return Ok(());
        }
        batch.arrivals += u64::from(came == Came::First);
        batch.copies += u64::from(came == Came::Again);
        batch.doubtful += u64::from(self.is_shared && (arrival.dup || came == Came::Again));
        let is_late = || Stamp::decode_due_ns(arrival.payload).is_some_and(|due_ns| due_ns <= batch.since_ns);
        batch.awaited += u64::from(came == Came::First && (batch.since_ns == 0 || !is_late()));
        Ok(())
    }
}

/// Limit of pending acknowledgements, in bytes.
const ANSWERS_MAX: usize = 1 << 20;
