use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes};

/// Encoded packets on their way to a socket.
///
/// Small parts are copied into one growing block, so that many packets leave in one write. A payload of
/// [`WriteBuffer::SHARE_FROM`] bytes or more is shared, not copied, and leaves in the same vectored write. Reading is
/// by [`Buf`]. The block keeps its memory between writes ([`WriteBuffer::shrink`] releases it).
#[derive(Debug, Default)]
pub struct WriteBuffer {
    /// Closed blocks and shared payloads, oldest first.
    chunks: VecDeque<Bytes>,
    /// The open block, after all `chunks`.
    block: Vec<u8>,
    /// Bytes of `block` that have been read.
    block_read: usize,
    /// Bytes in `chunks`.
    chunks_len: usize,
}

impl WriteBuffer {
    /// Payload size from which a payload is shared. Copying a smaller payload is cheaper than a reference count and another
    /// slice in the vectored write.
    pub const SHARE_FROM: usize = 4096;

    /// An empty buffer; allocates at the first write.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of unread bytes.
    pub fn len(&self) -> usize {
        self.chunks_len + self.block.len() - self.block_read
    }

    /// Whether there are no unread bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a payload: copies it when small, shares it when large.
    pub fn put_payload(&mut self, payload: &Bytes) {
        if payload.len() < Self::SHARE_FROM {
            self.block.extend_from_slice(payload);
            return;
        }
        self.close_block();
        self.chunks_len += payload.len();
        self.chunks.push_back(payload.clone());
    }

    /// Appends whole packets and empties `packets`.
    ///
    /// If this buffer is empty and `packets` is not small, both exchange their memory instead of copying.
    pub fn put_packets(&mut self, packets: &mut Vec<u8>) {
        if packets.len() >= Self::SHARE_FROM && self.is_empty() {
            self.clear();
            std::mem::swap(&mut self.block, packets);
        } else {
            self.block.extend_from_slice(packets);
            packets.clear();
        }
    }

    /// Appends whole packets.
    pub fn append_packets(&mut self, packets: &[u8]) {
        self.block.extend_from_slice(packets);
    }

    /// Appends all unread bytes of `other`.
    pub fn append(&mut self, mut other: Self) {
        if self.is_empty() {
            std::mem::swap(self, &mut other);
            return;
        }
        if other.chunks.is_empty() {
            self.block.extend_from_slice(&other.block[other.block_read..]);
            return;
        }
        self.close_block();
        other.close_block();
        self.chunks_len += other.chunks_len;
        self.chunks.append(&mut other.chunks);
    }

    /// The open block, to which small parts are appended.
    pub(crate) fn block(&mut self) -> &mut Vec<u8> {
        &mut self.block
    }

    /// Returns all unread bytes as one copy, without changing the buffer. For tests and cold paths.
    pub fn to_bytes(&self) -> Bytes {
        let mut all = Vec::with_capacity(self.len());
        self.chunks.iter().for_each(|chunk| all.extend_from_slice(chunk));
        all.extend_from_slice(&self.block[self.block_read..]);
        all.into()
    }

    /// Discards all unread bytes.
    pub fn clear(&mut self) {
        self.chunks.clear();
        self.chunks_len = 0;
        self.block.clear();
        self.block_read = 0;
    }

    /// Bytes of memory of the open block.
    pub fn capacity(&self) -> usize {
        self.block.capacity()
    }

    /// Exchanges the open block's memory with `spare`, which is emptied, so that a piece of memory can serve many buffers
    /// in turn. Does nothing while there are unread bytes.
    pub fn swap_memory(&mut self, spare: &mut Vec<u8>) {
        if self.is_empty() {
            self.clear();
            spare.clear();
            std::mem::swap(&mut self.block, spare);
        }
    }

    /// Releases the memory of an idle buffer, except a little that the next packets are likely to need. Does nothing
    /// while there are unread bytes.
    pub fn shrink(&mut self) {
        if self.is_empty() && self.block.capacity() > KEPT_WHEN_IDLE {
            *self = Self::default();
        }
    }

    fn close_block(&mut self) {
        if self.block.len() > self.block_read {
            let mut chunk = Bytes::from(std::mem::take(&mut self.block));
            chunk.advance(self.block_read);
            self.chunks_len += chunk.len();
            self.chunks.push_back(chunk);
        } else {
            self.block.clear();
        }
        self.block_read = 0;
    }
}

impl Buf for WriteBuffer {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        match self.chunks.front() {
            Some(chunk) => chunk,
            None => &self.block[self.block_read..],
        }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        let open = &self.block[self.block_read..];
        let chunks = self.chunks.iter().map(|chunk| &chunk[..]).chain((!open.is_empty()).then_some(open));
        for (slice, chunk) in slices.iter_mut().zip(chunks) {
            *slice = IoSlice::new(chunk);
            filled += 1;
        }
        filled
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len(), "advanced past the end");
        while let Some(chunk) = self.chunks.front_mut() {
            let step = count.min(chunk.len());
            self.chunks_len -= step;
            count -= step;
            if step < chunk.len() {
                chunk.advance(step);
                return;
            }
            self.chunks.pop_front();
        }
        self.block_read += count;
        if self.block_read == self.block.len() {
            self.block.clear();
            self.block_read = 0;
        } else if self.block_read >= COMPACT_FROM && self.block_read >= self.block.len() / 2 {
            // A buffer that never becomes quite empty would otherwise keep all its bytes. Each byte moves at most once
            // for every byte read.
            self.block.drain(..self.block_read);
            self.block_read = 0;
        }
    }
}

/// Bytes of memory that an idle buffer keeps.
const KEPT_WHEN_IDLE: usize = 4096;

/// Appends a length-prefixed string or binary data of at most 65,535 bytes. The types of the callers ensure that bound
/// ([`crate::Text`] checks it, binary data is checked by `debug_assert`).
pub(crate) fn put_binary(out: &mut impl BufMut, bytes: &[u8]) {
    debug_assert!(bytes.len() <= usize::from(u16::MAX), "binary data of more than 65,535 bytes");
    let len = bytes.len().min(usize::from(u16::MAX));
    out.put_u16(len as u16);
    out.put_slice(&bytes[..len]);
}

/// Number of read bytes from which they are removed from the open block.
const COMPACT_FROM: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_all_sizes_come_out_in_order_for_any_read_size() {
        let large = Bytes::from(vec![7u8; WriteBuffer::SHARE_FROM]);
        let mut out = WriteBuffer::new();
        out.block().extend_from_slice(b"head");
        out.put_payload(&large);
        out.put_payload(&Bytes::from_static(b"tail"));
        let expected = [b"head", &large[..], b"tail"].concat();
        assert_eq!(out.to_bytes(), expected);

        let mut read = Vec::new();
        for step in [1, 3, 2, 4094, 1, 1, 2].into_iter().cycle() {
            let step = step.min(out.remaining());
            if step == 0 {
                break;
            }
            let mut part = vec![0; step];
            out.copy_to_slice(&mut part);
            read.extend(part);
        }
        assert_eq!(read, expected);
        assert!(out.is_empty());
    }

    #[test]
    fn a_buffer_that_never_runs_empty_does_not_grow() {
        let mut out = WriteBuffer::new();
        out.block().extend_from_slice(&[0; 100]);
        for round in 0..10_000u32 {
            out.block().extend_from_slice(&[round as u8; 100]);
            assert_eq!(out.chunk()[0], round.saturating_sub(1) as u8);
            out.advance(100);
        }
        assert_eq!(out.len(), 100);
        assert!(out.block.capacity() < 4 * COMPACT_FROM, "{}", out.block.capacity());
    }

    #[test]
    fn empty_buffer_swaps_its_memory() {
        let mut spare = Vec::with_capacity(1000);
        spare.extend_from_slice(b"of another");
        let mut out = WriteBuffer::new();
        out.swap_memory(&mut spare);
        assert_eq!((out.capacity(), out.len(), spare.capacity()), (1000, 0, 0));
        out.block().extend_from_slice(b"head");
        out.swap_memory(&mut spare);
        assert_eq!((out.capacity(), out.to_bytes(), spare.capacity()), (1000, Bytes::from_static(b"head"), 0));
        out.advance(4);
        out.swap_memory(&mut spare);
        assert_eq!((out.capacity(), spare.capacity()), (0, 1000));
    }

    #[test]
    fn a_large_payload_is_shared_not_copied() {
        let large = Bytes::from(vec![7u8; WriteBuffer::SHARE_FROM]);
        let mut out = WriteBuffer::new();
        out.block().extend_from_slice(b"head");
        out.put_payload(&large);
        let mut slices = [IoSlice::new(&[]); 4];
        assert_eq!(out.chunks_vectored(&mut slices), 2);
        assert_eq!(slices[1].as_ptr(), large.as_ptr());
    }
}
