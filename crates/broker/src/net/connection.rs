//! The task that owns one Network Connection: reads, decodes and applies packets, and writes messages to the client.

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
use super::deferred_acks::DeferredAcks;
use super::ending::End;
use super::filters::FilterWork;
use super::handshake::{self, Accepted};
use super::listener::OpenConnection;
use super::read_probe::ReadProbe;
use super::reauthentication::Reauthentication;
use super::sending::OUT_FULL;
use super::storing::Storing;
use super::stream::Stream;
use super::throttle::{FiltersInTurn, Throttle, Throttled};
use super::transport::Transport;
use super::unwritten::Unwritten;
use super::verdicts::Verdict;
use super::work_stealing::WorkStealing;
use crate::auth::{Answer, Standing};
use crate::lifecycle::enforcement::{self, NotKept};
use crate::outbox::Control;
use crate::registry::{ChargedWill, Lease};
use crate::router::Publisher;
use crate::slices::in_turn;
use crate::threads::Home;
use crate::values::Rate;

/// Accepted socket; nothing read yet.
pub(super) struct AcceptedSocket<S> {
    pub(super) shared: OpenConnection,
    pub(super) stream: S,
    /// Name of the listener that accepted it.
    pub(super) listener: Arc<str>,
    /// Worker thread that serves the connection, if one does.
    pub(super) home: Option<Home>,
}

/// Serves one connection from its first byte to its last.
///
/// A future is as large as the largest future that it awaits, and stores each argument besides. So the handshake and
/// the closing are boxed: their memory is freed while the connection lasts.
pub(super) async fn serve<S: Stream>(socket: Box<AcceptedSocket<S>>) {
    let Some(mut task) = in_turn(Box::pin(begin(socket))).await else { return };
    let ended = match task.start() {
        Ok(()) => task.run().await,
        Err(end) => Err(end),
    };
    if let Some(end) = task.leave(ended) {
        end.await;
    }
}

/// Performs the handshake. `None`: the client was refused, and the connection is closed.
async fn begin<S: Stream>(socket: Box<AcceptedSocket<S>>) -> Option<ConnectionTask<S>> {
    let AcceptedSocket { shared, stream, listener, home } = *socket;
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
    /// Worker thread that serves the connection, if one does.
    pub(super) home: Option<Home>,
    pub(super) lease: Lease,
    pub(super) connection: Connection,
    pub(super) publisher: Publisher,
    /// Messages of this batch to acknowledge once their receivers' queues have them.
    pub(super) acks: Vec<Verdict>,
    /// Total bytes of these messages.
    pub(super) batch_bytes: u32,
    /// Deferred answers.
    pub(super) deferred_acks: Option<Box<DeferredAcks>>,
    /// Present while a packet has arrived in part.
    pub(super) arrival: Option<Box<Arrival>>,
    /// Present for a client with messages on disk.
    pub(super) storing: Option<Box<Storing>>,
    pub(super) will: Option<Box<ChargedWill>>,
    pub(super) session_expiry: SessionExpiry,
    pub(super) transport: Transport<S>,
    pub(super) throttle: Throttle,
    /// For a client that may re-authenticate; boxed, as few connections need it.
    pub(super) reauthentication: Option<Box<Reauthentication>>,
    /// Packet types in which the broker accepts the client's load reports.
    pub(super) report_carriers: ReportCarriers,
    /// Weight of subscriptions that state no other.
    pub(super) weight: NonZeroU16,
    /// QoS 0 messages of share groups that are not in the socket yet.
    pub(super) unwritten: Unwritten,
    /// Read probe. Only for clients with QoS 0 messages of share groups, which few are.
    pub(super) read_probe: Option<Box<ReadProbe>>,
    /// Messages of share groups that this batch has acknowledged and the balancer does not know of yet.
    pub(super) acknowledged: Option<Acknowledged>,
    pub(super) established_at: Instant,
    /// When the queue of this draining client was last offered to other members; boxed, as few connections need it.
    pub(super) handed_over_at: Option<Box<Instant>>,
    pub(super) work_stealing: WorkStealing,
    pub(super) decoder: Decoder,
    timer: Option<Pin<Box<Sleep>>>,
    pub(super) socket_blocked: bool,
    /// Send quota at the last look that found nothing to send; `None` = no look yet on this thread.
    pub(super) rested_at: Option<u16>,
    /// Lower half of the number of sent packets that the metrics include.
    counted_sent: u32,
    /// Bytes read since this task last yielded.
    read_in_turn: u32,
    pub(super) filters_in_turn: FiltersInTurn,
    /// A SUBSCRIBE or UNSUBSCRIBE in progress: no packet is decoded before it ends.
    pub(super) filter_work: Option<Box<FilterWork>>,
}

/// Whether the task yields before it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    GoesOn,
    /// Acknowledgements are to be written after the receivers have run.
    ReceiversFirst,
    /// A receiver needs processor time, tasks wait for a search to end, or this task has used up its turn.
    Over,
}

/// Yields once, to tasks that were woken earlier.
///
/// So messages leave before their publisher's acknowledgements. Receivers' acknowledgements may arrive meanwhile, which
/// saves the thread a sleep and a wake-up.
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

/// Events that are ready at the same time; the task handles all of them.
#[derive(Default)]
pub(super) struct Ready {
    read: Option<std::io::Result<usize>>,
    /// Throttled input may be decoded.
    resumed: bool,
    control: Option<Control>,
    pub(super) sent: bool,
    /// There may be more retained messages to send.
    pub(super) more_retained: bool,
    answer: Option<Answer>,
    timer: bool,
    /// A partly received packet is overdue.
    overdue: bool,
    /// A message without room has been unacknowledged for too long.
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
            deferred_acks: None,
            arrival: None,
            storing: None,
            will,
            session_expiry,
            transport,
            reauthentication,
            report_carriers,
            weight,
            unwritten: Unwritten::default(),
            read_probe: None,
            acknowledged: None,
            handed_over_at: None,
            work_stealing: WorkStealing::default(),
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

    /// Runs until the connection ends or has to migrate to another thread.
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

    /// Handles changes since CONNECT and packets that arrived right behind it.
    fn start(&mut self) -> Result<(), End> {
        self.set_timer();
        let now = Instant::now();
        // Do this first in any case: no other code completes these messages.
        self.count_dropped_resends(now);
        self.settle();
        if self.lease.is_superseded() {
            return Err(End::Control(Control::TakenOver));
        }
        self.take_rights_over()?;
        self.handle_input(now).map(|_| ())
    }

    /// Handles the events of one lap.
    fn handle(&mut self, ready: Ready, now: Instant) -> Result<Turn, End> {
        match ready.control {
            // A connection that lost against a newer one may still request a takeover, although this one is the newer.
            // Its request may have replaced `RightsChanged`.
            Some(Control::TakenOver) if !self.lease.is_superseded() => self.take_rights_over()?,
            Some(Control::RightsChanged) => return Err(End::Revoked), // applied by `send_allowed`: access is lost
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

    /// Whether the broker's disk is the reason for not reading from the client.
    #[inline]
    pub(super) fn waits_for_us(&self) -> bool {
        if self.deferred_acks.is_none() && self.storing.is_none() {
            return false;
        }
        let held_bytes = self.storing.as_ref().map_or(0, |storing| storing.held_bytes());
        held_bytes >= OUT_FULL || self.holds_much_back() || self.waits_for_disk() || self.is_ending_unanswered()
    }

    /// Writes pending output, then gathers all events that are ready.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<std::io::Result<Ready>> {
        let mut ready =
            Ready { sent: self.deferred_acks.is_some() && self.release_held_back(context), ..Ready::default() };
        ready.sent |= self.storing.is_some() && self.release_stored(context);
        self.write(context)?;
        let waiting = self.transport.out.len() + self.storing.as_ref().map_or(0, |storing| storing.held_bytes());
        let quota = self.quota();
        // If the socket is full, messages stay in the queue, where they are bounded and visible to other tasks.
        let room = OUT_FULL.saturating_sub(waiting);
        self.tell_socket_blocked(room == 0);
        // Read nothing from a client that does not read its answers. Read before sending, so that messages queued
        // before a packet came are sent before its answer.
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
            // Apply input that arrived before the socket broke; the next write returns the error again.
            if ready.read.is_none() && !ready.resumed {
                written?;
            }
        }
        // The last message in memory may just have been sent. At QoS 0 no acknowledgement will trigger another look.
        if !ready.sent && room > 0 && self.lease.client.outbox.has_tail() && self.quota() > 0 {
            ready.sent = self.read_on(context);
        }
        // These messages may have used up the quota. Then no event reports further messages.
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
        ready.unanswered = self.deferred_acks.is_some() && self.poll_unanswered(context);
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

    /// Registers the client with the slow-consumer monitor.
    fn announce_slowness(&self) {
        if self.lease.client.outbox.begin_watch() {
            self.shared.slow_receivers.watch(&self.lease.client);
        }
    }

    /// Encodes messages for the client, after it applied changes of permissions.
    fn send_allowed(&mut self, context: &mut Context<'_>, quota: usize, room: usize, ready: &mut Ready) {
        ready.control = self.send_waiting(context, quota, room, ready);
        while ready.control == Some(Control::RightsChanged) && self.take_rights_over().is_ok() {
            ready.sent = true; // sends PUBRELs of abandoned messages
            ready.control = self.send_waiting(context, quota, room, ready);
        }
    }

    /// Writes encoded packets as far as the socket accepts them.
    fn write(&mut self, context: &mut Context<'_>) -> std::io::Result<()> {
        let written = self.transport.poll_write(context);
        self.tell_written(written.is_pending());
        match written {
            Poll::Ready(written) => written,
            Poll::Pending => Ok(()),
        }
    }

    /// Writes messages just taken from the queue, then looks for more. Usually there are none, and the task can sleep
    /// at once.
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

    /// Sets the keep-alive timer on the current runtime.
    pub(super) fn set_timer(&mut self) {
        self.timer = self.connection.poll_timeout().map(|at| Box::pin(tokio::time::sleep_until(at.into())));
    }

    fn rearm(&mut self) {
        if let (Some(timer), Some(at)) = (&mut self.timer, self.connection.poll_timeout()) {
            timer.as_mut().reset(at.into());
        }
    }

    /// Sends an answer to the client. Ends the connection if the packet is too large for it `[MQTT-3.1.2-24]`, since
    /// the client would wait for the answer forever.
    pub(super) fn answer(&mut self, packet: Packet, now: Instant) -> Result<(), End> {
        let packet_type = packet.packet_type();
        let is_written = self.connection.write_in_words(packet, now, &mut self.transport.out);
        if is_written { Ok(()) } else { Err(End::AnswerTooLarge(packet_type)) }
    }

    /// Applies changed permissions, and abandons resends that these forbid.
    ///
    /// # Errors
    /// [`End::Revoked`] if the user may not stay connected.
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

/// Bytes that a task reads before it yields.
const TURN_BYTES: u32 = 256 * 1024;
/// Capacity for acknowledgements that an idle connection keeps.
const KEPT_ACKS: usize = 512;
