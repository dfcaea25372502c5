//! A trunk: one TCP connection to the switch of another lab, for the frames of that lab's machines.
//!
//! Each frame follows its length (4 bytes, big-endian). Links act at the sender's switch alone.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::frame;

/// Size of the length before each frame.
const LENGTH: usize = 4;
/// Bytes that wait for the connection at most; then the trunk takes no more frames, like a full interface.
const MOST_WAITING: usize = 1 << 20;
/// Bytes of one read.
const CHUNK: usize = 128 << 10;

/// The switch's end of a connection.
#[derive(Debug)]
pub(crate) struct Trunk {
    socket: OwnedFd,
    received: Vec<u8>,
    /// Bytes that the connection has not taken yet; those before `sent` are gone.
    waiting: Vec<u8>,
    sent: usize,
}

/// The connection has ended, or carries something that is no frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken;

impl Trunk {
    /// A trunk over a connected socket that does not block.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, received: Vec::new(), waiting: Vec::new(), sent: 0 }
    }

    /// True while bytes wait for the connection.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends a frame. False if too many bytes wait already, or the connection has ended.
    pub(crate) fn write(&mut self, frame: &[u8]) -> bool {
        let length = (frame.len() as u32).to_be_bytes();
        if self.is_waiting() {
            if self.waiting.len() - self.sent + LENGTH + frame.len() > MOST_WAITING {
                return false;
            }
            self.waiting.extend_from_slice(&length);
            self.waiting.extend_from_slice(frame);
            return true;
        }
        let taken = match rustix::io::writev(&self.socket, &[IoSlice::new(&length), IoSlice::new(frame)]) {
            Ok(bytes) => bytes,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            // The next read finds the end, too.
            Err(_) => return false,
        };
        // Half a frame must be followed by its other half.
        self.waiting.extend_from_slice(&length[taken.min(LENGTH)..]);
        self.waiting.extend_from_slice(&frame[taken.saturating_sub(LENGTH)..]);
        true
    }

    /// Sends waiting bytes, as far as the connection takes them.
    pub(crate) fn flush(&mut self) -> Result<(), Broken> {
        while self.sent < self.waiting.len() {
            match rustix::io::write(&self.socket, &self.waiting[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if self.sent > MOST_WAITING {
                        self.waiting.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(());
                }
                Err(_) => return Err(Broken),
            }
        }
        self.waiting.clear();
        self.sent = 0;
        Ok(())
    }

    /// Reads once, and hands over the frames that are complete.
    pub(crate) fn read(&mut self, take: impl FnMut(&[u8])) -> Result<(), Broken> {
        let before = self.received.len();
        self.received.resize(before + CHUNK, 0);
        let read = rustix::io::read(&self.socket, &mut self.received[before..]);
        self.received.truncate(before + read.unwrap_or(0));
        match read {
            Ok(0) => return Err(Broken),
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(_) => return Err(Broken),
        }
        let used = frames(&self.received, take)?;
        self.received.drain(..used);
        Ok(())
    }
}

/// Hands over the complete frames at the begin of `bytes`, and returns their size.
fn frames(bytes: &[u8], mut take: impl FnMut(&[u8])) -> Result<usize, Broken> {
    let mut used = 0;
    while let Some((length, rest)) = bytes[used..].split_first_chunk::<LENGTH>() {
        let length = u32::from_be_bytes(*length) as usize;
        if length > frame::MOST {
            return Err(Broken);
        }
        let Some(frame) = rest.get(..length) else { break };
        take(frame);
        used += LENGTH + length;
    }
    Ok(used)
}

impl AsFd for Trunk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn trunk() -> (Trunk, UnixStream) {
        let (own, peer) = UnixStream::pair().expect("a pair of sockets");
        own.set_nonblocking(true).expect("an option");
        peer.set_nonblocking(true).expect("an option");
        (Trunk::new(own.into()), peer)
    }

    fn read(trunk: &mut Trunk) -> Result<Vec<Vec<u8>>, Broken> {
        let mut frames = Vec::new();
        trunk.read(|frame| frames.push(frame.to_vec()))?;
        Ok(frames)
    }

    #[test]
    fn large_frames_pass_whole_through_a_slow_connection() {
        let (mut from, to) = trunk();
        let mut to = Trunk::new(to.into());
        let frame = |number: u8| vec![number; frame::MOST - usize::from(number)];
        let mut sent = 0;
        while from.write(&frame(sent)) {
            sent += 1;
        }
        // The kernel's own buffer is small; the rest waits, up to the bound.
        assert!(from.is_waiting() && sent > 10, "{sent} frames");
        let mut received = Vec::new();
        while received.len() < usize::from(sent) {
            from.flush().expect("a connection");
            received.extend(read(&mut to).expect("frames"));
        }
        assert!(!from.is_waiting());
        assert_eq!(received, (0..sent).map(frame).collect::<Vec<_>>());
        drop(from);
        assert_eq!(read(&mut to), Err(Broken));
        assert!(!to.write(&[0; 100]));
    }

    #[test]
    fn impossible_length_breaks_the_trunk() {
        let (mut trunk, mut peer) = trunk();
        peer.write_all(&[0, 0, 0, 2, 7]).expect("a stream");
        assert_eq!(read(&mut trunk), Ok(Vec::new()), "half a frame");
        peer.write_all(&[8, 0xff, 0, 0, 0]).expect("a stream");
        assert_eq!(read(&mut trunk), Err(Broken));
    }
}
