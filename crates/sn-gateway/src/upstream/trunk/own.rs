//! A connection to the broker that one client has for itself.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use tenbin_codec::{
    Connect, Decoded, Decoder, Packet, PacketId, ProtocolVersion, QoS, RetainHandling, Subscribe, Subscription,
    SubscriptionOptions, TopicFilter, WriteBuffer,
};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use super::member::encode;
use crate::upstream::{Opening, Stream, tcp};

/// The connection.
pub(super) struct OwnConnection {
    link: Link,
    /// Bytes for the broker.
    unsent: WriteBuffer,
    /// Present until the broker has answered the packets that the client did not send.
    answers: Option<Answers>,
    /// Bytes for the client.
    inbound: WriteBuffer,
}

enum Link {
    Opening(Opening),
    Open(Stream),
}

/// Answers that the client must not get.
struct Answers {
    decoder: Decoder,
    bytes: BytesMut,
    awaits_connack: bool,
    subacks: Vec<PacketId>,
}

/// Bytes for the broker beyond which the client waits.
const UNSENT_BYTES_MAXIMUM: usize = 64 * 1024;
const READ_BYTES: usize = 4096;

impl OwnConnection {
    /// A connection of a client from its CONNECT on.
    pub(super) fn open(broker: &Arc<tcp::Address>, connect: Connect) -> Self {
        let unsent = encode([&Packet::Connect(Box::new(connect))]);
        Self { link: Link::new(broker), unsent, answers: None, inbound: WriteBuffer::new() }
    }

    /// A connection of a client that has been on a trunk, with these filters, and that now sends `subscribe`.
    pub(super) fn replace(
        broker: &Arc<tcp::Address>,
        connect: Connect,
        filters: Vec<(TopicFilter, QoS)>,
        subscribe: Subscribe,
    ) -> Self {
        let answers = Answers {
            decoder: Decoder::client(ProtocolVersion::V5, 1 << 20),
            bytes: BytesMut::new(),
            awaits_connack: true,
            // Identifiers that the client does not use now.
            subacks: (1..=u16::MAX)
                .filter(|id| *id != subscribe.packet_id.get())
                .filter_map(PacketId::new)
                .take(filters.len())
                .collect(),
        };
        let again = answers.subacks.iter().zip(filters).map(|(&packet_id, (filter, qos))| {
            let options =
                SubscriptionOptions { retain_handling: RetainHandling::Never, ..SubscriptionOptions::at(qos) };
            Packet::Subscribe(Subscribe {
                packet_id,
                subscription_identifier: None,
                user_properties: Vec::new(),
                subscriptions: vec![Subscription { filter, options }],
            })
        });
        let packets: Vec<Packet> = std::iter::once(Packet::Connect(Box::new(connect)))
            .chain(again)
            .chain([Packet::Subscribe(subscribe)])
            .collect();
        Self { link: Link::new(broker), unsent: encode(&packets), answers: Some(answers), inbound: WriteBuffer::new() }
    }

    /// Appends bytes of the client.
    pub(super) fn queue(&mut self, bytes: &[u8]) {
        self.unsent.append_packets(bytes);
    }

    pub(super) fn poll_write(&mut self, bytes: &[u8], cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match (self.poll_unsent(cx)?, &mut self.link) {
            (Poll::Ready(()), Link::Open(stream)) => Pin::new(stream).poll_write(cx, bytes),
            _ if self.unsent.len() > UNSENT_BYTES_MAXIMUM => Poll::Pending,
            _ => {
                self.queue(bytes);
                Poll::Ready(Ok(bytes.len()))
            }
        }
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_unsent(cx))?;
        match &mut self.link {
            Link::Open(stream) => Pin::new(stream).poll_flush(cx),
            Link::Opening(_) => Poll::Pending,
        }
    }

    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_unsent(cx))?;
        match &mut self.link {
            Link::Open(stream) => Pin::new(stream).poll_shutdown(cx),
            Link::Opening(_) => Poll::Pending,
        }
    }

    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // The broker answers nothing that it has not got.
        let _ = self.poll_unsent(cx)?;
        let Link::Open(stream) = &mut self.link else { return Poll::Pending };
        while self.inbound.is_empty()
            && let Some(answers) = &mut self.answers
        {
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            answers.bytes.extend_from_slice(read.filled());
            if answers.pass(&mut self.inbound)? {
                self.answers = None;
            }
        }
        if self.inbound.is_empty() {
            return Pin::new(stream).poll_read(cx, buffer);
        }
        while self.inbound.has_remaining() && buffer.remaining() > 0 {
            let chunk = self.inbound.chunk();
            let length = chunk.len().min(buffer.remaining());
            buffer.put_slice(&chunk[..length]);
            self.inbound.advance(length);
        }
        Poll::Ready(Ok(()))
    }

    /// Sends the bytes that wait. Ready once the connection is open and there are none.
    fn poll_unsent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Link::Opening(opening) = &mut self.link {
            self.link = Link::Open(ready!(opening.as_mut().poll(cx))?);
        }
        let Link::Open(stream) = &mut self.link else { return Poll::Pending };
        while !self.unsent.is_empty() {
            let written = ready!(Pin::new(&mut *stream).poll_write(cx, self.unsent.chunk()))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unsent.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl Link {
    fn new(broker: &Arc<tcp::Address>) -> Self {
        let broker = Arc::clone(broker);
        Self::Opening(Box::pin(async move { broker.connect().await }))
    }
}

impl Answers {
    /// Passes the packets on that the client may have. True once the broker has given all answers.
    fn pass(&mut self, inbound: &mut WriteBuffer) -> io::Result<bool> {
        while self.awaits_connack || !self.subacks.is_empty() {
            let packet = match self.decoder.decode(&mut self.bytes).map_err(io::Error::other)? {
                Decoded::Packet(packet) => packet,
                Decoded::NeedMore(_) => return Ok(false),
            };
            match packet {
                Packet::ConnAck(connack) if self.awaits_connack => {
                    if connack.reason.is_error() {
                        return Err(io::Error::other(format!("broker refused: {}", connack.reason)));
                    }
                    self.awaits_connack = false;
                }
                Packet::SubAck(suback) if self.subacks.contains(&suback.packet_id) => {
                    self.subacks.retain(|id| *id != suback.packet_id);
                }
                packet => packet.encode(ProtocolVersion::V5, inbound),
            }
        }
        inbound.append_packets(&std::mem::take(&mut self.bytes));
        Ok(true)
    }
}
