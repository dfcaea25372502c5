//! Appending to the log.

use std::{fmt, ops::RangeInclusive, sync::MutexGuard, time::Instant};

use super::{
    log::{CommitterState, Log},
    names::{Body, Origin, Place, Position, QueueId, Sequence},
    record::{Entry, RECORD_BYTES_MAX, Shape, TAG_BYTES_MAX},
    room::Room,
    shared::SharedLog,
};

/// Exclusive right to append. No other thread appends or reads while it lasts, so a caller can keep its queues in the
/// order of the log.
///
/// No method waits for the disk. Records are written after the batch is dropped, or while it continues.
///
/// The owner of a batch may call only [`durable`](super::Spool::durable), [`wake_at`](super::Spool::wake_at) and
/// [`is_congested`](super::Spool::is_congested) of the spool. All other methods block until the batch is dropped.
pub struct Batch<'a> {
    shared: &'a SharedLog,
    /// `None` only during drop.
    log: Option<MutexGuard<'a, Log>>,
    is_waited_for: bool,
}

/// A message or tag that is too large to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// A message record of more than 1 GiB. MQTT allows at most 256 MiB.
    #[error("a message of more than 1 GiB cannot be stored")]
    Message,
    /// A tag of more than 255 bytes.
    #[error("a tag of more than 255 bytes cannot be stored")]
    Tag,
}

impl<'a> Batch<'a> {
    pub(super) fn new(shared: &'a SharedLog) -> Self {
        Self { shared, log: Some(shared.log()), is_waited_for: true }
    }

    /// Appends a message once for any number of queues, with a tag for each entry.
    ///
    /// The body may come in parts. An empty tag is no tag; if no entry has one, tags take no space.
    ///
    /// `room` must be booked for this message, alone or with others. The type system requires it:
    ///
    /// ```compile_fail
    /// # use tenbin_store::spool::{Place, QueueId, Sequence, Spool};
    /// # fn append(spool: &Spool) {
    /// let place = Place { queue: QueueId(7), sequence: Sequence(1) };
    /// let _ = spool.begin().message(&[(place, "")], None, &[b"payload"]);
    /// # }
    /// ```
    ///
    /// `origin` holds a Packet Identifier, as [`hold`](Self::hold) does, until its release, independent of the message.
    /// A message without entries stores only its origin; without both it stores nothing.
    ///
    /// A sequence below earlier ones of its queue is inserted in order, and replaces an entry of the same sequence.
    ///
    /// # Errors
    /// [`TooLarge`]. Nothing is appended.
    pub fn message<T: AsRef<[u8]>>(
        &mut self,
        _room: &Room,
        places: &[(Place, T)],
        origin: Option<Origin>,
        body: &[&[u8]],
    ) -> Result<(), TooLarge> {
        let entries = places.iter().map(|(place, tag)| Entry { place: *place, tag: tag.as_ref(), mark: 0 });
        if entries.clone().any(|entry| entry.tag.len() > TAG_BYTES_MAX) {
            return Err(TooLarge::Tag);
        }
        let body_bytes = body.iter().map(|part| part.len()).fold(0, usize::saturating_add);
        let shape = Shape::new(entries.clone(), origin.is_some(), body_bytes);
        if shape.bytes() > RECORD_BYTES_MAX {
            return Err(TooLarge::Message);
        }
        self.log().message(entries, shape, origin, body);
        Ok(())
    }

    /// Ends these messages of a queue, and returns their number.
    ///
    /// Writes one record for the range, and extends the previous call's record if the range continues it. Writes none
    /// if there are no such messages.
    pub fn acknowledge(&mut self, queue: QueueId, range: RangeInclusive<Sequence>) -> usize {
        let (from, to) = range.into_inner();
        self.log().acknowledge(queue, from, to)
    }

    /// Sets the mark of a queued message, a number that only the caller interprets; 0 means none.
    ///
    /// For example, the broker stores the Packet Identifier under which it sent the message ([`Body::Kept`]). Or it
    /// stores that the receiver has the message, so that only the entry is needed until its acknowledgement
    /// ([`Body::Done`]). A discarded body does not come back. Returns false if there is no such message.
    ///
    /// [`Spool::read`](super::Spool::read) and [`Spool::marks`](super::Spool::marks) return marks. Consecutive entries
    /// with ascending marks share one record of up to 1,024 entries, and one run in memory. A queue with up to eleven
    /// runs takes some 250 bytes. Setting a mark again writes no record.
    pub fn mark(&mut self, place: Place, mark: u32, body: Body) -> bool {
        self.log().mark(place, mark, body)
    }

    /// Holds a Packet Identifier of a publisher, without a message.
    pub fn hold(&mut self, origin: Origin) {
        self.log().hold(origin);
    }

    /// Releases a Packet Identifier (PUBREL). False if it was not held.
    pub fn release(&mut self, origin: Origin) -> bool {
        self.log().release(origin)
    }

    /// Moves a message to an entry of another queue or the same one, with a new tag or its present one, and without a
    /// mark.
    ///
    /// Ends a message that is already at the target. False if there is no such message, or if its body was discarded:
    /// then the entry stays with its queue.
    ///
    /// A moved message takes some 70 bytes of memory instead of 8, until it is done or copied.
    ///
    /// # Errors
    /// [`TooLarge::Tag`]. Nothing is appended.
    pub fn move_message(&mut self, from: Place, to: Place, tag: Option<&[u8]>) -> Result<bool, TooLarge> {
        if tag.is_some_and(|tag| tag.len() > TAG_BYTES_MAX) {
            return Err(TooLarge::Tag);
        }
        Ok(self.log().move_message(from, to, tag))
    }

    /// Ends all messages of a queue and releases its Packet Identifiers. False if there were none.
    pub fn drop_queue(&mut self, queue: QueueId) -> bool {
        self.log().drop_queue(queue)
    }

    /// Whether a Packet Identifier is held.
    pub fn holds(&self, origin: Origin) -> bool {
        let log = self.log.as_ref().expect("it is there until it is dropped");
        log.index.queue(origin.queue).is_some_and(|queue| queue.holds(origin.identifier).is_some())
    }

    /// Marks this batch as not urgent: it is written with the next urgent one, or some milliseconds later.
    ///
    /// Use it for records whose loss in a crash of the process does no harm: they cause no extra write.
    pub fn without_hurry(&mut self) {
        self.is_waited_for = false;
    }

    /// Returns the position at the end of everything appended so far, by this batch and before it.
    ///
    /// All of it is durable once [`Spool::durable`](super::Spool::durable) has reached this position.
    pub fn end(&self) -> Position {
        self.log.as_ref().expect("it is there until it is dropped").end()
    }

    fn log(&mut self) -> &mut Log {
        self.log.as_mut().expect("it is there until it is dropped")
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let Some(mut log) = self.log.take() else { return };
        self.shared.note_pending(&log);
        let mut is_woken = false;
        if !log.pending.is_empty() {
            // The first such batch wakes the committer, so that it learns its deadline.
            let is_news = match log.committer {
                CommitterState::Sleeps if !self.is_waited_for => log.not_waited_since.is_none(),
                _ => self.is_waited_for && !log.is_waited_for,
            };
            log.is_waited_for |= self.is_waited_for;
            let now = Instant::now();
            if self.is_waited_for {
                log.waited_batches += 1;
                log.waited_at = Some(now);
            }
            log.not_waited_since.get_or_insert(now);
            is_woken =
                log.committer != CommitterState::Works && (is_news || log.pending.bytes() >= log.options.write_bytes);
            if is_woken {
                log.committer = CommitterState::Works;
            }
        }
        drop(log);
        if is_woken {
            self.shared.work.notify_one();
        }
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("end", &self.end()).finish()
    }
}
