use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::frame::{Frame, NoFrame, extent};

/// Splits the bytes of a connection into frames.
///
/// All connections of a thread read into the same large buffer, in which whole frames are parsed in place. Only an
/// incomplete frame is kept here until the rest arrives. So ten thousand connections need no buffer each, and the
/// shared one stays in the processor's cache.
#[derive(Debug)]
pub(super) struct Inbox {
    /// Memory for kept bytes.
    held: Vec<u8>,
    /// Number of kept bytes. INVARIANT: `len <= held.len()`.
    len: usize,
    /// Size of the incomplete frame in bytes; 0 if not known yet.
    wanted: usize,
    /// Whether the kept bytes may contain whole frames: then they are parsed before the next read.
    is_unread: bool,
}

impl Inbox {
    /// An inbox that starts with `received`, bytes that were read already.
    pub(super) fn new(received: &[u8]) -> Self {
        Self { held: received.to_vec(), len: received.len(), wanted: 0, is_unread: !received.is_empty() }
    }

    /// Bytes that were read but are not a whole frame, or not parsed yet.
    pub(super) fn kept(&self) -> &[u8] {
        &self.held[..self.len]
    }

    /// Reads once and passes all whole frames to `take`, in order. `shared` is the thread's buffer.
    ///
    /// # Errors
    /// The end of the stream, an error of the socket or of `take`, or bytes that are not frames.
    pub(super) fn poll_frames(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut (impl AsyncRead + Unpin),
        shared: &mut [u8],
        mut take: impl FnMut(Frame<'_>) -> Result<(), String>,
    ) -> Poll<Result<(), String>> {
        if self.wanted > shared.len() / 2 || self.len > shared.len() / 2 {
            return self.poll_large(cx, stream, &mut take);
        }
        let mut end = self.len;
        shared[..end].copy_from_slice(&self.held[..end]);
        if !std::mem::take(&mut self.is_unread) {
            end += ready!(poll_some(cx, stream, &mut shared[end..]))?;
        }
        let start = split_all(&shared[..end], &mut take)?;
        self.hold(&shared[start..end])?;
        Poll::Ready(Ok(()))
    }

    /// Reads a frame that does not fit into the shared buffer into separate memory.
    fn poll_large(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut (impl AsyncRead + Unpin),
        take: &mut impl FnMut(Frame<'_>) -> Result<(), String>,
    ) -> Poll<Result<(), String>> {
        if !std::mem::take(&mut self.is_unread) {
            // The memory is at most twice the bytes received plus a step, whatever size the frame announces.
            let room = self.wanted.clamp(self.len + 1, 2 * self.len + LARGE_STEP);
            if self.held.len() < room {
                self.held.resize(room, 0);
            }
            let read = ready!(poll_some(cx, stream, &mut self.held[self.len..room]))?;
            self.len += read;
        }
        let start = split_all(&self.held[..self.len], take)?;
        self.held.copy_within(start..self.len, 0);
        self.len -= start;
        self.wanted = extent(&self.held[..self.len])?.map_or(0, |(_, frame)| frame);
        Poll::Ready(Ok(()))
    }

    fn hold(&mut self, rest: &[u8]) -> Result<(), NoFrame> {
        if self.held.len() < rest.len() {
            self.held.resize(rest.len(), 0);
        }
        self.held[..rest.len()].copy_from_slice(rest);
        self.len = rest.len();
        self.wanted = extent(rest)?.map_or(0, |(_, frame)| frame);
        Ok(())
    }
}

/// Passes all whole frames to `take`; returns where the rest begins.
#[inline]
fn split_all(bytes: &[u8], take: &mut impl FnMut(Frame<'_>) -> Result<(), String>) -> Result<usize, String> {
    let mut start = 0;
    while let Some((frame, size)) = Frame::split(&bytes[start..])? {
        take(frame)?;
        start += size;
    }
    Ok(start)
}

/// Reads at least one byte.
fn poll_some(
    cx: &mut Context<'_>,
    stream: &mut (impl AsyncRead + Unpin),
    room: &mut [u8],
) -> Poll<Result<usize, String>> {
    let mut buffer = ReadBuf::new(room);
    ready!(Pin::new(stream).poll_read(cx, &mut buffer)).map_err(|error: io::Error| error.to_string())?;
    match buffer.filled().len() {
        0 => Poll::Ready(Err("closed by the broker".to_owned())),
        read => Poll::Ready(Ok(read)),
    }
}

/// Smallest step by which the memory of a large frame grows.
const LARGE_STEP: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// A stream that yields at most `step` bytes per read.
    struct Trickle<'a> {
        bytes: &'a [u8],
        step: usize,
    }

    impl AsyncRead for Trickle<'_> {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            let (now, later) = self.bytes.split_at(self.step.min(self.bytes.len()).min(buffer.remaining()));
            buffer.put_slice(now);
            self.bytes = later;
            Poll::Ready(Ok(()))
        }
    }

    fn frames_of(bytes: &[u8], read_before: usize, step: usize, shared: usize) -> (Vec<Vec<u8>>, String) {
        let mut inbox = Inbox::new(&bytes[..read_before]);
        let mut stream = Trickle { bytes: &bytes[read_before..], step };
        let mut shared = vec![0; shared];
        let mut seen = Vec::new();
        loop {
            let read = inbox.poll_frames(&mut Context::from_waker(Waker::noop()), &mut stream, &mut shared, |frame| {
                seen.push(frame.body.to_vec());
                Ok(())
            });
            match read {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return (seen, error),
                Poll::Pending => panic!("a trickle never waits"),
            }
        }
    }

    #[test]
    fn frames_come_out_whole_however_the_bytes_came() {
        let stream: Vec<u8> = (0..50u8).flat_map(|n| [&[0x30, n][..], &vec![n; usize::from(n)]].concat()).collect();
        let expected: Vec<_> = (0..50u8).map(|n| vec![n; usize::from(n)]).collect();
        for step in [1, 2, 3, 7, 100, stream.len()] {
            for read_before in [0, 1, 700, stream.len()] {
                for shared in [16, 64, 128, 10_000] {
                    let (seen, end) = frames_of(&stream, read_before, step, shared);
                    assert_eq!(seen, expected, "{step} {read_before} {shared}");
                    assert_eq!(end, "closed by the broker");
                }
            }
        }
    }

    #[test]
    fn a_frame_may_be_larger_than_the_shared_buffer() {
        let body: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
        let large = [&[0x30, 0xE0, 0xA7, 0x12][..], &body].concat();
        let stream = [&large[..], &[0x30, 1, 7], &large, &[0x30, 0]].concat();
        for step in [1000, 65_536, 1 << 20] {
            let (seen, _) = frames_of(&stream, 0, step, 4096);
            assert!(seen == [body.clone(), vec![7], body.clone(), vec![]], "{step}");
        }
    }

    #[test]
    fn announced_size_alone_takes_no_memory() {
        let mut inbox = Inbox::new(&[0x30, 0xFF, 0xFF, 0xFF, 0x7F]);
        let mut stream = Trickle { bytes: &[0; 1000], step: 10 };
        for _ in 0..100 {
            let polled =
                inbox.poll_frames(&mut Context::from_waker(Waker::noop()), &mut stream, &mut [0; 4096], |_| Ok(()));
            assert_eq!(polled, Poll::Ready(Ok(())));
        }
        assert!(inbox.held.len() <= 2 * 1000 + LARGE_STEP, "{}", inbox.held.len());
    }

    #[test]
    fn bytes_that_are_no_frames_are_an_error() {
        let (seen, error) = frames_of(&[0x30, 0, 0x30, 0xFF, 0xFF, 0xFF, 0xFF, 0], 0, 100, 64);
        assert_eq!((seen, error.as_str()), (vec![vec![]], "malformed packet"));
    }
}
