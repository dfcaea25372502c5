//! A connection of a client's own that replaces its place on a trunk, for a shared subscription.
//!
//! 1. CONNECT, and one SUBSCRIBE with all filters of the client. Its packets wait. A refusal leaves the client on the trunk.
//! 2. With SUBACK the client's packets go to the new connection, and its acknowledgements still to the trunk. Messages
//!    of the new connection wait, as both may use the same Packet Identifiers.
//! 3. The trunk is left once the broker has answered PINGREQ there, and the exchanges are complete. Copies of QoS 2
//!    messages that the trunk has passed on are completed without the client, up to the answer to a PINGREQ here.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use rustc_hash::FxBuildHasher;
use tenbin_codec::{
    Ack, ConnAck, Connect, Decoded, Decoder, Disconnect, DisconnectProperties, Packet, PacketId, PingReq,
    ProtocolVersion, Publish, QoS, ReasonCode, RetainHandling, SubAck, Subscribe, Subscription, SubscriptionOptions,
    WriteBuffer,
};
use tokio::io::ReadBuf;
use tokio::time::{Instant, Interval, interval_at};

use super::hub::Delivered;
use super::limits::{Limits, packet_size};
use super::member::Member;
use super::own::{OwnConnection, UNSENT_BYTES_MAXIMUM};
use crate::upstream::tcp;

/// The connection, and the member of the trunk.
pub(super) struct Replacement {
    own: OwnConnection,
    decoder: Decoder,
    /// Undecoded bytes of the broker.
    bytes: BytesMut,
    stage: Stage,
    /// Present until the client has left the trunk.
    member: Option<Member>,
    /// Messages of the broker that wait for the client to leave the trunk.
    held: VecDeque<Packet>,
    held_bytes: usize,
    /// Messages that the trunk has passed on, and whose copies may follow.
    delivered: Delivered,
    /// Copies that the broker has not released.
    completing: Ids,
    /// QoS 2 messages of the trunk that the client will release.
    unreleased: Ids,
    /// QoS 1 and 2 messages of the client under way.
    publishing: Ids,
    /// PINGREQs without answer, oldest first.
    pings: VecDeque<Ping>,
    /// Times of PINGREQs for a Keep Alive that the broker has set, of which the client does not know.
    keep_alive: Option<Interval>,
    /// Bytes for the client.
    inbound: WriteBuffer,
}

enum Stage {
    /// The broker has not granted the subscriptions.
    Opening(Opening),
    Subscribed(Limits),
}

struct Opening {
    /// The client's SUBSCRIBE, behind all filters of the client.
    subscribe: Subscribe,
    limits: Option<Limits>,
    /// Packets of the client.
    waiting: VecDeque<Packet>,
    waiting_bytes: usize,
    writer: Option<Waker>,
}

/// Reason of a PINGREQ.
#[derive(PartialEq, Eq)]
enum Ping {
    Client,
    KeepAlive,
    /// No copies of the trunk's messages follow the answer.
    Copies,
}

/// The client stays on the trunk.
pub(super) struct Stay {
    pub(super) member: Member,
    /// Packets of the client that waited.
    pub(super) waiting: VecDeque<Packet>,
}

/// Result of reading.
pub(super) enum Read {
    /// The buffer has bytes, or the connection has ended.
    Done,
    /// The broker has refused the connection or the subscription.
    Refused(ReasonCode),
}

type Ids = HashSet<PacketId, FxBuildHasher>;

/// Bytes of messages that wait, beyond which no more are read.
const HELD_BYTES_MAXIMUM: usize = 64 * 1024;
const PACKET_BYTES_MAXIMUM: u32 = 1 << 20;
const VERSION: ProtocolVersion = ProtocolVersion::V5;

impl Replacement {
    /// Opens a connection for a member that sends `subscribe`.
    pub(super) fn open(broker: &Arc<tcp::Address>, connect: Connect, member: Member, mut subscribe: Subscribe) -> Self {
        let filters = member.hub().begin_move(member.key());
        let again = filters.into_iter().map(|(filter, qos)| {
            let options =
                SubscriptionOptions { retain_handling: RetainHandling::Never, ..SubscriptionOptions::at(qos) };
            Subscription { filter, options }
        });
        // One packet, with the client's identifier: another one could be the next that the client uses.
        subscribe.subscriptions = again.chain(subscribe.subscriptions).collect();
        let opening = Opening { subscribe, limits: None, waiting: VecDeque::new(), waiting_bytes: 0, writer: None };
        Self {
            own: OwnConnection::open(broker, connect),
            decoder: Decoder::client(VERSION, PACKET_BYTES_MAXIMUM),
            bytes: BytesMut::new(),
            stage: Stage::Opening(opening),
            member: Some(member),
            held: VecDeque::new(),
            held_bytes: 0,
            delivered: Delivered::default(),
            completing: Ids::default(),
            unreleased: Ids::default(),
            publishing: Ids::default(),
            pings: VecDeque::new(),
            keep_alive: None,
            inbound: WriteBuffer::new(),
        }
    }

    /// Whether the client can still stay on the trunk.
    pub(super) fn is_opening(&self) -> bool {
        matches!(self.stage, Stage::Opening(_))
    }

    /// Ends the connection, and leaves the client on the trunk with a SUBACK of this reason. `None` if it has left it.
    pub(super) fn cancel(&mut self, reason: ReasonCode) -> Option<Stay> {
        let Stage::Opening(opening) = &mut self.stage else { return None };
        let member = self.member.take()?;
        let suback = SubAck {
            packet_id: opening.subscribe.packet_id,
            properties: Default::default(),
            reasons: vec![of_suback(reason)],
        };
        let mut hub = member.hub();
        hub.cancel_move(member.key());
        hub.send(member.key(), &Packet::SubAck(suback));
        drop(hub);
        if let Some(writer) = opening.writer.take() {
            writer.wake();
        }
        Some(Stay { member, waiting: std::mem::take(&mut opening.waiting) })
    }

    /// Closes a connection that was cancelled: the broker publishes no Will.
    pub(super) fn close(self) {
        let properties = DisconnectProperties { session_expiry_interval: Some(0), ..DisconnectProperties::default() };
        let (reason, properties) = (ReasonCode::Success, Some(Box::new(properties)));
        self.own.close(&Packet::Disconnect(Disconnect { reason, properties }));
    }

    /// The client is lost. Its Will is that of the trunk up to SUBACK, and then that of the connection.
    pub(super) fn abandon(mut self) {
        if let Some(Stay { member, .. }) = self.cancel(ReasonCode::QuotaExceeded) {
            member.leave();
            self.close();
        } else if let Some(member) = &self.member {
            member.leave();
        }
    }

    /// Ready once there is room for packets of the client.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stage {
            Stage::Opening(opening) if opening.waiting_bytes > UNSENT_BYTES_MAXIMUM => {
                opening.writer = Some(cx.waker().clone());
                Poll::Pending
            }
            Stage::Subscribed(_) if self.own.unsent_bytes() > UNSENT_BYTES_MAXIMUM => self.own.poll_unsent(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Handles a packet of the client.
    pub(super) fn handle_client(&mut self, packet: Packet, size: usize) -> io::Result<()> {
        if let Some(member) = &self.member {
            let is_of_trunk = match &packet {
                // Messages of the new connection wait: the client acknowledges those of the trunk.
                Packet::PubAck(_) | Packet::PubRec(_) | Packet::PubComp(_) => true,
                Packet::PubRel(release) => member.hub().is_unreleased(member.key(), release.packet_id),
                _ => false,
            };
            if is_of_trunk {
                return member.hub().handle_member(member.key(), packet).map_err(io::Error::other);
            }
        }
        match &mut self.stage {
            Stage::Opening(opening) => {
                opening.waiting_bytes += size;
                opening.waiting.push_back(packet);
            }
            Stage::Subscribed(_) => self.forward(packet),
        }
        Ok(())
    }

    /// Passes a packet of the client on to the broker, within the limits of the broker.
    fn forward(&mut self, packet: Packet) {
        let Stage::Subscribed(limits) = &self.stage else { return };
        let refusal = limits.refusal(&packet);
        match &packet {
            Packet::Publish(Publish { packet_id: Some(id), qos, .. }) => {
                let is_full = self.publishing.len() >= limits.receive_maximum && !self.publishing.contains(id);
                let refusal = refusal.map(|_| ReasonCode::ImplementationSpecificError);
                if let Some(reason) = refusal.or(is_full.then_some(ReasonCode::QuotaExceeded)) {
                    let ack = Ack::new(*id, reason);
                    let answer = if *qos == QoS::AtLeastOnce { Packet::PubAck(ack) } else { Packet::PubRec(ack) };
                    return answer.encode(VERSION, &mut self.inbound);
                }
                // The client uses the identifier for another message.
                self.unreleased.remove(id);
                if let Some(member) = &self.member {
                    member.hub().forget_unreleased(member.key(), *id);
                }
                self.publishing.insert(*id);
            }
            Packet::Publish(_) if refusal.is_some() => return,
            Packet::Subscribe(subscribe) => {
                if let Some(reason) = refusal {
                    let reasons = vec![of_suback(reason); subscribe.subscriptions.len()];
                    let suback = SubAck { packet_id: subscribe.packet_id, properties: Default::default(), reasons };
                    return Packet::SubAck(suback).encode(VERSION, &mut self.inbound);
                }
            }
            Packet::Unsubscribe(unsubscribe) => {
                if let Some(member) = &self.member {
                    let mut hub = member.hub();
                    unsubscribe.filters.iter().for_each(|filter| hub.forget_filter(member.key(), filter));
                }
            }
            Packet::PubRel(release) if self.unreleased.remove(&release.packet_id) => {
                let complete = Ack::new(release.packet_id, ReasonCode::Success);
                return Packet::PubComp(complete).encode(VERSION, &mut self.inbound);
            }
            Packet::PingReq(_) => self.pings.push_back(Ping::Client),
            _ => {}
        }
        self.own.write(&packet);
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Packets of a client whose connection is not there yet wait in memory.
        if self.is_opening() { Poll::Ready(Ok(())) } else { self.own.poll_flush(cx) }
    }

    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.own.poll_shutdown(cx)
    }

    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<Read>> {
        loop {
            if let Some(member) = &self.member {
                // Ready without bytes is the end of the trunk.
                if member.poll_read(cx, buffer).is_ready() {
                    return Poll::Ready(Ok(Read::Done));
                }
                let moved = member.hub().finish_move(member.key());
                if let Some(moved) = moved {
                    self.member = None;
                    (self.delivered, self.unreleased) = (moved.delivered, moved.unreleased);
                    self.ping(Ping::Copies);
                    self.held_bytes = 0;
                    std::mem::take(&mut self.held).into_iter().for_each(|packet| self.pass(packet));
                }
            }
            if !self.inbound.is_empty() {
                while self.inbound.has_remaining() && buffer.remaining() > 0 {
                    let chunk = self.inbound.chunk();
                    let length = chunk.len().min(buffer.remaining());
                    buffer.put_slice(&chunk[..length]);
                    self.inbound.advance(length);
                }
                return Poll::Ready(Ok(Read::Done));
            }
            if let Some(keep_alive) = &mut self.keep_alive
                && keep_alive.poll_tick(cx).is_ready()
            {
                self.ping(Ping::KeepAlive);
                continue;
            }
            match ready!(self.poll_broker(cx)) {
                Ok(true) => {}
                Ok(false) => return Poll::Ready(Ok(self.lost())),
                Err(error) if self.is_opening() => {
                    tracing::warn!(%error, "no connection of its own for a client with a shared subscription");
                    return Poll::Ready(Ok(self.lost()));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
            while let Decoded::Packet(packet) = self.decoder.decode(&mut self.bytes).map_err(io::Error::other)? {
                if let Err(reason) = self.handle_broker(packet) {
                    return Poll::Ready(Ok(Read::Refused(reason)));
                }
            }
        }
    }

    /// Reads bytes of the broker. False at their end.
    fn poll_broker(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.held_bytes > HELD_BYTES_MAXIMUM && !self.is_opening() {
            // The client leaves the trunk first.
            let _ = self.own.poll_unsent(cx)?;
            return Poll::Pending;
        }
        self.own.poll_fill(&mut self.bytes, cx)
    }

    fn ping(&mut self, ping: Ping) {
        // One without answer is enough.
        if ping != Ping::KeepAlive || !self.pings.contains(&ping) {
            self.pings.push_back(ping);
            self.own.write(&Packet::PingReq(PingReq::PLAIN));
        }
    }

    fn lost(&self) -> Read {
        if self.is_opening() { Read::Refused(ReasonCode::ServerUnavailable) } else { Read::Done }
    }

    /// Handles a packet of the broker.
    ///
    /// # Errors
    /// The broker has refused connection or subscription.
    fn handle_broker(&mut self, packet: Packet) -> Result<(), ReasonCode> {
        match (&mut self.stage, packet) {
            (Stage::Opening(opening), Packet::ConnAck(connack)) if opening.limits.is_none() => self.accept(&connack),
            (Stage::Opening(opening), Packet::SubAck(suback)) if suback.packet_id == opening.subscribe.packet_id => {
                self.finish_subscribe(suback)
            }
            (Stage::Opening(_), Packet::Disconnect(disconnect)) => Err(disconnect.reason),
            (_, packet @ (Packet::Publish(_) | Packet::PubRel(_))) if self.member.is_some() => {
                self.held_bytes += packet_size(&packet);
                self.held.push_back(packet);
                Ok(())
            }
            (_, packet) => {
                self.pass(packet);
                Ok(())
            }
        }
    }

    /// CONNACK: sends SUBSCRIBE, if the broker can take it.
    fn accept(&mut self, connack: &ConnAck) -> Result<(), ReasonCode> {
        let Stage::Opening(opening) = &mut self.stage else { return Ok(()) };
        if connack.reason.is_error() {
            return Err(connack.reason);
        }
        let limits = Limits::of(connack);
        let subscribe = Packet::Subscribe(opening.subscribe.clone());
        if let Some(reason) = limits.refusal(&subscribe) {
            return Err(reason);
        }
        opening.limits = Some(limits);
        if let Some(seconds @ 1..) = connack.properties.server_keep_alive {
            let period = Duration::from_secs(seconds.into()) / 2;
            self.keep_alive = Some(interval_at(Instant::now() + period, period));
        }
        self.own.write(&subscribe);
        Ok(())
    }

    /// SUBACK: begins to leave the trunk, unless the broker has refused a subscription.
    fn finish_subscribe(&mut self, mut suback: SubAck) -> Result<(), ReasonCode> {
        let Stage::Opening(opening) = &mut self.stage else { return Ok(()) };
        if let Some(refusal) = suback.reasons.iter().find(|reason| reason.is_error()) {
            return Err(*refusal);
        }
        let Some(limits) = opening.limits.take() else { return Err(ReasonCode::ProtocolError) };
        // The client knows of one filter.
        let granted = suback.reasons.pop().ok_or(ReasonCode::ProtocolError)?;
        suback.reasons = vec![granted];
        Packet::SubAck(suback).encode(VERSION, &mut self.inbound);
        let waiting = std::mem::take(&mut opening.waiting);
        if let Some(writer) = opening.writer.take() {
            writer.wake();
        }
        self.stage = Stage::Subscribed(limits);
        if let Some(member) = &self.member {
            let mut hub = member.hub();
            hub.forget_will(member.key());
            hub.leave_behind(member.key());
        }
        waiting.into_iter().for_each(|packet| self.forward(packet));
        Ok(())
    }

    /// Passes a packet of the broker on to the client.
    fn pass(&mut self, packet: Packet) {
        match &packet {
            Packet::Publish(publish @ Publish { qos: QoS::ExactlyOnce, packet_id: Some(id), .. })
                if self.delivered.take(publish) =>
            {
                self.completing.insert(*id);
                return self.own.write(&Packet::PubRec(Ack::new(*id, ReasonCode::Success)));
            }
            Packet::PubRel(release) if self.completing.remove(&release.packet_id) => {
                return self.own.write(&Packet::PubComp(Ack::new(release.packet_id, ReasonCode::Success)));
            }
            Packet::PingResp => match self.pings.pop_front() {
                Some(Ping::Copies) => return self.delivered = Delivered::default(),
                Some(Ping::KeepAlive) => return,
                Some(Ping::Client) | None => {}
            },
            Packet::PubAck(ack) | Packet::PubComp(ack) => drop(self.publishing.remove(&ack.packet_id)),
            Packet::PubRec(ack) if ack.reason.is_error() => drop(self.publishing.remove(&ack.packet_id)),
            _ => {}
        }
        packet.encode(VERSION, &mut self.inbound);
    }
}

/// Reason of a SUBACK for one of CONNACK or DISCONNECT.
fn of_suback(reason: ReasonCode) -> ReasonCode {
    match reason {
        ReasonCode::NotAuthorized
        | ReasonCode::TopicFilterInvalid
        | ReasonCode::SharedSubscriptionsNotSupported
        | ReasonCode::WildcardSubscriptionsNotSupported => reason,
        ReasonCode::ServerUnavailable
        | ReasonCode::ServerBusy
        | ReasonCode::ServerShuttingDown
        | ReasonCode::QuotaExceeded
        | ReasonCode::ConnectionRateExceeded => ReasonCode::QuotaExceeded,
        _ => ReasonCode::ImplementationSpecificError,
    }
}
