//! A client's stream to its trunk: it reads the client's packets as a broker would.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use bytes::BytesMut;
use tenbin_codec::{Connect, Decoded, Decoder, Packet, ProtocolVersion, ReasonCode, SubAck, Subscribe, WriteBuffer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::hub::Key;
use super::own::OwnConnection;
use super::{Trunk, Trunks, task};

/// A client's stream.
pub(super) struct MemberStream {
    trunks: Arc<Trunks>,
    decoder: Decoder,
    /// Undecoded bytes of the client.
    input: BytesMut,
    stage: Stage,
    /// Wakes the reader when another stage begins.
    reader: Option<Waker>,
}

enum Stage {
    /// CONNECT has not come.
    New,
    Member(Member),
    /// The client has a connection of its own. The last packets of its trunk come first.
    Own(Box<OwnConnection>, Option<Member>),
    /// The client has left; the trunk has written its packets at this end of output.
    Left(Arc<Trunk>, u64),
}

struct Member {
    trunk: Arc<Trunk>,
    key: Key,
    /// For a connection of its own.
    connect: Box<Connect>,
}

/// Bytes of a client's packet, at most.
const PACKET_BYTES_MAXIMUM: u32 = 1 << 20;

impl MemberStream {
    pub(super) fn new(trunks: Arc<Trunks>) -> Self {
        Self {
            trunks,
            decoder: Decoder::server(PACKET_BYTES_MAXIMUM),
            input: BytesMut::new(),
            stage: Stage::New,
            reader: None,
        }
    }

    fn handle(&mut self, packet: Packet) -> io::Result<()> {
        match (std::mem::replace(&mut self.stage, Stage::New), packet) {
            (Stage::New, Packet::Connect(connect)) => {
                self.stage = self.enter(connect);
                self.wake_reader();
                Ok(())
            }
            (Stage::Member(member), Packet::Disconnect(disconnect)) => {
                let expiry = disconnect.properties.as_ref().and_then(|properties| properties.session_expiry_interval);
                let mut hub = member.trunk.hub();
                if disconnect.reason == ReasonCode::Success && expiry.is_none() {
                    // The gateway replaces the connection for another Will.
                    hub.park(member.key, &member.connect.client_id, Instant::now());
                } else {
                    hub.leave(member.key, disconnect.reason == ReasonCode::DisconnectWithWill);
                }
                let end = hub.end_of_output();
                drop(hub);
                self.stage = Stage::Left(member.trunk, end);
                Ok(())
            }
            (Stage::Member(member), Packet::Subscribe(subscribe)) if is_shared(&subscribe) => {
                self.stage = self.separate(member, subscribe);
                self.wake_reader();
                Ok(())
            }
            (Stage::Member(member), packet) => {
                let result = member.trunk.hub().handle_member(member.key, packet);
                self.stage = Stage::Member(member);
                result.map_err(io::Error::other)
            }
            (stage, _) => {
                self.stage = stage;
                Err(io::ErrorKind::InvalidData.into())
            }
        }
    }

    fn wake_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn enter(&self, connect: Box<Connect>) -> Stage {
        let trunk = self.trunks.of(&connect.client_id);
        if !connect.clean_start {
            let resumed = trunk.hub().resume(&connect.client_id, connect.will.as_ref());
            return match resumed {
                Some(key) => Stage::Member(Member { trunk, key, connect }),
                None => Stage::Own(Box::new(OwnConnection::open(&self.trunks.broker, *connect)), None),
            };
        }
        let (key, is_down) = trunk.hub().join(&connect.client_id, connect.will.clone());
        if is_down {
            tokio::spawn(task::run(Arc::clone(&trunk), Arc::clone(&self.trunks.broker)));
        }
        Stage::Member(Member { trunk, key, connect })
    }

    /// Gives a client with a shared subscription a connection of its own, with all its subscriptions.
    fn separate(&self, member: Member, subscribe: Subscribe) -> Stage {
        let Some(filters) = member.trunk.hub().detach_idle(member.key) else {
            // Its messages of the trunk and of the connection could have equal identifiers. It tries again.
            let reasons = vec![ReasonCode::QuotaExceeded; subscribe.subscriptions.len()];
            let suback = SubAck { packet_id: subscribe.packet_id, properties: Default::default(), reasons };
            member.trunk.hub().send(member.key, &Packet::SubAck(suback));
            return Stage::Member(member);
        };
        let own = OwnConnection::replace(&self.trunks.broker, (*member.connect).clone(), filters, subscribe);
        Stage::Own(Box::new(own), Some(member))
    }

    /// Decodes the client's packets as far as the trunk takes them.
    fn decode(&mut self) -> io::Result<()> {
        loop {
            if let Stage::Own(own, _) = &mut self.stage {
                own.queue(&self.input);
                self.input = BytesMut::new();
                return Ok(());
            }
            match self.decoder.decode(&mut self.input).map_err(io::Error::other)? {
                Decoded::Packet(packet) => self.handle(packet)?,
                Decoded::NeedMore(_) => break,
            }
        }
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        Ok(())
    }
}

impl AsyncWrite for MemberStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match &mut this.stage {
            Stage::Own(own, _) => return own.poll_write(bytes, cx),
            Stage::Left(..) => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Stage::Member(member) => ready!(member.trunk.hub().poll_room(member.key, cx)),
            Stage::New => {}
        }
        this.input.extend_from_slice(bytes);
        Poll::Ready(this.decode().map(|()| bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stage {
            Stage::Own(own, _) => own.poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match std::mem::replace(&mut this.stage, Stage::New) {
            Stage::Own(mut own, member) => {
                let result = own.poll_shutdown(cx);
                this.stage = Stage::Own(own, member);
                result
            }
            Stage::Member(member) => {
                let end = member.leave();
                this.stage = Stage::Left(member.trunk, end);
                Poll::Ready(Ok(()))
            }
            stage => {
                this.stage = stage;
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncRead for MemberStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match &mut this.reader {
            Some(reader) => reader.clone_from(cx.waker()),
            reader => *reader = Some(cx.waker().clone()),
        }
        match &mut this.stage {
            Stage::New => Poll::Pending,
            Stage::Member(member) => member.poll_read(cx, buffer).map(|_| Ok(())),
            Stage::Left(trunk, end) => trunk.hub().poll_written(*end, cx).map(Ok),
            Stage::Own(own, member) => {
                if let Some(member) = member
                    && let Poll::Ready(1..) = member.poll_read(cx, buffer)
                {
                    return Poll::Ready(Ok(()));
                }
                own.poll_read(cx, buffer)
            }
        }
    }
}

impl Member {
    fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<usize> {
        let room = buffer.remaining();
        self.trunk.hub().poll_read(self.key, room, |bytes| buffer.put_slice(bytes), cx)
    }

    /// Leaves the trunk without DISCONNECT. Returns the end of the trunk's output.
    fn leave(&self) -> u64 {
        let mut hub = self.trunk.hub();
        hub.leave(self.key, true);
        hub.end_of_output()
    }
}

impl Drop for MemberStream {
    fn drop(&mut self) {
        if let Stage::Member(member) | Stage::Own(_, Some(member)) = &self.stage {
            member.leave();
        }
    }
}

fn is_shared(subscribe: &Subscribe) -> bool {
    subscribe.subscriptions.iter().any(|subscription| subscription.filter.is_shared())
}

/// Encodes packets of a client.
pub(super) fn encode<'a>(packets: impl IntoIterator<Item = &'a Packet>) -> WriteBuffer {
    let mut out = WriteBuffer::new();
    packets.into_iter().for_each(|packet| packet.encode(ProtocolVersion::V5, &mut out));
    out
}
