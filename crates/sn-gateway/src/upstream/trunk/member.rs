//! A client's stream to its trunk: it reads the client's packets as a broker would.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use bytes::BytesMut;
use tenbin_codec::{Connect, Decoded, Decoder, Packet, ReasonCode, Subscribe};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::hub::{Hub, Key};
use super::own::OwnConnection;
use super::replacement::{Read, Replacement, Stay};
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
    /// The client has a connection of its own from its CONNECT on.
    Own(Box<OwnConnection>),
    /// The client gets, or has, a connection of its own in place of the trunk.
    Replaced(Box<Replacement>),
    /// The client has left; the trunk has written its packets at this end of output.
    Left(Arc<Trunk>, u64),
}

pub(super) struct Member {
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

    /// Handles a packet of the client, of this size.
    fn handle(&mut self, packet: Packet, size: usize) -> io::Result<()> {
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
                let connect = (*member.connect).clone();
                let replacement = Replacement::open(&self.trunks.broker, connect, member, subscribe);
                self.stage = Stage::Replaced(Box::new(replacement));
                self.wake_reader();
                Ok(())
            }
            (Stage::Replaced(replacement), packet @ Packet::Disconnect(_)) if replacement.is_opening() => {
                self.stay(*replacement, ReasonCode::QuotaExceeded)?;
                self.handle(packet, size)
            }
            (Stage::Replaced(mut replacement), packet) => {
                let result = replacement.handle_client(packet, size);
                self.stage = Stage::Replaced(replacement);
                self.wake_reader();
                result
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
                None => Stage::Own(Box::new(OwnConnection::open(&self.trunks.broker, *connect))),
            };
        }
        let (key, is_down) = trunk.hub().join(&connect.client_id, connect.will.clone());
        if is_down {
            tokio::spawn(task::run(Arc::clone(&trunk), Arc::clone(&self.trunks.broker)));
        }
        Stage::Member(Member { trunk, key, connect })
    }

    /// Leaves a client on its trunk, with the packets that waited, and closes its new connection.
    fn stay(&mut self, mut replacement: Replacement, reason: ReasonCode) -> io::Result<()> {
        let Some(Stay { member, waiting }) = replacement.cancel(reason) else { return Ok(()) };
        replacement.close();
        self.stage = Stage::Member(member);
        // They were within the bounds of the client's input.
        waiting.into_iter().try_for_each(|packet| self.handle(packet, 0))
    }

    /// Decodes the client's packets as far as the trunk takes them.
    fn decode(&mut self) -> io::Result<()> {
        loop {
            if let Stage::Own(own) = &mut self.stage {
                own.queue(&self.input);
                self.input = BytesMut::new();
                return Ok(());
            }
            let before = self.input.len();
            match self.decoder.decode(&mut self.input).map_err(io::Error::other)? {
                Decoded::Packet(packet) => self.handle(packet, before - self.input.len())?,
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
            Stage::Own(own) => return own.poll_write(bytes, cx),
            Stage::Replaced(replacement) => ready!(replacement.poll_room(cx))?,
            Stage::Left(..) => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Stage::Member(member) => ready!(member.trunk.hub().poll_room(member.key, cx)),
            Stage::New => {}
        }
        this.input.extend_from_slice(bytes);
        Poll::Ready(this.decode().map(|()| bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stage {
            Stage::Own(own) => own.poll_flush(cx),
            Stage::Replaced(replacement) => replacement.poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match &mut this.stage {
            Stage::Own(own) => return own.poll_shutdown(cx),
            Stage::Replaced(replacement) if !replacement.is_opening() => return replacement.poll_shutdown(cx),
            _ => {}
        }
        match std::mem::replace(&mut this.stage, Stage::New) {
            Stage::Replaced(replacement) => {
                this.stay(*replacement, ReasonCode::QuotaExceeded)?;
                Pin::new(this).poll_shutdown(cx)
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
        loop {
            let refusal = match &mut this.stage {
                Stage::New => return Poll::Pending,
                Stage::Member(member) => return member.poll_read(cx, buffer).map(|_| Ok(())),
                Stage::Left(trunk, end) => return trunk.hub().poll_written(*end, cx).map(Ok),
                Stage::Own(own) => return own.poll_read(cx, buffer),
                Stage::Replaced(replacement) => match ready!(replacement.poll_read(cx, buffer))? {
                    Read::Done => return Poll::Ready(Ok(())),
                    Read::Refused(reason) => reason,
                },
            };
            if let Stage::Replaced(replacement) = std::mem::replace(&mut this.stage, Stage::New) {
                this.stay(*replacement, refusal)?;
            }
        }
    }
}

impl Member {
    pub(super) fn hub(&self) -> MutexGuard<'_, Hub> {
        self.trunk.hub()
    }

    pub(super) fn key(&self) -> Key {
        self.key
    }

    /// Reads packets of the trunk. Ready with 0 once it has ended.
    pub(super) fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<usize> {
        let room = buffer.remaining();
        self.trunk.hub().poll_read(self.key, room, |bytes| buffer.put_slice(bytes), cx)
    }

    /// Leaves the trunk without DISCONNECT. Returns the end of the trunk's output.
    pub(super) fn leave(&self) -> u64 {
        let mut hub = self.trunk.hub();
        hub.leave(self.key, true);
        hub.end_of_output()
    }
}

impl Drop for MemberStream {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::New) {
            Stage::Member(member) => {
                member.leave();
            }
            Stage::Replaced(replacement) => replacement.abandon(),
            Stage::New | Stage::Own(_) | Stage::Left(..) => {}
        }
    }
}

fn is_shared(subscribe: &Subscribe) -> bool {
    subscribe.subscriptions.iter().any(|subscription| subscription.filter.is_shared())
}
