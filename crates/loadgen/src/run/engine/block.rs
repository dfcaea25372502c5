use std::ops::Range;

use tenbin_codec::PacketType;

use super::frame::{Frame, NoFrame};
use super::link::Link;
use super::window::Window;

/// The messages that a publisher writes at once.
///
/// All of them have left for the socket before the next block begins. At QoS 0 a message is published once its last
/// byte is written.
#[derive(Debug)]
pub(super) struct Block {
    /// Maximum number of messages.
    pub(super) len_max: u64,
    /// At QoS 0: number of the first unwritten message, and how many bytes were searched for written ones.
    unwritten: u64,
    searched: usize,
    /// Due time of the messages, in a closed loop.
    due_ns: u64,
}

impl Block {
    /// Blocks of frames of `frame_len` bytes: large writes, yet small enough that all publishers have a share of window
    /// and memory.
    pub(super) fn new(window: u64, publishers: u32, frame_len: usize) -> Self {
        let publishers = u64::from(publishers.max(1));
        let share = window / (2 * publishers);
        let size = (BLOCKS_SIZE / publishers).clamp(BLOCK_SIZE / 8, BLOCK_SIZE);
        let len_max = share.min(size / frame_len as u64).max(1);
        Self { len_max, unwritten: 0, searched: 0, due_ns: 0 }
    }

    /// Begins the next block.
    pub(super) fn begin(&mut self) {
        self.searched = 0;
    }

    /// Claims the window for the block's deliveries; returns the due time of its messages.
    pub(super) fn claim(&mut self, window: &Window, deliveries: u64, now_ns: u64) -> u64 {
        self.due_ns = window.claim(deliveries, now_ns);
        self.due_ns
    }

    /// Messages below `next` that are written since the last call.
    pub(super) fn take_written(&mut self, link: &Link, next: u64) -> Result<Range<u64>, NoFrame> {
        let from = self.unwritten;
        if link.is_written() {
            self.unwritten = next;
        } else {
            while let Some((frame, size)) = Frame::split(&link.out[self.searched..link.written()])? {
                self.searched += size;
                self.unwritten += u64::from(frame.packet_type() == Some(PacketType::Publish));
            }
        }
        Ok(from..self.unwritten)
    }

    /// Drops the unwritten messages below `next`, as their connection is gone; returns them.
    pub(super) fn drop_unwritten(&mut self, next: u64) -> Range<u64> {
        std::mem::replace(&mut self.unwritten, next)..next
    }

    /// Takes back [`Block::drop_unwritten`]: message `first` and those after it come in later blocks.
    pub(super) fn send_later(&mut self, first: u64) {
        self.unwritten = first;
    }

    /// Takes back the claim on dropped messages, unless the window has given them up before.
    pub(super) fn unclaim(&self, window: &Window, deliveries: u64) {
        window.unclaim(self.due_ns, deliveries);
    }
}

/// Size of a block, in bytes.
const BLOCK_SIZE: u64 = 32 * 1024;

/// Size of all publishers' blocks together, if there are many, in bytes.
const BLOCKS_SIZE: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_leaves_room_for_all_publishers() {
        let len_max = |window, publishers, frame_len| Block::new(window, publishers, frame_len).len_max;
        assert_eq!(len_max(20_000, 10, 120), 273); // 32 KiB
        assert_eq!(len_max(2_000, 10, 120), 100);
        assert_eq!(len_max(5, 10, 120), 1);
        assert_eq!(len_max(20_000, 1, 100_000), 1);
        assert_eq!(len_max(u64::MAX, 100_000, 100), 40); // 4 KiB
    }

    #[test]
    fn messages_given_up_before_a_cut_are_taken_back_once() {
        let (window, mut block) = (Window::new(10, 1), Block::new(10, 1, 100));
        assert_eq!(block.claim(&window, 4, 100), 100);
        block.unclaim(&window, 4);
        assert_eq!(window.outstanding(), 0, "cut before the window has given them up");
        block.claim(&window, 4, 200);
        window.write_off(300);
        block.unclaim(&window, 4);
        assert_eq!(block.claim(&window, 4, 250), 301);
        assert_eq!(window.outstanding(), 4, "given up before the cut");
    }
}
