//! One connection: a task that reads, copies published messages to receivers, and writes its own queued messages.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::frame::{self, Publish, malformed, word};
use crate::hub::{Hub, Outbox, Receivers};

pub(crate) struct Connection {
    stream: TcpStream,
    hub: Arc<Hub>,
    receivers: (u64, Arc<Receivers>),
    outbox: Arc<Outbox>,
    /// Bytes being written, and the number already written.
    out: Vec<u8>,
    written: usize,
    /// Start of an incomplete frame.
    rest: Vec<u8>,
    /// Whether the client speaks MQTT 5.0, whose packets have properties.
    is_v5: bool,
    /// Whether the client has sent DISCONNECT.
    is_over: bool,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, hub: Arc<Hub>) -> Self {
        let (receivers, outbox) = Default::default();
        let (out, rest) = Default::default();
        Self { stream, hub, receivers, outbox, out, written: 0, rest, is_v5: false, is_over: false }
    }

    /// Serves the connection until it ends.
    pub(crate) async fn run(mut self) {
        let _ = poll_fn(|cx| self.poll(cx)).await;
        self.hub.leave(&self.outbox);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..ROUNDS {
            let wrote = self.write(cx)?;
            let read = self.read(cx)?;
            if self.is_over {
                return Poll::Ready(Ok(()));
            }
            if !wrote && !read {
                return Poll::Pending;
            }
        }
        // Let other connections run.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes queued bytes until the socket is full; returns whether it wrote any.
    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut has_written = false;
        loop {
            if self.written == self.out.len() {
                self.out.clear();
                self.written = 0;
                if !self.outbox.take(cx, &mut self.out) {
                    return Ok(has_written);
                }
            }
            match Pin::new(&mut self.stream).poll_write(cx, &self.out[self.written..])? {
                Poll::Ready(written) => self.written += written,
                Poll::Pending => return Ok(has_written),
            }
            has_written = true;
        }
    }

    /// Reads once; returns whether bytes came.
    fn read(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        BUFFERS.with_borrow_mut(|Buffers { input, messages }| {
            let kept = self.rest.len();
            if input.len() < CHUNK + kept {
                input.resize(CHUNK + kept, 0);
            }
            input[..kept].copy_from_slice(&self.rest);
            let mut room = ReadBuf::new(&mut input[kept..]);
            let read = match Pin::new(&mut self.stream).poll_read(cx, &mut room)? {
                Poll::Ready(()) => room.filled().len(),
                Poll::Pending => return Ok(false),
            };
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let bytes = &input[..kept + read];
            messages.clear();
            let taken = self.take(bytes, messages)?;
            self.rest.clear();
            self.rest.extend_from_slice(&bytes[taken..]);
            Ok(true)
        })
    }

    /// Handles all complete frames; returns the offset of the rest. `messages` is an empty scratch buffer.
    fn take(&mut self, bytes: &[u8], messages: &mut Vec<Publish>) -> io::Result<usize> {
        let mut start = 0;
        let mut is_one_run = true;
        while let Some((size, header)) = frame::size(&bytes[start..])? {
            let end = start + size;
            if end > bytes.len() {
                break;
            }
            if bytes[start] >> 4 == PUBLISH {
                let message = Publish::of(bytes, start, header, end)?;
                is_one_run &= message.id_at.is_none() && messages.last().is_none_or(|last| last.end == start);
                if let Some(id_at) = message.id_at {
                    let answer = if bytes[start] & EXACTLY_ONCE == 0 { PUBACK << 4 } else { PUBREC << 4 };
                    self.out.extend_from_slice(&[answer, 2, bytes[id_at], bytes[id_at + 1]]);
                }
                messages.push(message);
            } else {
                self.answer(bytes[start] >> 4, &bytes[start + header..end])?;
            }
            start = end;
        }
        self.hub.refresh(&mut self.receivers);
        self.hub.deliver(&self.receivers.1, bytes, messages, is_one_run);
        Ok(start)
    }

    /// Answers a packet that is not a PUBLISH.
    fn answer(&mut self, packet_type: u8, body: &[u8]) -> io::Result<()> {
        match packet_type {
            CONNECT => {
                // The version follows the protocol name, which is "MQTT" since 3.1.1.
                self.is_v5 = *body.get(6).ok_or_else(malformed)? == 5;
                self.out.extend_from_slice(if self.is_v5 { &[0x20, 3, 0, 0, 0] } else { &[0x20, 2, 0, 0] });
            }
            SUBSCRIBE => self.subscribe(body)?,
            PUBREC => self.echo(0x62, body),
            PUBREL => self.echo(PUBCOMP << 4, body),
            PINGREQ => self.out.extend_from_slice(&[0xD0, 0]),
            PUBACK | PUBCOMP => {}
            DISCONNECT => self.is_over = true,
            _ => return Err(malformed()),
        }
        Ok(())
    }

    /// Answers with the same Packet Identifier.
    fn echo(&mut self, first_byte: u8, body: &[u8]) {
        self.out.extend_from_slice(&[first_byte, 2]);
        self.out.extend_from_slice(&body[..body.len().min(2)]);
    }

    /// Grants every filter with the requested QoS. Only the prefix `$share` of a filter matters.
    fn subscribe(&mut self, body: &[u8]) -> io::Result<()> {
        let mut at = 2;
        if self.is_v5 {
            // As in a frame, the length follows one byte, which is ignored.
            let (end, _) = frame::size(body.get(1..).ok_or_else(malformed)?)?.ok_or_else(malformed)?;
            at = 1 + end;
        }
        let mut granted = Vec::new();
        while at < body.len() {
            let end = at + 2 + usize::from(word(body, at).ok_or_else(malformed)?);
            let (filter, options) = (body.get(at + 2..end), body.get(end));
            let (filter, options) = filter.zip(options).ok_or_else(malformed)?;
            self.hub.subscribe(&self.outbox, filter.starts_with(b"$share/"));
            granted.push(options & 3);
            at = end + 1;
        }
        let properties: &[u8] = if self.is_v5 { &[0] } else { &[] };
        let length = 2 + properties.len() + granted.len();
        self.out.extend_from_slice(&[0x90, u8::try_from(length).map_err(|_| malformed())?]);
        self.out.extend_from_slice(&body[..2]);
        self.out.extend_from_slice(properties);
        self.out.extend_from_slice(&granted);
        Ok(())
    }
}

/// Buffers of one thread, shared by its connections.
#[derive(Default)]
struct Buffers {
    input: Vec<u8>,
    messages: Vec<Publish>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

const CONNECT: u8 = 1;
const PUBLISH: u8 = 3;
const PUBACK: u8 = 4;
const PUBREC: u8 = 5;
const PUBREL: u8 = 6;
const PUBCOMP: u8 = 7;
const SUBSCRIBE: u8 = 8;
const PINGREQ: u8 = 12;
const DISCONNECT: u8 = 14;

/// The QoS bit of a PUBLISH that is set at QoS 2.
const EXACTLY_ONCE: u8 = 0b0100;

/// Bytes of one read, as in the broker.
const CHUNK: usize = 64 * 1024;

/// Reads before the task yields to other connections.
const ROUNDS: usize = 4;
