use std::io;

use tokio::net::TcpStream;

use super::frames::{Frame, NoFrame};

/// Bytes of a connection on their way to frames. Reads much at once, keeps the frame that has come in part.
#[derive(Debug)]
pub(super) struct Inbox {
    buffer: Vec<u8>,
    /// INVARIANT: `start <= end <= buffer.len()`; what waits lies between them.
    start: usize,
    end: usize,
}

impl Inbox {
    /// An inbox of `size` bytes, which grows for a larger frame. `received` has been read already.
    pub(super) fn new(size: usize, received: &[u8]) -> Self {
        let mut buffer = vec![0; size.max(received.len() + 1)];
        buffer[..received.len()].copy_from_slice(received);
        Self { buffer, start: 0, end: received.len() }
    }

    /// Takes what the socket has, in one read; `false` when it has nothing.
    ///
    /// # Errors
    /// The socket's; the end of the stream is an error too.
    pub(super) fn fill(&mut self, stream: &TcpStream) -> io::Result<bool> {
        match stream.try_read(self.space()) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.end += count;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Hands all whole frames to `take`, in order.
    ///
    /// # Errors
    /// `take`'s, or that the bytes are no frames.
    pub(super) fn drain<E: From<NoFrame>>(
        &mut self,
        mut take: impl FnMut(Frame<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some((frame, size)) = Frame::split(&self.buffer[self.start..self.end])? {
            take(frame)?;
            self.start += size;
        }
        Ok(())
    }

    /// Room to read into, at least one byte.
    fn space(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.buffer.len() {
            self.buffer.resize(2 * self.end, 0);
        }
        &mut self.buffer[self.end..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Inbox {
        fn receive(&mut self, bytes: &[u8]) {
            for &byte in bytes {
                self.space()[0] = byte;
                self.end += 1;
            }
        }
    }

    #[test]
    fn frames_come_out_whole_however_the_bytes_came() {
        let stream: Vec<u8> = (0..50u8).flat_map(|n| [&[0x30, n][..], &vec![n; usize::from(n)]].concat()).collect();
        for step in [1, 2, 3, 7, 100, stream.len()] {
            let mut inbox = Inbox::new(4, &stream[..1]);
            let mut seen = Vec::new();
            for part in stream[1..].chunks(step) {
                inbox.receive(part);
                let taken = inbox.drain(|frame| {
                    seen.push(frame.body.to_vec());
                    Ok::<_, NoFrame>(())
                });
                assert_eq!(taken, Ok(()));
            }
            assert_eq!(seen, (0..50u8).map(|n| vec![n; usize::from(n)]).collect::<Vec<_>>(), "step {step}");
        }
    }
}
