//! WebSocket on a byte stream.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tenbin_websocket::{CloseCode, End, Incoming, Opcode, Outgoing, Side};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::counted::Counted;
use super::stream::Stream;
use crate::values::{Peer, TransportProtocol};

/// WebSocket on another stream. Boxed, because its state is larger than other streams.
///
/// It has no buffer: payloads are unpacked where they were read, and written from where they are.
#[derive(Debug)]
pub(super) struct WebSocketWire<S>(Box<Framing<S>>);

/// State of a WebSocket on `stream`.
#[derive(Debug)]
struct Framing<S> {
    stream: Counted<S>,
    incoming: Incoming,
    outgoing: Outgoing,
    reading: Reading,
    /// Bytes of the last read that belong to headers and control frames.
    read_overhead: usize,
    /// Bytes of the connection that `stream` has taken since it last held none.
    unsettled: u64,
}

/// State of the receiving direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Open,
    /// The connection's task knows of the end, and received bytes no longer count.
    Ended,
    /// Close was sent. Bytes received since then, all ignored.
    Closed(usize),
}

impl<S: Stream> WebSocketWire<S> {
    pub(super) fn new(stream: S) -> Self {
        Self(Box::new(Framing {
            stream: Counted::new(stream),
            incoming: Incoming::new(Side::Server),
            outgoing: Outgoing::default(),
            reading: Reading::Open,
            read_overhead: 0,
            unsettled: 0,
        }))
    }
}

impl<S: Stream> Framing<S> {
    fn poll_settled(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_control(context))?;
        ready!(self.stream.get_mut().poll_settled(context))?;
        self.unsettled = 0;
        Poll::Ready(Ok(()))
    }

    fn is_closed(&self) -> bool {
        matches!(self.reading, Reading::Closed(_))
    }

    /// Writes control frames that are due, unless a frame of data is under way. Nothing follows Close.
    fn poll_control(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Some(bytes) = self.outgoing.control() {
                let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.outgoing.control_sent(written);
            } else if !self.outgoing.is_within_frame()
                && !self.is_closed()
                && let Some(payload) = self.incoming.take_pong()
            {
                self.outgoing.begin_control(Opcode::Pong, &payload);
            } else {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Reads once from the stream below; leaves the connection's bytes in `buffer`. `false` at its end, or when a peer sends
    /// too much instead of its Close.
    fn poll_unpacked(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<bool>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let received = &mut buffer.filled_mut()[before..];
        if received.is_empty() {
            return Poll::Ready(Ok(false));
        }
        // Behind the end nothing is unpacked.
        let read = received.len();
        if let Reading::Closed(ignored) = &mut self.reading {
            *ignored += read;
            if *ignored > IGNORED_MAX {
                buffer.set_filled(before);
                return Poll::Ready(Ok(false));
            }
        }
        let length = self.incoming.unpack(received);
        self.read_overhead = read - length;
        buffer.set_filled(before + length);
        Poll::Ready(Ok(true))
    }
}

impl<S: Stream> Stream for WebSocketWire<S> {
    fn begin(&self, peer: Peer) {
        self.0.stream.get_ref().begin(peer);
    }

    fn protocol(&self) -> TransportProtocol {
        match self.0.stream.get_ref().protocol() {
            TransportProtocol::Tls => TransportProtocol::WebSocketTls,
            _ => TransportProtocol::WebSocket,
        }
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.0.stream.get_ref().local_address()
    }

    fn register_again(&mut self) -> io::Result<()> {
        self.0.stream.get_mut().register_again()
    }

    fn poll_settled(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_settled(context)
    }

    fn unsettled(&self) -> u64 {
        self.0.unsettled
    }

    fn wire_written(&self, _: u64) -> u64 {
        self.0.stream.get_ref().wire_written(self.0.stream.written())
    }

    fn read_overhead(&self) -> usize {
        self.0.read_overhead
    }

    fn owes_close(&self) -> bool {
        self.0.incoming.end().is_some() && !self.0.is_closed()
    }
}

impl<S: Stream> AsyncRead for WebSocketWire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        for _ in 0..READS_AT_ONCE {
            match self.0.incoming.end() {
                Some(end) if self.0.reading == Reading::Open => {
                    self.0.reading = Reading::Ended;
                    return Poll::Ready(match end {
                        End::Close(_) => Ok(()),
                        End::Violation(violation) => Err(io::Error::new(io::ErrorKind::InvalidData, violation)),
                    });
                }
                Some(End::Close(_)) if self.0.is_closed() => return Poll::Ready(Ok(())),
                _ => {}
            }
            let is_open = ready!(self.0.poll_unpacked(context, buffer))?;
            if self.0.incoming.owes_pong() {
                // The bytes that were read count, although the pong cannot leave. The next write meets the error again.
                let _ = self.0.poll_settled(context);
            }
            if !is_open || buffer.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: Stream> AsyncWrite for WebSocketWire<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    /// Writes all `slices` as one frame. The caller offers unwritten bytes again, since the header tells their number.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self.0;
        let offered = slices.iter().map(|slice| slice.len()).sum();
        if offered == 0 {
            return Poll::Ready(Ok(0));
        }
        ready!(this.poll_control(context))?;
        loop {
            let (header, left) = this.outgoing.header(offered);
            let mut parts = [IoSlice::new(&[]); SLICES];
            parts[0] = IoSlice::new(header);
            let mut count = 1;
            let mut room = left;
            for slice in slices.iter().take(SLICES - 1) {
                let part = &slice[..slice.len().min(room)];
                parts[count] = IoSlice::new(part);
                room -= part.len();
                count += 1;
                if room == 0 {
                    break;
                }
            }
            let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(context, &parts[..count]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let payload = this.outgoing.sent(written);
            if payload > 0 {
                this.unsettled += payload as u64;
                return Poll::Ready(Ok(payload));
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_settled(context)
    }

    /// Says Close, unless a frame of data is under way, and ends the stream below.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.0.poll_control(context))?;
        if !self.0.is_closed() && !self.0.outgoing.is_within_frame() {
            self.0.reading = Reading::Closed(0);
            let code = match self.0.incoming.end() {
                None => Some(CloseCode::NORMAL),
                Some(End::Close(code)) => code,
                Some(End::Violation(violation)) => Some(violation.code()),
            };
            self.0.outgoing.begin_close(code);
            ready!(self.0.poll_control(context))?;
        }
        ready!(self.0.poll_settled(context))?;
        Pin::new(&mut self.0.stream).poll_shutdown(context)
    }
}

/// Reads without a byte for the connection before other connections of the thread get a turn.
const READS_AT_ONCE: usize = 16;
/// Slices of a write: the header, and the slices of an output.
const SLICES: usize = 65;
/// Bytes that a peer may send between our Close and its own.
const IGNORED_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use tenbin_websocket::{Mask, append_frame};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    type Kept = tokio::io::Join<Cursor<Vec<u8>>, Vec<u8>>;

    impl Stream for Kept {
        fn begin(&self, _: Peer) {}

        fn protocol(&self) -> TransportProtocol {
            TransportProtocol::Embedded
        }

        fn local_address(&self) -> Option<SocketAddr> {
            None
        }

        fn register_again(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The broker's side of a connection whose peer sends `frames`. All written bytes are kept.
    fn wire(frames: Vec<u8>) -> WebSocketWire<Kept> {
        WebSocketWire::new(tokio::io::join(Cursor::new(frames), Vec::new()))
    }

    fn frame(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        append_frame(&mut frame, opcode, payload, Some(Mask([1, 2, 3, 4])));
        frame
    }

    #[tokio::test]
    async fn no_pong_follows_close() {
        let pings = [frame(Opcode::Ping, b"early"), frame(Opcode::Binary, b"x"), frame(Opcode::Ping, b"late")];
        let mut wire = wire(pings.concat());
        wire.shutdown().await.unwrap();
        wire.read_to_end(&mut Vec::new()).await.unwrap();
        assert_eq!(wire.0.stream.get_ref().writer(), &[0x88, 2, 0x03, 0xE8], "Close alone");
    }

    #[tokio::test]
    async fn peer_that_does_not_close_is_read_to_a_bound() {
        for frame in [frame(Opcode::Ping, b""), frame(Opcode::Binary, b""), frame(Opcode::Binary, &[7; 1000])] {
            let frames = frame.repeat((4 << 20) / frame.len());
            let length = frames.len() as u64;
            let mut wire = wire(frames);
            wire.shutdown().await.unwrap();
            wire.read_to_end(&mut Vec::new()).await.unwrap();
            let read = wire.0.stream.get_ref().reader().position();
            assert!((1 << 20..length / 2).contains(&read), "{read} of {length} bytes");
        }
    }
}
