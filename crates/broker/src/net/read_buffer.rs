//! Undecoded input.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use bytes::BytesMut;
use tenbin_codec::WriteBuffer;

/// Undecoded input of a connection, with memory for the next read.
#[derive(Debug)]
pub(super) struct ReadBuffer {
    bytes: BytesMut,
    /// Capacity of the buffer of the last read.
    capacity: u32,
    /// Size of the next read in KiB: grows while reads fill it, shrinks with small reads.
    chunk_kib: u16,
    small_reads: u8,
}

impl ReadBuffer {
    pub(super) fn new() -> Self {
        Self { bytes: BytesMut::new(), capacity: 0, chunk_kib: CHUNK_FIRST_KIB, small_reads: 0 }
    }

    /// Makes room for a read; returns how many bytes.
    #[inline(always)] // called in one place
    pub(super) fn prepare(&mut self) -> usize {
        if self.bytes.capacity() == 0 {
            (self.bytes, self.capacity) = SPARE.take();
        }
        let before = self.bytes.capacity();
        // A partly received packet with reserved memory continues in it.
        let is_reserved = self.bytes.len() >= RESERVED_FROM && before > self.bytes.len();
        self.bytes.reserve(if is_reserved { 1 } else { self.chunk_kib as usize * 1024 });
        if self.bytes.capacity() != before {
            self.capacity = self.bytes.capacity() as u32; // a few packets of 268 MB at most
        }
        self.bytes.capacity() - self.bytes.len()
    }

    /// Adapts the size of the next read to the last one, of `read` bytes into `room`.
    pub(super) fn adapt(&mut self, read: usize, room: usize) {
        if read >= room {
            self.chunk_kib = (self.chunk_kib * 4).min(CHUNK_MAX_KIB);
            self.small_reads = 0;
        } else if read < self.chunk_kib as usize * 128 && self.chunk_kib > CHUNK_FIRST_KIB {
            self.small_reads += 1;
            if self.small_reads == SMALL_READS {
                self.chunk_kib /= 4;
                self.small_reads = 0;
            }
        } else {
            self.small_reads = 0;
        }
    }

    /// Whether a payload that would be shared, not copied, is a small part of the buffer it was read into.
    pub(super) fn is_small_part(&self, payload_bytes: usize) -> bool {
        payload_bytes >= WriteBuffer::SHARE_FROM && payload_bytes < self.capacity as usize / 4
    }

    /// Gives an empty buffer to the thread, for its next connection that reads.
    #[inline(always)] // called in one place
    pub(super) fn rest(&mut self) {
        if !self.bytes.is_empty() {
            self.rest_beginning();
        } else if self.bytes.capacity() > 0 {
            let bytes = std::mem::take(&mut self.bytes);
            if self.capacity <= CHUNK_MAX {
                SPARE.set((bytes, self.capacity));
            }
        }
    }

    /// Moves the beginning of a small packet out of a large buffer, and gives that to the thread.
    #[cold]
    fn rest_beginning(&mut self) {
        if self.bytes.len() >= RESERVED_FROM || self.capacity as usize <= 2 * RESERVED_FROM {
            return;
        }
        let mut beginning = BytesMut::with_capacity(self.bytes.len());
        beginning.extend_from_slice(&self.bytes);
        self.bytes.clear();
        let bytes = std::mem::replace(&mut self.bytes, beginning);
        let capacity = std::mem::replace(&mut self.capacity, self.bytes.capacity() as u32);
        if capacity <= CHUNK_MAX {
            SPARE.set((bytes, capacity));
        }
    }
}

impl Deref for ReadBuffer {
    type Target = BytesMut;

    fn deref(&self) -> &BytesMut {
        &self.bytes
    }
}

impl DerefMut for ReadBuffer {
    fn deref_mut(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }
}

thread_local! {
    /// Spare buffer and its size: a thread reads from one connection after the other.
    static SPARE: Cell<(BytesMut, u32)> = Cell::default();
}

const CHUNK_FIRST_KIB: u16 = 4;
const CHUNK_MAX_KIB: u16 = 64;
const CHUNK_MAX: u32 = CHUNK_MAX_KIB as u32 * 1024;
/// Larger beginnings of packets have memory for the rest: see `arrival`.
const RESERVED_FROM: usize = super::arrival::FREE_BYTES;
const SMALL_READS: u8 = 32;
