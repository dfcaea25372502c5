//! The leader's end of one connection to a copy.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::backup::Pinned;
use super::disk_calls::DiskCalls;
use super::operation::Operation;
use super::stream::Stream;
use super::traffic::{Traffic, TrafficStats};
use super::{JoinId, SEND_PATIENCE};

/// Passes operations to a copy, and waits for their confirmation.
///
/// The sender's lock covers sending an operation and performing it at the leader. So the copier of a join, which reads
/// under this lock, never sends bytes that are older than an operation sent before.
pub(super) struct Channel {
    sender: Mutex<Sender>,
    /// The sender's last number, for figures. Relaxed.
    sent: Arc<AtomicU64>,
    traffic: Arc<Traffic>,
    /// Calls of the leader's own disk.
    pub(super) disk: DiskCalls,
    progress: Mutex<Progress>,
    changed: Condvar,
}

/// Sends operations, in the order in which the leader performs them.
#[derive(Default)]
pub(super) struct Sender {
    peer: Option<Box<dyn Stream>>,
    /// Number of the last operation that is to be confirmed. Numbers go on from copy to copy.
    sent: Arc<AtomicU64>,
    traffic: Arc<Traffic>,
    /// Small operations that have not been sent yet.
    buffer: Vec<u8>,
    ended: bool,
    /// Files that a backup reads.
    pub(super) backup: Option<Pinned>,
}

#[derive(Default)]
struct Progress {
    confirmed: u64,
    /// Commits wait for the copy.
    is_required: bool,
    /// Commits wait, even if all is confirmed.
    is_held: bool,
    /// Why nothing is confirmed any more.
    ended: Option<String>,
    /// The connection of a copy, to end calls that block in it.
    peer: Option<(JoinId, Box<dyn Stream>)>,
    /// That copy has everything from before its connection, too.
    is_whole: bool,
    /// Free bytes and size of the copy's file system.
    space: Option<(u64, u64)>,
}

/// Bytes of operations that are sent together.
const SEND_BYTES: usize = 32 << 10;

impl Default for Channel {
    fn default() -> Self {
        let sent = Arc::<AtomicU64>::default();
        let traffic = Arc::<Traffic>::default();
        let sender = Sender { sent: Arc::clone(&sent), traffic: Arc::clone(&traffic), ..Sender::default() };
        Self {
            sender: Mutex::new(sender),
            sent,
            traffic,
            disk: DiskCalls::default(),
            progress: Mutex::default(),
            changed: Condvar::new(),
        }
    }
}

impl Channel {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the right to send and perform operations.
    pub(super) fn sender(&self) -> MutexGuard<'_, Sender> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until an operation is confirmed, or the copy is not waited for.
    ///
    /// # Errors
    /// The node may confirm nothing any more.
    pub(super) fn wait(&self, number: u64) -> io::Result<()> {
        self.wait_until(number, None).map(drop)
    }

    /// As [`wait`](Self::wait), for a time at most. False: the time has passed.
    ///
    /// # Errors
    /// The node may confirm nothing any more.
    pub(super) fn wait_within(&self, number: u64, within: Duration) -> io::Result<bool> {
        self.wait_until(number, Some(Instant::now() + within))
    }

    fn wait_until(&self, number: u64, until: Option<Instant>) -> io::Result<bool> {
        let (mut progress, mut began) = (self.progress(), None);
        loop {
            if let Some(reason) = &progress.ended {
                return Err(io::Error::other(reason.clone()));
            }
            let is_on_copy = progress.is_whole && progress.confirmed >= number;
            if !progress.is_held && (!progress.is_required || is_on_copy) {
                if progress.is_required || began.is_some() {
                    self.traffic.waited(began.map_or(Duration::ZERO, |began: Instant| began.elapsed()));
                }
                return Ok(true);
            }
            began.get_or_insert_with(Instant::now);
            progress = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return Ok(false),
                Some(left) => self.changed.wait_timeout(progress, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// Waits until an operation is confirmed by the copy of a join. False: the copy is gone.
    pub(super) fn wait_for_copy(&self, join: JoinId, number: u64) -> bool {
        let mut progress = self.progress();
        loop {
            if progress.peer.as_ref().is_none_or(|(of, _)| *of != join) {
                return false;
            }
            if progress.confirmed >= number {
                return true;
            }
            progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sends operations over this connection from here on, until it fails or [`detach`](Self::detach) is called.
    ///
    /// `begin` sends the first ones; the leader performs nothing in that time.
    pub(super) fn attach(
        &self,
        join: JoinId,
        stream: Box<dyn Stream>,
        begin: impl FnOnce(&mut Sender) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut sender = self.sender();
        {
            let mut progress = self.progress();
            if let Some(reason) = &progress.ended {
                return Err(io::Error::other(reason.clone()));
            }
            if progress.peer.as_ref().is_none_or(|(of, _)| *of != join) {
                return Err(io::Error::other("the copy has left"));
            }
            progress.space = None;
        }
        sender.buffer.clear();
        sender.peer = Some(stream);
        let begun = begin(&mut sender).and_then(|()| sender.flush());
        if begun.is_err() {
            sender.peer = None;
        }
        begun
    }

    /// Notes the connection of a copy that joins; ends the connection of another copy.
    pub(super) fn expect(&self, join: JoinId, stream: Box<dyn Stream>) {
        let before = {
            let mut progress = self.progress();
            progress.is_whole = false;
            progress.peer.replace((join, stream))
        };
        if let Some((_, stream)) = before {
            stream.hang_up();
        }
        self.changed.notify_all();
    }

    /// Notes that the copy of a join has everything, so that its confirmations count.
    pub(super) fn is_whole(&self, join: JoinId) {
        let mut progress = self.progress();
        progress.is_whole |= progress.peer.as_ref().is_some_and(|(of, _)| *of == join);
        drop(progress);
        self.changed.notify_all();
    }

    /// The join whose copy is connected.
    pub(super) fn peer(&self) -> Option<JoinId> {
        self.progress().peer.as_ref().map(|(join, _)| *join)
    }

    /// Ends the connection to the copy of a join. Commits that wait for it go on waiting. False: it is gone already.
    pub(super) fn detach(&self, join: JoinId) -> bool {
        let mut progress = self.progress();
        let Some((_, stream)) = progress.peer.take_if(|(of, _)| *of == join) else { return false };
        progress.is_whole = false;
        drop(progress);
        // The sender notices: its lock may be held for as long as the disk takes.
        stream.hang_up();
        self.changed.notify_all();
        true
    }

    /// Whether commits wait for the copy.
    pub(super) fn is_required(&self) -> bool {
        self.progress().is_required
    }

    /// Sets whether commits wait for the copy.
    pub(super) fn set_required(&self, is_required: bool) {
        self.progress().is_required = is_required;
        self.changed.notify_all();
    }

    /// Sets whether commits wait, even if all is confirmed.
    pub(super) fn set_held(&self, is_held: bool) {
        self.progress().is_held = is_held;
        self.changed.notify_all();
    }

    /// Fails once the node may confirm nothing any more. It does not wait for an operation that is under way.
    pub(super) fn check(&self) -> io::Result<()> {
        self.progress().ended.as_ref().map_or(Ok(()), |reason| Err(io::Error::other(reason.clone())))
    }

    /// Fails all operations from here on.
    pub(super) fn end(&self, reason: &str) {
        let mut progress = self.progress();
        progress.ended.get_or_insert_with(|| reason.to_owned());
        let peer = progress.peer.take();
        drop(progress);
        if let Some((_, stream)) = peer {
            stream.hang_up();
        }
        self.changed.notify_all();
        let mut sender = self.sender();
        (sender.ended, sender.peer) = (true, None);
    }

    /// Notes a confirmation of the copy of a join.
    pub(super) fn confirm(&self, join: JoinId, number: u64, space: Option<(u64, u64)>) {
        let mut progress = self.progress();
        if progress.peer.as_ref().is_some_and(|(of, _)| *of == join) {
            progress.confirmed = progress.confirmed.max(number);
            progress.space = space;
            drop(progress);
            self.changed.notify_all();
        }
    }

    /// Free bytes and size of the copy's file system, if there is a copy that has told them.
    pub(super) fn space(&self) -> Option<(u64, u64)> {
        let progress = self.progress();
        progress.space.filter(|_| progress.peer.is_some() && progress.is_required && progress.is_whole)
    }

    /// As [`space`](Self::space), also of a copy that commits do not wait for.
    pub(super) fn space_of_any_copy(&self) -> Option<(u64, u64)> {
        self.progress().space.filter(|&(_, size)| size > 0)
    }

    /// Figures of the operations and of the waits.
    pub(super) fn traffic(&self) -> TrafficStats {
        self.traffic.stats()
    }

    /// Number of the last operation, and of the last confirmed one.
    pub(super) fn numbers(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.progress().confirmed)
    }
}

impl Sender {
    /// Fails once the node may perform nothing any more.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.ended { Err(io::Error::other(super::ENDED)) } else { Ok(()) }
    }

    pub(super) fn has_peer(&self) -> bool {
        self.peer.is_some()
    }

    /// The next number of an operation that is to be confirmed.
    pub(super) fn next(&mut self) -> u64 {
        // Under the lock: no other caller changes it.
        let number = self.sent.load(Ordering::Relaxed) + 1;
        self.sent.store(number, Ordering::Relaxed);
        number
    }

    /// Sends an operation, perhaps later: [`flush`](Self::flush) sends all.
    ///
    /// A failure ends the connection. The thread that reads from it notices.
    pub(super) fn send(&mut self, operation: &Operation<'_>) {
        if self.peer.is_some() {
            operation.encode(&mut self.buffer);
            self.traffic.sent_operation();
            if self.buffer.len() >= SEND_BYTES {
                // The next operation finds no peer.
                let _ = self.flush();
            }
        }
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        let sent = peer.write_all(&self.buffer).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                let reason = format!("the copy has taken nothing for {SEND_PATIENCE:?}");
                io::Error::new(io::ErrorKind::TimedOut, reason)
            }
            _ => error,
        });
        self.traffic.sent_bytes(self.buffer.len());
        self.buffer.clear();
        if self.buffer.capacity() > KEPT_BYTES {
            self.buffer = Vec::new();
        }
        if sent.is_err() {
            peer.hang_up();
            self.peer = None;
        }
        sent
    }

    /// Sends an operation that is to be confirmed, and everything before it.
    pub(super) fn send_numbered(&mut self, operation: impl FnOnce(u64) -> Operation<'static>) -> u64 {
        let number = self.next();
        self.send(&operation(number));
        let _ = self.flush();
        number
    }
}

/// Buffer that stays after a large operation.
const KEPT_BYTES: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_a_missing_copy_ends_in_time() {
        let channel = Channel::default();
        channel.set_required(true);
        assert!(!channel.wait_within(1, Duration::from_millis(10)).unwrap());
        channel.set_required(false);
        assert!(channel.wait_within(1, Duration::ZERO).unwrap());
        channel.set_held(true);
        assert!(!channel.wait_within(1, Duration::ZERO).unwrap());
        channel.end("it does not lead");
        assert!(channel.wait_within(1, Duration::ZERO).is_err());
    }
}
