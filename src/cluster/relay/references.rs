//! Puts payloads of this node's copy into the stream of a leader that sends messages by reference.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use tenbin_codec::{ExternalPublish, ExternalScanner, Scanned};
use tenbin_store::mirror::ReferenceStream;
use tenbin_store::spool::{NoPayload, Payload, Reference};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::task::spawn_blocking;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER_BYTES].into_boxed_slice());
}

/// Figures of messages by reference.
#[derive(Debug, Default)]
pub(super) struct ReferenceCounters {
    /// Messages whose payloads were put in.
    pub(super) found: AtomicU64,
    /// Messages that the copy did not have.
    pub(super) failed: AtomicU64,
}

/// Why a stream with references ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReferenceError {
    #[error("{0}")]
    Socket(#[from] io::Error),
    /// The copy does not have a message.
    #[error("{0}")]
    NotFound(#[from] NoPayload),
    #[error("the leader's stream is not MQTT")]
    BadStream,
}

/// Kind of a leader's stream, which its first byte tells.
#[derive(Default)]
enum Kind {
    #[default]
    Unknown,
    /// It has no references, and may be TLS: all bytes pass.
    Opaque,
    Mqtt(ExternalScanner),
}

/// Copies a leader's stream to a client until it ends, and puts payloads in. Counts the client's bytes in `copied`.
///
/// `has_references` becomes true with the first message by reference.
///
/// # Errors
/// A socket fails, or a payload is not in the copy. The client has got no part of that payload that differs.
pub(super) async fn down(
    leader: &mut (impl AsyncRead + Unpin),
    client: &mut (impl AsyncWrite + Unpin),
    payloads: &Arc<ReferenceStream>,
    has_references: &AtomicBool,
    copied: &AtomicU64,
    counters: &ReferenceCounters,
) -> Result<(), ReferenceError> {
    let mut kind = Kind::default();
    loop {
        let Some(bytes) = pass(leader, client, &mut kind, payloads, copied).await? else {
            // A client that has gone needs no end.
            let _ = client.shutdown().await;
            return Ok(());
        };
        let mut rest = &bytes.read[..];
        client.write_all(&rest[..bytes.ordinary]).await?;
        rest = &rest[bytes.ordinary..];
        let Kind::Mqtt(scanner) = &mut kind else { continue };
        while !rest.is_empty() {
            let used = match scanner.scan(rest).map_err(|_| ReferenceError::BadStream)? {
                Scanned::Ordinary(used) => {
                    client.write_all(&rest[..used]).await?;
                    copied.fetch_add(used as u64, Ordering::Relaxed);
                    used
                }
                Scanned::Part(used) => used,
                Scanned::External(used, content) if content.is_empty() => used, // the leader's greeting
                Scanned::External(used, content) => {
                    has_references.store(true, Ordering::Relaxed);
                    let publish = ExternalPublish::parse(&content).ok_or(ReferenceError::BadStream)?;
                    let bytes = put_in(client, payloads, publish).await?;
                    copied.fetch_add(bytes, Ordering::Relaxed);
                    counters.found.fetch_add(1, Ordering::Relaxed);
                    used
                }
            };
            rest = &rest[used..];
        }
    }
}

/// Bytes that were read and not all passed on.
#[derive(Default)]
struct Unpassed {
    read: Vec<u8>,
    /// Number of the first of them that belong to ordinary packets, and were scanned.
    ordinary: usize,
}

/// Reads once, and writes the bytes of ordinary packets as far as the client takes them at once. `None`: the end.
async fn pass(
    leader: &mut (impl AsyncRead + Unpin),
    client: &mut (impl AsyncWrite + Unpin),
    kind: &mut Kind,
    payloads: &ReferenceStream,
    copied: &AtomicU64,
) -> Result<Option<Unpassed>, ReferenceError> {
    poll_fn(|cx| {
        BUFFER.with_borrow_mut(|buffer| {
            let mut read = ReadBuf::new(buffer);
            let Poll::Ready(done) = Pin::new(&mut *leader).poll_read(cx, &mut read) else {
                payloads.is_idle();
                return Poll::Pending;
            };
            done?;
            payloads.is_busy();
            let bytes = read.filled();
            if bytes.is_empty() {
                return Poll::Ready(Ok(None));
            }
            if let Kind::Unknown = kind {
                *kind = if bytes[0] >> 4 == 0 { Kind::Mqtt(ExternalScanner::default()) } else { Kind::Opaque };
            }
            let ordinary = match kind {
                // The caller scans a packet by reference.
                Kind::Mqtt(scanner) if scanner.is_external(bytes[0]) => 0,
                Kind::Mqtt(scanner) => match scanner.scan(bytes) {
                    Ok(Scanned::Ordinary(ordinary)) => ordinary,
                    _ => return Poll::Ready(Err(ReferenceError::BadStream)),
                },
                Kind::Unknown | Kind::Opaque => bytes.len(),
            };
            copied.fetch_add(ordinary as u64, Ordering::Relaxed);
            let mut written = 0;
            if ordinary > 0
                && let Poll::Ready(taken) = Pin::new(&mut *client).poll_write(cx, &bytes[..ordinary])
            {
                written = taken?;
            }
            let read = if written == bytes.len() { Vec::new() } else { bytes[written..].to_vec() };
            Poll::Ready(Ok(Some(Unpassed { read, ordinary: ordinary - written })))
        })
    })
    .await
}

/// Writes a message with its payload. Returns its bytes.
async fn put_in(
    client: &mut (impl AsyncWrite + Unpin),
    payloads: &Arc<ReferenceStream>,
    publish: ExternalPublish,
) -> Result<u64, ReferenceError> {
    let ExternalPublish { head, payload_len, reference } = publish;
    let reference = Reference::from_bytes(&reference);
    if reference.payload_len() != payload_len {
        return Err(ReferenceError::BadStream);
    }
    let payloads = Arc::clone(payloads);
    let mut payload = on_disk(move || payloads.find(reference)).await?;
    let mut out = head;
    let bytes = out.len() as u64 + u64::from(payload_len);
    for number in 0..payload.pieces() {
        let (rest, piece) = on_disk(move || read(payload, number)).await?;
        payload = rest;
        out.extend_from_slice(&piece);
        client.write_all(&out).await?;
        out.clear();
    }
    client.write_all(&out).await?; // the head of an empty payload
    Ok(bytes)
}

fn read(mut payload: Payload, number: usize) -> Result<(Payload, Vec<u8>), NoPayload> {
    let piece = payload.piece(number)?;
    Ok((payload, piece))
}

/// Does work in a thread that may wait for the disk.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NoPayload> + Send + 'static,
) -> Result<T, ReferenceError> {
    match spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(io::Error::other("the node ends").into()),
        },
    }
}

const BUFFER_BYTES: usize = 64 << 10;
