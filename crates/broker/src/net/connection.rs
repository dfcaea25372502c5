//! The task that owns one Network Connection: reads, decodes, applies, and writes what waits for its client.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tenbin_codec::{Decoded, Decoder, QoS, ReasonCode, Will};
use tenbin_session::{Connection, Delivery, PendingAck, Sent, SessionExpiry, Violation};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Sleep;

use super::handshake::{self, Accepted};
use super::transport::Transport;
use crate::lifecycle::{self, ConnectionEnd};
use crate::outbox::{Control, Taken};
use crate::registry::Lease;
use crate::router::Publisher;
use crate::shared::Shared;

/// Serves one connection from its first byte to its last.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(shared: &Shared, stream: S, peer: SocketAddr) {
    let mut transport = Transport::new(stream);
    let Some(accepted) = handshake::accept(shared, &mut transport, peer).await else {
        transport.close().await;
        return;
    };
    let mut task = ConnectionTask::new(shared, accepted, transport);
    let end = task.run().await;
    task.finish(end, peer).await;
}

/// Why a connection is over.
#[derive(Debug)]
pub(super) enum End {
    /// The client said DISCONNECT.
    Disconnect(ReasonCode),
    /// The socket is closed or broken.
    Closed(std::io::Error),
    /// The client broke a rule.
    Violation(Violation),
    /// Asked for from within.
    Control(Control),
}

pub(super) struct ConnectionTask<'a, S> {
    pub(super) shared: &'a Shared,
    pub(super) lease: Lease,
    pub(super) connection: Connection,
    pub(super) publisher: Publisher,
    /// Messages of this batch that are to be acknowledged when their receivers have them.
    pub(super) acks: Vec<(PendingAck, ReasonCode)>,
    pub(super) will: Option<Will>,
    pub(super) session_expiry: SessionExpiry,
    pub(super) transport: Transport<S>,
    decoder: Decoder,
    deliveries: Vec<Delivery>,
    timer: Option<Pin<Box<Sleep>>>,
    socket_blocked: bool,
}

/// What is ready at once; more than one may be, and none may keep the others waiting.
#[derive(Debug, Default)]
struct Ready {
    read: Option<std::io::Result<usize>>,
    taken: Option<Taken>,
    timer: bool,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> ConnectionTask<'a, S> {
    fn new(shared: &'a Shared, accepted: Accepted, transport: Transport<S>) -> Self {
        let Accepted { lease, connection, decoder, will, session_expiry } = accepted;
        Self {
            shared,
            publisher: Publisher::of(&lease.client.receiver()),
            acks: Vec::new(),
            will,
            session_expiry,
            transport,
            decoder,
            deliveries: Vec::new(),
            timer: connection.poll_timeout().map(|at| Box::pin(tokio::time::sleep_until(at.into()))),
            socket_blocked: false,
            lease,
            connection,
        }
    }

    async fn run(&mut self) -> End {
        if self.lease.is_superseded() {
            return End::Control(Control::TakenOver);
        }
        self.count_dropped_resends();
        if let Err(end) = self.handle_input(Instant::now()) {
            return end; // what came right behind CONNECT
        }
        loop {
            let ready = match std::future::poll_fn(|context| self.poll_ready(context)).await {
                Ok(ready) => ready,
                Err(error) => return End::Closed(error),
            };
            let now = Instant::now();
            match ready.taken {
                Some(Taken::Control(control)) => return End::Control(control),
                Some(Taken::Deliveries) => self.send_deliveries(now),
                None => {}
            }
            match ready.read {
                Some(Ok(0)) => return End::Closed(std::io::ErrorKind::UnexpectedEof.into()),
                Some(Ok(_)) => {
                    match self.handle_input(now) {
                        // A receiver lags for want of processor time: let it run.
                        Ok(pressure) if pressure => tokio::task::yield_now().await,
                        Ok(_) => {}
                        Err(end) => return end,
                    }
                }
                Some(Err(error)) => return End::Closed(error),
                None => {}
            }
            if ready.timer
                && let Err(violation) = self.connection.handle_timeout(now, &mut self.transport.out)
            {
                return End::Violation(violation);
            }
            if ready.timer {
                self.rearm();
            }
        }
    }

    /// Writes what waits, then gathers what else can be done.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<std::io::Result<Ready>> {
        if let Poll::Ready(Err(error)) = self.transport.poll_write(context) {
            return Poll::Ready(Err(error));
        }
        let mut ready = Ready::default();
        let waiting = self.transport.out.len();
        let quota = usize::from(self.connection.send_quota());
        // A socket that takes no more leaves the rest in the queue, where it is bounded and others see it.
        let room = OUT_FULL.saturating_sub(waiting);
        self.tell_socket_blocked(room == 0);
        let outbox = &self.lease.client.outbox;
        if let Poll::Ready(taken) = outbox.poll_take(context, quota, room.min(TAKE), &mut self.deliveries) {
            ready.taken = Some(taken);
        }
        // A client that does not read our answers is not read from either.
        if waiting < OUT_FULL
            && let Poll::Ready(read) = self.transport.poll_read(context)
        {
            ready.read = Some(read);
        }
        if let Some(timer) = &mut self.timer {
            ready.timer = timer.as_mut().poll(context).is_ready();
        }
        if ready.taken.is_some() || ready.read.is_some() || ready.timer {
            return Poll::Ready(Ok(ready));
        }
        self.transport.idle();
        Poll::Pending
    }

    /// Decodes and applies all whole packets that have come, as one batch. Whether a receiver lags.
    fn handle_input(&mut self, now: Instant) -> Result<bool, End> {
        let applied = self.apply_input(now);
        // Also before an end: what came before it is legal and has been taken.
        let pressure = self.publisher.flush();
        let reached_itself = self.publisher.take_reached_itself();
        if self.acks.is_empty() {
            return applied.map(|()| pressure);
        }
        // PUBRECs, the client's own messages, PUBACKs: one that waits for a PUBACK finds what it published and
        // subscribed to before it. PUBACKs and PUBRECs have an order of their own each. [MQTT-4.6.0-2], [MQTT-4.6.0-3]
        let mut acks = std::mem::take(&mut self.acks);
        if reached_itself {
            self.acknowledge(acks.extract_if(.., |(ack, _)| ack.qos == QoS::ExactlyOnce), now);
            self.send_own(now);
        }
        self.acknowledge(acks.drain(..), now);
        self.acks = acks;
        applied.map(|()| pressure)
    }

    fn acknowledge(&mut self, acks: impl Iterator<Item = (PendingAck, ReasonCode)>, now: Instant) {
        for (ack, reason) in acks {
            self.connection.acknowledge(ack, reason, now, &mut self.transport.out);
        }
    }

    /// Sends what waits in the client's queue, as far as that may go now.
    fn send_own(&mut self, now: Instant) {
        let room = OUT_FULL.saturating_sub(self.transport.out.len());
        let quota = usize::from(self.connection.send_quota());
        self.lease.client.outbox.take_now(quota, room.min(TAKE), &mut self.deliveries);
        self.send_deliveries(now);
    }

    fn apply_input(&mut self, now: Instant) -> Result<(), End> {
        let mut received = 0;
        let result = loop {
            let packet = match self.decoder.decode(&mut self.transport.input) {
                Ok(Decoded::Packet(packet)) => packet,
                Ok(Decoded::NeedMore(_)) => break Ok(()),
                Err(error) => break Err(End::Violation(error.into())),
            };
            let applied = match self.connection.handle_packet(packet, now, &mut self.transport.out) {
                Ok(event) => self.apply(event, now, &mut received),
                Err(violation) => Err(End::Violation(violation)),
            };
            if let Err(end) = applied {
                break Err(end);
            }
        };
        self.shared.metrics.messages_received.add(received);
        result
    }

    fn send_deliveries(&mut self, now: Instant) {
        let (mut sent, mut expired, mut too_large) = (0, 0, 0);
        let mut blocked = Vec::new();
        for delivery in self.deliveries.drain(..) {
            match self.connection.send(delivery, now, &mut self.transport.out) {
                Sent::Written(_) => sent += 1,
                Sent::Expired => expired += 1,
                Sent::TooLarge => too_large += 1,
                Sent::Blocked(delivery) => blocked.push(delivery),
            }
        }
        if !blocked.is_empty() {
            self.lease.client.outbox.put_back(blocked.into_iter());
        }
        let metrics = &self.shared.metrics;
        metrics.messages_sent.add(sent);
        metrics.dropped_expired.add(expired);
        metrics.dropped_too_large.add(too_large);
    }

    fn rearm(&mut self) {
        if let (Some(timer), Some(at)) = (&mut self.timer, self.connection.poll_timeout()) {
            timer.as_mut().reset(at.into());
        }
    }

    fn tell_socket_blocked(&mut self, blocked: bool) {
        if blocked != self.socket_blocked {
            self.socket_blocked = blocked;
            self.lease.client.outbox.set_socket_blocked(blocked);
        }
    }

    /// Gives the session back first, so that nobody waits for this client's socket, then says goodbye.
    async fn finish(mut self, end: End, peer: SocketAddr) {
        let client = self.lease.client.id.clone();
        let normal = matches!(end, End::Disconnect(ReasonCode::Success));
        let reason = match &end {
            End::Disconnect(reason) => {
                tracing::debug!(%peer, %client, %reason, "disconnected");
                None
            }
            End::Closed(error) => {
                tracing::debug!(%peer, %client, %error, "connection lost");
                None
            }
            End::Violation(violation) => {
                self.shared.metrics.violations.add(1);
                tracing::info!(%peer, %client, rule = violation.rule(), "{violation}");
                self.connection.disconnect_for(violation, &mut self.transport.out);
                None
            }
            End::Control(Control::TakenOver) => {
                tracing::debug!(%peer, %client, "session taken over");
                Some(ReasonCode::SessionTakenOver) // [MQTT-3.1.4-3]
            }
            End::Control(Control::ShuttingDown) => Some(ReasonCode::ServerShuttingDown),
        };
        if let Some(reason) = reason {
            self.connection.disconnect(reason, &mut self.transport.out);
        }
        let ended = ConnectionEnd {
            session: self.connection.into_session(),
            will: self.will.filter(|_| !normal),
            expiry: self.session_expiry,
        };
        lifecycle::end(self.shared, self.lease, ended, Instant::now());
        if matches!(end, End::Closed(_)) {
            return;
        }
        let _ = tokio::time::timeout(GOODBYE, self.transport.close()).await;
    }
}

/// Unwritten bytes at which no more messages are taken and the client is not read from.
const OUT_FULL: usize = 256 * 1024;
/// Bytes of messages that are taken from the queue at once.
const TAKE: usize = 128 * 1024;
/// How long a client has for reading our last words.
const GOODBYE: Duration = Duration::from_secs(2);
