//! What callers append.

use std::{error::Error, fmt, ops::RangeInclusive, sync::MutexGuard, time::Instant};

use super::{
    log::Log,
    names::{Body, Origin, Place, Position, QueueId, Sequence},
    record::{Entry, RECORD_BYTES_MAX, Shape, TAG_BYTES_MAX},
    room::Room,
    shared::Shared,
};

/// The right to append. While it is there nobody else appends or reads, so that a caller can bring the order of the log
/// and that of its own queues together. Nothing here waits for the disk; what is appended is written after the batch is
/// dropped, or while it goes on.
///
/// Of the spool, only [`durable`](super::Spool::durable), [`wake_at`](super::Spool::wake_at) and
/// [`is_congested`](super::Spool::is_congested) can be called by who has one: all else waits until it is dropped.
pub struct Batch<'a> {
    shared: &'a Shared,
    /// There until it is dropped.
    log: Option<MutexGuard<'a, Log>>,
    is_waited_for: bool,
}

/// What cannot be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooLarge {
    /// A message of more than 1 GiB with all its places. MQTT knows none above 256 MiB.
    Message,
    /// A tag of more than 255 bytes.
    Tag,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Message => "a message of more than 1 GiB cannot be stored",
            Self::Tag => "a tag of more than 255 bytes cannot be stored",
        })
    }
}

impl Error for TooLarge {}

impl<'a> Batch<'a> {
    pub(super) fn new(shared: &'a Shared) -> Self {
        Self { shared, log: Some(shared.log()), is_waited_for: true }
    }

    /// Appends a message, once, for any number of queues, with a tag for each place; its body is given in parts. Whatever
    /// holds bytes can be a tag, `""` is none. Where no place has one they take no space.
    ///
    /// `room` is booked for it, or for it and others. No message is appended without:
    ///
    /// ```compile_fail
    /// # use tenbin_store::spool::{Place, QueueId, Sequence, Spool};
    /// # fn append(spool: &Spool) {
    /// let place = Place { queue: QueueId(7), sequence: Sequence(1) };
    /// let _ = spool.begin().message(&[(place, "")], None, &[b"payload"]);
    /// # }
    /// ```
    ///
    /// `origin` holds a Packet Identifier, as [`hold`](Self::hold) does. It lives as long as it is held, whatever becomes of
    /// the message; a message without places is its origin and no more, and one without either is nothing.
    ///
    /// A sequence that is not larger than all before it in its queue is put where it belongs, and takes the place of one
    /// that is already there.
    ///
    /// # Errors
    /// [`TooLarge`]; nothing is appended.
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

    /// These messages of a queue are done. Returns how many there were; none is no record. One record for all, and one
    /// with the call before where this range continues that one.
    pub fn acknowledge(&mut self, queue: QueueId, range: RangeInclusive<Sequence>) -> usize {
        let (from, to) = range.into_inner();
        self.log().acknowledge(queue, from, to)
    }

    /// Gives a message that waits a number of the caller's, instead of the one that it had; 0 is none. What that means is
    /// the caller's affair: sent with this Packet Identifier ([`Body::Kept`]), taken by the receiver, so that only the
    /// place is needed until it is acknowledged ([`Body::Done`]). A body that was given up does not come back. False if
    /// there is no such message.
    ///
    /// [`Spool::read`](super::Spool::read) and [`Spool::marks`](super::Spool::marks) tell it. Places in a row that are
    /// marked one after the other, with marks that count up, are one record of up to 1,024, and one run in memory as long
    /// as they are there: some 250 bytes for a queue with up to eleven runs. What has its mark already is no record.
    pub fn mark(&mut self, place: Place, mark: u32, body: Body) -> bool {
        self.log().mark(place, mark, body)
    }

    /// Holds a Packet Identifier of a publisher, without a message.
    pub fn hold(&mut self, origin: Origin) {
        self.log().hold(origin);
    }

    /// The publisher gives up a Packet Identifier (PUBREL). False if it was not held.
    pub fn release(&mut self, origin: Origin) -> bool {
        self.log().release(origin)
    }

    /// A message leaves a queue and goes to a place in another, or in the same, with this tag, or with the one that it
    /// has, and without a mark; what is at that place already is done. False if there is no such message, or its body was
    /// given up: that stays with who has it.
    ///
    /// What was moved takes some 70 bytes of memory instead of 8, until it is done or was copied.
    ///
    /// # Errors
    /// [`TooLarge::Tag`]; nothing is appended.
    pub fn move_message(&mut self, from: Place, to: Place, tag: Option<&[u8]>) -> Result<bool, TooLarge> {
        if tag.is_some_and(|tag| tag.len() > TAG_BYTES_MAX) {
            return Err(TooLarge::Tag);
        }
        Ok(self.log().move_message(from, to, tag))
    }

    /// All that a queue has and holds is done. False if that is nothing.
    pub fn drop_queue(&mut self, queue: QueueId) -> bool {
        self.log().drop_queue(queue)
    }

    /// Whether a Packet Identifier is held.
    pub fn holds(&self, origin: Origin) -> bool {
        let log = self.log.as_ref().expect("it is there until it is dropped");
        log.index.queue(origin.queue).is_some_and(|queue| queue.holds(origin.identifier).is_some())
    }

    /// Nobody waits for this batch: it is written with the next one that somebody waits for, or some milliseconds later.
    /// What would not be missed if the process were killed now should be appended so: it costs the disk nothing of its own.
    pub fn without_hurry(&mut self) {
        self.is_waited_for = false;
    }

    /// The ticket: everything that was appended until now, by this batch and before it, is safe once
    /// [`Spool::durable`](super::Spool::durable) has come to this position.
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
            // The first time it has to know when that is.
            let is_news = if self.is_waited_for { !log.is_waited_for } else { log.not_waited_since.is_none() };
            log.is_waited_for |= self.is_waited_for;
            let now = Instant::now();
            if self.is_waited_for {
                log.waited_batches += 1;
                log.waited_at = Some(now);
            }
            log.not_waited_since.get_or_insert(now);
            is_woken = log.committer_sleeps && (is_news || log.pending.bytes() >= log.options.write_bytes);
            log.committer_sleeps &= !is_woken;
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
