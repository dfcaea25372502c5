//! An in-memory client; the broker serves its other end as a stream.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A client and its stream for the broker, which share the same memory.
#[derive(Clone)]
pub(crate) struct Client(Arc<Mutex<Ends>>);

struct Ends {
    /// Bytes that the client has sent; `read` of them are read by the broker.
    sent: Vec<u8>,
    read: usize,
    reader: Option<Waker>,
    /// Bytes that the broker has written and the client has not parsed.
    received: Vec<u8>,
    /// Number of packets that the client has parsed.
    packets: u64,
    /// Whether the client parses packets to answer them.
    looks: bool,
    meter: Arc<Meter>,
}

/// Counter of the bytes that the broker has written to all clients.
#[derive(Default)]
pub(crate) struct Meter {
    written: AtomicU64,
    goal: AtomicU64,
    waiting: Mutex<Option<Waker>>,
}

impl Client {
    pub(crate) fn new(meter: Arc<Meter>) -> Self {
        let (sent, received) = Default::default();
        let ends = Ends { sent, read: 0, reader: None, received, packets: 0, looks: true, meter };
        Self(Arc::new(Mutex::new(ends)))
    }

    pub(crate) fn send(&self, bytes: &[u8]) {
        self.ends().send(bytes);
    }

    /// Sends a packet and waits for the answer.
    pub(crate) async fn exchange(&self, packet: &[u8]) {
        let before = self.ends().packets;
        self.send(packet);
        while self.ends().packets == before {
            tokio::task::yield_now().await;
        }
    }

    /// Ends the setup; `looks`: whether the client answers messages.
    pub(crate) fn begin(&self, looks: bool) {
        self.ends().looks = looks;
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        lock(&self.0)
    }
}

impl Ends {
    fn send(&mut self, bytes: &[u8]) {
        self.sent.extend_from_slice(bytes);
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.meter.count(bytes.len() as u64);
        if !self.looks {
            return;
        }
        self.received.extend_from_slice(bytes);
        let received = std::mem::take(&mut self.received);
        let mut rest = &received[..];
        while let Some((first_byte, body, behind)) = split(rest) {
            self.packets += 1;
            self.answer(first_byte, body);
            rest = behind;
        }
        let taken = received.len() - rest.len();
        self.received = received;
        self.received.drain(..taken);
    }

    /// Answers a packet at once.
    fn answer(&mut self, first_byte: u8, body: &[u8]) {
        match first_byte {
            0x32 => self.send_ack(0x40, &body[2 + usize::from(body[1])..]),
            0x34 => self.send_ack(0x50, &body[2 + usize::from(body[1])..]),
            0x50 => self.send_ack(0x62, body),
            0x62 => self.send_ack(0x70, body),
            // CONNACK, SUBACK, PUBACK and PUBCOMP.
            0x20 | 0x90 | 0x40 | 0x70 => {}
            other => panic!("nothing of this bench has the first byte {other:#x}"),
        }
    }

    fn send_ack(&mut self, first_byte: u8, id: &[u8]) {
        self.send(&[first_byte, 2, id[0], id[1]]);
    }
}

/// Splits off the first packet, with a length of one or two bytes: first byte, body, and the rest.
fn split(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[first_byte, low], rest) = bytes.split_first_chunk()?;
    let (length, rest) = match low {
        0x80.. => (usize::from(low & 0x7F) + (usize::from(*rest.first()?) << 7), &rest[1..]),
        _ => (usize::from(low), rest),
    };
    let (body, behind) = rest.split_at_checked(length)?;
    Some((first_byte, body, behind))
}

impl AsyncRead for Client {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut ends = self.ends();
        let ends = &mut *ends;
        if ends.read == ends.sent.len() {
            ends.sent.clear();
            ends.read = 0;
            ends.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let bytes = &ends.sent[ends.read..];
        let bytes = &bytes[..bytes.len().min(buffer.remaining())];
        buffer.put_slice(bytes);
        ends.read += bytes.len();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.ends().receive(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut ends = self.ends();
        parts.iter().for_each(|part| ends.receive(part));
        Poll::Ready(Ok(parts.iter().map(|part| part.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Meter {
    pub(crate) fn reset(&self) {
        self.goal.store(self.written.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Waits until `bytes` more have been written.
    ///
    /// # Panics
    /// If more have been written.
    pub(crate) async fn take(&self, bytes: u64) {
        let goal = self.goal.fetch_add(bytes, Ordering::Relaxed) + bytes;
        poll_fn(|cx| {
            let written = self.written.load(Ordering::Relaxed);
            assert!(written <= goal, "{} bytes that nobody has asked for", written - goal);
            if written == goal {
                return Poll::Ready(());
            }
            *lock(&self.waiting) = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn count(&self, bytes: u64) {
        let written = self.written.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if written >= self.goal.load(Ordering::Relaxed)
            && let Some(waker) = lock(&self.waiting).take()
        {
            waker.wake();
        }
    }
}

/// Locks a mutex, which is never contended: there is only one thread.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
