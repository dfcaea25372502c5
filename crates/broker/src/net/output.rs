//! Encoded packets that are not in the socket yet.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use tenbin_codec::WriteBuffer;

/// Output of a connection, with its position in the connection's byte stream.
#[derive(Debug)]
pub(super) struct Output {
    packets: WriteBuffer,
    /// Bytes written since the connection began.
    written: u64,
}

impl Output {
    pub(super) fn new() -> Self {
        Self { packets: WriteBuffer::new(), written: 0 }
    }

    /// Bytes of this connection that its stream has taken.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Value of [`Output::written`] once the current output is written.
    pub(super) fn end(&self) -> u64 {
        self.written + self.len() as u64
    }

    /// Counts bytes that the stream has taken.
    pub(super) fn count_written(&mut self, bytes: usize) {
        self.written += bytes as u64;
    }

    /// Takes the thread's spare output buffer, which is warm, because much output may follow.
    pub(super) fn expect_burst(&mut self) {
        SPARE.with_borrow_mut(|spare| {
            if spare.capacity() > self.capacity() {
                self.swap_memory(spare);
            }
        });
    }

    /// Gives memory of a burst to the thread or frees it, as the connection has nothing to do.
    #[inline(always)] // called in one place
    pub(super) fn rest(&mut self) {
        SPARE.with_borrow_mut(|spare| {
            if self.capacity() > spare.capacity() && self.capacity() <= SPARE_MAX {
                self.swap_memory(spare);
            }
        });
        self.shrink();
    }
}

impl Deref for Output {
    type Target = WriteBuffer;

    fn deref(&self) -> &WriteBuffer {
        &self.packets
    }
}

impl DerefMut for Output {
    fn deref_mut(&mut self) -> &mut WriteBuffer {
        &mut self.packets
    }
}

thread_local! {
    /// Spare output buffer: one a thread, since nearly all bursts are written at once.
    static SPARE: RefCell<Vec<u8>> = RefCell::default();
}

/// Unwritten bytes at which the connection takes no more messages and reads no more input.
pub(super) const OUT_FULL: usize = 256 * 1024;
/// Maximum size of the spare output buffer, in bytes.
const SPARE_MAX: usize = 1 << 20;
