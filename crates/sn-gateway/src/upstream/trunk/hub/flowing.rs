//! Bytes between members, hub and broker, and their bounds.

use std::task::{Context, Poll, Waker};

use bytes::Buf as _;
use tenbin_codec::WriteBuffer;

use super::{Hub, Key, OUT_BYTES_MAXIMUM, State};

impl Hub {
    /// Takes the packets for the broker.
    pub(in crate::upstream::trunk) fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<WriteBuffer> {
        if self.out.is_empty() {
            self.task = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let out = std::mem::take(&mut self.out);
        self.unblock();
        Poll::Ready(out)
    }

    /// The packets of the last [`Hub::poll_take`] were written.
    pub(in crate::upstream::trunk) fn note_written(&mut self, bytes: usize) {
        self.written += bytes as u64;
        self.unblock();
    }

    /// End of the packets for the broker so far, for [`Hub::poll_written`].
    pub(in crate::upstream::trunk) fn end_of_output(&self) -> u64 {
        self.queued
    }

    /// Ready once all packets up to `end` were written.
    pub(in crate::upstream::trunk) fn poll_written(&mut self, end: u64, cx: &mut Context<'_>) -> Poll<()> {
        if self.written >= end || matches!(self.state, State::Down) {
            return Poll::Ready(());
        }
        self.blocked.push(cx.waker().clone());
        Poll::Pending
    }

    /// Ready once there is room for packets of a member.
    pub(in crate::upstream::trunk) fn poll_room(&mut self, key: Key, cx: &mut Context<'_>) -> Poll<()> {
        if self.out.len() + self.waiting_bytes <= OUT_BYTES_MAXIMUM {
            return Poll::Ready(());
        }
        if let Some(member) = self.member(key)
            && member.room.replace(cx.waker().clone()).is_none()
        {
            self.without_room.push(key);
        }
        Poll::Pending
    }

    /// Passes bytes for a member to `put`, up to `maximum`. Ready with 0 once nothing follows.
    pub(in crate::upstream::trunk) fn poll_read(
        &mut self,
        key: Key,
        maximum: usize,
        mut put: impl FnMut(&[u8]),
        cx: &mut Context<'_>,
    ) -> Poll<usize> {
        let Some(member) = self.member(key) else { return Poll::Ready(0) };
        let mut read = 0;
        while read < maximum && !member.inbound.is_empty() {
            let chunk = member.inbound.chunk();
            let length = chunk.len().min(maximum - read);
            put(&chunk[..length]);
            member.inbound.advance(length);
            read += length;
        }
        if read > 0 {
            member.read += read as i64;
            member.is_cut = !member.inbound.is_empty();
            if member.inbound.is_empty() {
                member.inbound = WriteBuffer::new();
            }
            return Poll::Ready(read);
        }
        if member.is_closed {
            return Poll::Ready(0);
        }
        match &mut member.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            waker => *waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Wakes members that wait for room, and streams that wait for the end of the output.
    pub(super) fn unblock(&mut self) {
        self.blocked.drain(..).for_each(Waker::wake);
        for key in std::mem::take(&mut self.without_room) {
            if let Some(room) = self.member(key).and_then(|member| member.room.take()) {
                room.wake();
            }
        }
    }
}
