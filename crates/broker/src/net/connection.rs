//! The task that owns one Network Connection: reads, decodes, applies, and writes what waits for its client.

use std::future::Future;
use std::num::NonZeroU16;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use tenbin_balancer::Acknowledged;
use tenbin_codec::{Decoder, Packet, ReportCarriers};
use tenbin_session::{Connection, Delivery, SessionExpiry};
use tokio::time::Sleep;

use super::arrival::Arrival;
use super::ending::End;
use super::filters::FilterWork;
use super::handshake::{self, Accepted};
use super::held_back::HeldBack;
use super::lag::Lag;
use super::listener::OpenConnection;
use super::reauthentication::Reauthentication;
use super::relief::Relief;
use super::sending::OUT_FULL;
use super::storing::Storing;
use super::stream::Stream;
use super::throttle::{FiltersInTurn, Throttle, Throttled};
use super::transport::Transport;
use super::unwritten::Unwritten;
use super::verdicts::Verdict;
use crate::auth::enforcement::{self, NotKept};
use crate::auth::{Answer, Standing};
use crate::outbox::Control;
use crate::registry::{ChargedWill, Lease};
use crate::router::Publisher;
use crate::slices::in_turn;
use crate::threads::Home;
use crate::token_bucket::Rate;

/// An open socket of which nothing has been read.
pub(super) struct Newcomer<S> {
    pub(super) shared: OpenConnection,
    pub(super) stream: S,
    /// Name of the listener through which it came.
    pub(super) listener: Arc<str>,
    /// On which thread of the broker's own it is served, if on one.
    pub(super) home: Option<Home>,
}

/// Serves one connection from its first byte to its last.
///
/// A future is as large as the largest of what it waits for, and has room for each of its arguments besides. So beginning
/// and end are boxes of their own: what they need is not kept for as long as the connection lasts.
pub(super) async fn serve<S: Stream>(newcomer: Box<Newcomer<S>>) {
    let Some(mut task) = in_turn(Box::pin(begin(newcomer))).await else { return };
    let ended = match task.start() {
        Ok(()) => task.run().await,
        Err(end) => Err(end),
    };
    if let Some(end) = task.leave(ended) {
        end.await;
    }
}

/// `None`: the client was refused, and the connection is over.
async fn begin<S: Stream>(newcomer: Box<Newcomer<S>>) -> Option<ConnectionTask<S>> {
    let Newcomer { shared, stream, listener, home } = *newcomer;
    let mut transport = Transport::new(stream);
    if home.is_some_and(|home| !home.is_first())
        && let Err(error) = transport.stream().register_again()
    {
        tracing::debug!(peer = %shared.peer, %error, "its socket stays with the thread that accepted it");
    }
    let publish_rate = shared.config.publish_rate(&listener);
    match handshake::accept(&shared, &mut transport, shared.peer, listener).await {
        Some(accepted) => Some(ConnectionTask::new(shared, accepted, transport, publish_rate, home)),
        None => {
            transport.close().await;
            None
        }
    }
}

pub(super) struct ConnectionTask<S> {
    pub(super) shared: OpenConnection,
    /// On which thread of the broker's own it is, if on one.
    pub(super) home: Option<Home>,
    pub(super) lease: Lease,
    pub(super) connection: Connection,
    pub(super) publisher: Publisher,
    /// Messages of this batch that are to be acknowledged when their receivers have them.
    pub(super) acks: Vec<Verdict>,
    /// Bytes of their messages.
    pub(super) batch_bytes: u32,
    /// What waits until it is safe.
    pub(super) held_back: Option<Box<HeldBack>>,
    /// For a client of which a packet has begun and is not there.
    pub(super) arrival: Option<Box<Arrival>>,
    /// For a client with messages that are kept on disk.
    pub(super) storing: Option<Box<Storing>>,
    pub(super) will: Option<Box<ChargedWill>>,
    pub(super) session_expiry: SessionExpiry,
    pub(super) transport: Transport<S>,
    pub(super) throttle: Throttle,
    /// For a client that may authenticate again; boxed, as whatever few connections need.
    pub(super) reauthentication: Option<Box<Reauthentication>>,
    /// What the client was told that its load reports are taken from.
    pub(super) report_carriers: ReportCarriers,
    /// Of subscriptions that do not say another.
    pub(super) weight: NonZeroU16,
    /// QoS 0 messages of share groups that the socket has not taken yet.
    pub(super) unwritten: Unwritten,
    /// Of who is sent such messages; most are not.
    pub(super) lag: Option<Box<Lag>>,
    /// Messages of share groups that this batch has acknowledged, and the balancer does not know of yet.
    pub(super) acknowledged: Option<Acknowledged>,
    pub(super) established_at: Instant,
    /// When what waits for the client was last offered to others, since it drains; boxed as above.
    pub(super) handed_over_at: Option<Box<Instant>>,
    pub(super) relief: Relief,
    pub(super) decoder: Decoder,
    timer: Option<Pin<Box<Sleep>>>,
    pub(super) socket_blocked: bool,
    /// The send quota with which this task has looked into the client's queue last and found nothing that may go; `None` =
    /// it has not looked yet, on this thread.
    pub(super) rested_at: Option<u16>,
    /// The lower half of the number of packets sent that the counters know of.
    counted_sent: u32,
    /// Bytes read since others were last let run.
    read_in_turn: u32,
    pub(super) filters_in_turn: FiltersInTurn,
    /// A SUBSCRIBE or UNSUBSCRIBE that has begun: nothing is decoded before its end.
    pub(super) filter_work: Option<Box<FilterWork>>,
}

/// Whether others are let run before a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    GoesOn,
    /// Acknowledgements wait to be written.
    ReceiversFirst,
    /// A receiver lags for want of processor time, others wait behind a search, or we have had our turn.
    Over,
}

/// Lets the tasks that were woken before run first.
///
/// So messages leave before their publisher's acknowledgements, and while those are written, the receivers' may come:
/// the thread need not sleep and wake for them.
async fn receivers_first() {
    let mut is_first = true;
    std::future::poll_fn(|context| {
        if std::mem::take(&mut is_first) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

/// What is ready at once; more than one may be, and none may keep the others waiting.
#[derive(Default)]
pub(super) struct Ready {
    read: Option<std::io::Result<usize>>,
    /// Input that was held back may be decoded.
    resumed: bool,
    control: Option<Control>,
    pub(super) sent: bool,
    /// More retained messages are to be looked for.
    pub(super) more_retained: bool,
    answer: Option<Answer>,
    timer: bool,
    /// A packet that has begun does not go on.
    overdue: bool,
    /// A message that found no room has been left unanswered for long enough.
    unanswered: bool,
}

impl<S: Stream> ConnectionTask<S> {
    fn new(
        shared: OpenConnection,
        accepted: Accepted,
        transport: Transport<S>,
        publish_rate: Option<Rate>,
        home: Option<Home>,
    ) -> Self {
        let Accepted {
            lease,
            connection,
            decoder,
            will,
            session_expiry,
            reauthentication,
            report_carriers,
            weight,
            established_at,
        } = accepted;
        Self {
            home,
            publisher: Publisher::of(
                &shared.router,
                &lease.client.receiver(),
                &lease.client.id,
                connection.version().is_v5(),
            ),
            acks: Vec::new(),
            batch_bytes: 0,
            held_back: None,
            arrival: None,
            storing: None,
            will,
            session_expiry,
            transport,
            reauthentication,
            report_carriers,
            weight,
            unwritten: Unwritten::default(),
            lag: None,
            acknowledged: None,
            handed_over_at: None,
            relief: Relief::default(),
            established_at,
            decoder,
            timer: None,
            socket_blocked: false,
            rested_at: None,
            throttle: Throttle::new(publish_rate, Instant::now()),
            counted_sent: 0,
            read_in_turn: 0,
            filters_in_turn: FiltersInTurn::default(),
            filter_work: None,
            lease,
            connection,
            shared,
        }
    }

    /// Until the connection is over, or is to go on elsewhere.
    pub(super) async fn run(&mut self) -> Result<Home, End> {
        loop {
            let ready = std::future::poll_fn(|context| self.poll_ready(context)).await;
            let turn = ready.map_err(End::Closed).and_then(|ready| self.handle(ready, Instant::now()))?;
            match turn {
                Turn::GoesOn => {}
                Turn::ReceiversFirst => {
                    self.transport.rest_input();
                    receivers_first().await;
                }
                Turn::Over => tokio::task::yield_now().await,
            }
            if let Some(home) = self.leaves() {
                return Ok(home);
            }
        }
    }

    /// What may have changed since CONNECT, and what came right behind it.
    fn start(&mut self) -> Result<(), End> {
        self.set_timer();
        let now = Instant::now();
        // Whatever comes: nobody else ends these.
        self.count_dropped_resends(now);
        self.settle();
        if self.lease.is_superseded() {
            return Err(End::Control(Control::TakenOver));
        }
        self.take_rights_over()?;
        self.handle_input(now).map(|_| ())
    }

    /// Does what is to be done now.
    fn handle(&mut self, ready: Ready, now: Instant) -> Result<Turn, End> {
        match ready.control {
            // One that asked and lost against a newer one may tell us after that one is us.
            // It may have taken the place of a word on our rights.
            Some(Control::TakenOver) if !self.lease.is_superseded() => self.take_rights_over()?,
            Some(Control::RightsChanged) => return Err(End::Revoked), // it was taken over, and left nothing
            Some(control) => return Err(End::Control(control)),
            None => {}
        }
        if ready.unanswered {
            return Err(End::Unanswered);
        }
        if let Some(answer) = ready.answer {
            self.reauthenticated(answer, now)?;
        }
        if ready.overdue {
            return Err(self.overdue());
        }
        let has_input = match ready.read {
            Some(Ok(0)) => return Err(End::Closed(std::io::ErrorKind::UnexpectedEof.into())),
            Some(Ok(read)) => {
                self.read_in_turn = self.read_in_turn.saturating_add(read as u32); // a read is far smaller
                true
            }
            Some(Err(error)) => return Err(End::Closed(error)),
            None => ready.resumed,
        };
        let mut turn = Turn::GoesOn;
        if has_input {
            turn = self.handle_input(now)?;
        }
        if ready.more_retained || has_input && self.read_in_turn >= TURN_BYTES || self.filters_in_turn.are_many() {
            turn = Turn::Over;
        }
        self.count_traffic();
        if turn == Turn::Over {
            self.read_in_turn = 0;
        }
        if ready.timer {
            if self.waits_for_us() || self.is_starved() {
                self.connection.not_read(now);
            }
            self.connection.handle_timeout(now, &mut self.transport.out).map_err(End::Violation)?;
            self.rearm();
        }
        Ok(turn)
    }

    /// Whether the client is not read from for want of our disk.
    #[inline]
    pub(super) fn waits_for_us(&self) -> bool {
        if self.held_back.is_none() && self.storing.is_none() {
            return false;
        }
        let held_bytes = self.storing.as_ref().map_or(0, |storing| storing.held_bytes());
        held_bytes >= OUT_FULL || self.holds_much_back() || self.waits_for_disk() || self.is_ending_unanswered()
    }

    /// Writes what waits, then gathers what else can be done.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<std::io::Result<Ready>> {
        let mut ready = Ready { sent: self.held_back.is_some() && self.release_held_back(context), ..Ready::default() };
        ready.sent |= self.storing.is_some() && self.release_stored(context);
        self.write(context)?;
        let waiting = self.transport.out.len() + self.storing.as_ref().map_or(0, |storing| storing.held_bytes());
        let quota = self.quota();
        // A socket that takes no more leaves the rest in the queue, where it is bounded and others see it.
        let room = OUT_FULL.saturating_sub(waiting);
        self.tell_socket_blocked(room == 0);
        // A client that does not read our answers is not read from either. First, so that what has been in the queue
        // before a packet came goes out before its answer.
        if waiting < OUT_FULL && !self.waits_for_us() && !self.waits_for_memory(context) {
            match self.throttle.poll(context) {
                Throttled::No if self.filters_in_turn.begin_turn() => ready.resumed = true,
                Throttled::No => {
                    if let Poll::Ready(read) = self.transport.poll_read(context) {
                        ready.read = Some(read);
                    }
                }
                Throttled::Resumed => ready.resumed = true,
                Throttled::Yes => {}
            }
        }
        if quota > 0 && self.lease.client.outbox.has_tail() {
            self.read_on(context);
        }
        self.send_allowed(context, quota, room, &mut ready);
        if ready.sent && ready.control.is_none() && room > 0 {
            let written = self.write_at_once(context, &mut ready);
            // What came before a socket broke is applied first; the next write finds it as broken.
            if ready.read.is_none() && !ready.resumed {
                written?;
            }
        }
        // What was just sent may have been the last in memory, and nothing that QoS 0 brings back tells us to look again.
        if !ready.sent && room > 0 && self.lease.client.outbox.has_tail() && self.quota() > 0 {
            ready.sent = self.read_on(context);
        }
        // What was just sent may have taken all of the quota: then nobody wakes us for what comes.
        let has_no_quota = quota == 0 || self.rested_at == Some(0);
        if self.socket_blocked || has_no_quota || self.lease.client.outbox.lags() {
            self.announce_slowness();
        }
        self.relieve(context);
        if let Some(reauthentication) = &mut self.reauthentication
            && let Poll::Ready(answer) = reauthentication.poll(context)
        {
            ready.answer = Some(answer);
        }
        if let Some(timer) = &mut self.timer {
            ready.timer = timer.as_mut().poll(context).is_ready();
        }
        ready.unanswered = self.held_back.is_some() && self.poll_unanswered(context);
        let Ready { read, resumed, control, sent, more_retained, answer, timer, overdue: _, unanswered } = &ready;
        let input = read.is_some() || *resumed || control.is_some() || answer.is_some() || *unanswered;
        if input || *sent || *more_retained || *timer {
            return Poll::Ready(Ok(ready));
        }
        if self.storing.is_some() {
            self.watch_stored(context);
        }
        if self.is_overdue(context) {
            ready.overdue = true;
            return Poll::Ready(Ok(ready));
        }
        self.transport.idle();
        self.acks.shrink_to(KEPT_ACKS);
        Poll::Pending
    }

    /// Has us looked after by who looks after slow receivers.
    fn announce_slowness(&self) {
        if self.lease.client.outbox.begin_watch() {
            self.shared.slow_receivers.watch(&self.lease.client);
        }
    }

    /// Encodes what waits for the client, after a change of what it may have.
    fn send_allowed(&mut self, context: &mut Context<'_>, quota: usize, room: usize, ready: &mut Ready) {
        ready.control = self.send_waiting(context, quota, room, ready);
        while ready.control == Some(Control::RightsChanged) && self.take_rights_over().is_ok() {
            ready.sent = true; // PUBRELs of what was given up
            ready.control = self.send_waiting(context, quota, room, ready);
        }
    }

    /// Writes what is encoded, as far as the socket takes it.
    fn write(&mut self, context: &mut Context<'_>) -> std::io::Result<()> {
        let written = self.transport.poll_write(context);
        self.tell_written(written.is_pending());
        match written {
            Poll::Ready(written) => written,
            Poll::Pending => Ok(()),
        }
    }

    /// Writes what was taken from the queue, and looks whether more is there: mostly not, and then there is nothing left to
    /// do before somebody wakes us.
    fn write_at_once(&mut self, context: &mut Context<'_>, ready: &mut Ready) -> std::io::Result<()> {
        self.write(context)?;
        if self.transport.out.is_empty() && !ready.more_retained && !self.has_orders() {
            ready.sent = false;
            let quota = self.quota();
            self.send_allowed(context, quota, OUT_FULL, ready);
            self.count_traffic();
        }
        Ok(())
    }

    pub(super) fn count_traffic(&mut self) {
        let metrics = &self.shared.metrics;
        let (received, sent) = self.transport.take_traffic();
        metrics.bytes_received.add(received);
        metrics.bytes_sent.add(sent);
        let packets = self.connection.packets_sent();
        let packets = packets as u32;
        metrics.packets_sent.add(packets.wrapping_sub(self.counted_sent).into());
        self.counted_sent = packets;
    }

    /// Has it of the runtime that this is called on.
    pub(super) fn set_timer(&mut self) {
        self.timer = self.connection.poll_timeout().map(|at| Box::pin(tokio::time::sleep_until(at.into())));
    }

    fn rearm(&mut self) {
        if let (Some(timer), Some(at)) = (&mut self.timer, self.connection.poll_timeout()) {
            timer.as_mut().reset(at.into());
        }
    }

    /// Sends what the client waits for. It would wait for ever for one that it does not take `[MQTT-3.1.2-24]`.
    pub(super) fn answer(&mut self, packet: Packet, now: Instant) -> Result<(), End> {
        let packet_type = packet.packet_type();
        let is_written = self.connection.write_in_words(packet, now, &mut self.transport.out);
        if is_written { Ok(()) } else { Err(End::AnswerTooLarge(packet_type)) }
    }

    /// Whether the client is still who it was after a change of rights. What waits to be sent again is judged anew.
    fn take_rights_over(&mut self) -> Result<(), End> {
        let rights = &self.lease.client.rights;
        let not_kept = NotKept::default();
        let is_forbidden =
            |id, delivery: &Delivery| enforcement::is_forbidden(rights, delivery) && not_kept.note_sent(id, delivery);
        let now = Instant::now();
        let given_up = self.connection.give_up_resends(is_forbidden, now, &mut self.transport.out);
        if given_up > 0 {
            tracing::info!(client = ?self.lease.client.id, given_up, "messages under way are no longer authorized");
        }
        for (id, stored, share) in not_kept.take_released() {
            self.received(id.packet_id, stored, share, now);
        }
        self.settle();
        not_kept.settle(&self.shared, &self.lease.client);
        match enforcement::catch_up(&self.shared, &mut self.lease) {
            Standing::Current => Ok(()),
            Standing::Stale | Standing::Revoked => Err(End::Revoked),
        }
    }
}

/// Bytes that are read before others are let run.
const TURN_BYTES: u32 = 256 * 1024;
/// Places for acknowledgements that an idle connection keeps.
const KEPT_ACKS: usize = 512;
