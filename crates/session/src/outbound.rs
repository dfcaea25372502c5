use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Instant;

use tenbin_codec::{PacketId, QoS};

use crate::{Delivery, SharedDelivery, Stored, TakenAck};

mod kept;
mod order;
mod overdue;

pub use order::SentId;
use overdue::Overdue;

/// Sent packets that hold a Packet Identifier, in the order of sending.
///
/// ```text
///   overdue        window
///   3      70      first          first+1    …                    first+len
///   [Pub]  [Pub]   [ Publish ]    [ done ]   [ Released ] …       next to give
///   packet id = sequence mod 65,535 + 1
/// ```
///
/// A Packet Identifier follows from the sequence number, so the window finds, gives and resends without a search.
/// Packets that stay open long after later ones are done move from the window to `overdue`. A sequence number whose
/// identifier an overdue packet holds is skipped, so every unused identifier can be given `[MQTT-2.2.1-4]`.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    window: VecDeque<Option<Stage>>,
    /// Sequence number of the front of the window.
    first: u64,
    /// Sequence number before which [`Outbound::prepare`] is called again.
    prepared_to: u64,
    /// Open packets older than the window; `None` if there are none.
    overdue: Option<Box<Overdue>>,
    totals: Totals,
}

/// Totals of the open packets.
#[derive(Debug, Default)]
struct Totals {
    messages: usize,
    /// SUBSCRIBE and UNSUBSCRIBE packets.
    requests: usize,
    /// Bytes of memory that unacknowledged messages stand for.
    bytes: usize,
}

/// Next acknowledgement that a Packet Identifier needs.
#[derive(Debug)]
pub(crate) enum Stage {
    /// PUBACK (QoS 1) or PUBREC (QoS 2); with the time when the message was last written.
    Published(Delivery, Instant),
    /// PUBCOMP. The peer has the message or must not get it again, so only data for the share group and for the stored
    /// copy is left `[MQTT-4.3.3-6]`.
    Released { shared: Option<SharedDelivery>, stored: Option<Stored> },
    /// PUBACK, though another receiver has the message now: see [`crate::Connection::take_late`].
    Late(SharedDelivery),
    /// SUBACK or UNSUBACK; ends with the connection.
    Request,
}

impl Outbound {
    /// Returns the Packet Identifier that [`Outbound::open`] assigns next; `None` if all are in use.
    #[inline]
    pub(crate) fn next_id(&mut self) -> Option<PacketId> {
        if self.next_sequence() >= self.prepared_to && !self.prepare() {
            return None;
        }
        Some(packet_id(self.next_sequence()))
    }

    /// Opens a packet with the identifier from [`Outbound::next_id`].
    #[inline]
    pub(crate) fn open(&mut self, stage: Stage) {
        self.totals.add(&stage);
        self.window.push_back(Some(stage));
    }

    /// Opens a packet with the next unused Packet Identifier `[MQTT-2.2.1-4]`; `None` if all are in use.
    pub(crate) fn open_next(&mut self, stage: Stage) -> Option<PacketId> {
        let id = self.next_id()?;
        self.open(stage);
        Some(id)
    }

    /// Restores a packet of an earlier run under its identifier, in sending order ([`SentId::sort`]).
    ///
    /// `false` if another open packet holds the identifier.
    pub(crate) fn restore(&mut self, id: SentId, stage: Stage) -> bool {
        if self.stage(id.packet_id).is_some() {
            return false;
        }
        if self.is_empty() {
            self.window.clear();
            self.first = id.place();
        } else {
            self.skip_to(id.sequence_from(self.next_sequence()));
        }
        self.open(stage);
        self.prepared_to = 0;
        true
    }

    /// Moves the next sequence number to an unused identifier; `false` if all identifiers are in use.
    #[cold]
    #[inline(never)]
    fn prepare(&mut self) -> bool {
        if self.free() == 0 {
            return false;
        }
        let len = self.window.len();
        let open =
            self.totals.messages + self.totals.requests - self.overdue.as_ref().map_or(0, |overdue| overdue.len());
        if (len >= WINDOW && open <= len / 4) || len as u64 == IDS {
            self.move_to_overdue(len / 2);
        }
        // A long skip moves the window to `overdue`, so the identifier it leads to may be in use there.
        while let Some(overdue) = &self.overdue
            && let free = overdue.next_free(self.next_sequence())
            && free > self.next_sequence()
        {
            self.skip_to(free);
        }
        let next = self.next_sequence();
        let used = self.overdue.as_ref().map_or(u64::MAX, |overdue| overdue.next_used(next));
        self.prepared_to = used.min(next + WINDOW as u64).min(self.first + IDS);
        true
    }

    /// Skips the sequence numbers before `sequence`.
    fn skip_to(&mut self, sequence: u64) {
        let gap = (sequence - self.next_sequence()) as usize;
        if gap > WINDOW || (self.window.len() + gap) as u64 >= IDS {
            self.move_to_overdue(self.window.len());
        }
        if self.window.is_empty() {
            self.first = sequence;
        } else {
            self.window.extend(std::iter::repeat_with(|| None).take(gap));
        }
    }

    /// Moves the open packets among the oldest `count` slots out of the window.
    fn move_to_overdue(&mut self, count: usize) {
        for stage in self.window.drain(..count) {
            if let Some(stage) = stage {
                self.overdue.get_or_insert_default().insert(self.first, stage);
            }
            self.first += 1;
        }
        self.drop_done();
    }

    fn drop_done(&mut self) {
        while let Some(None) = self.window.front() {
            self.window.pop_front();
            self.first += 1;
        }
    }

    /// The stage of `id`; `None` if it is not open.
    #[inline]
    pub(crate) fn stage(&self, id: PacketId) -> Option<&Stage> {
        match self.window.get(self.position(id)) {
            Some(Some(stage)) => Some(stage),
            _ => self.overdue_stage(id),
        }
    }

    #[cold]
    #[inline(never)]
    fn overdue_stage(&self, id: PacketId) -> Option<&Stage> {
        self.overdue.as_ref()?.get(id)
    }

    #[inline]
    fn stage_mut(&mut self, id: PacketId) -> Option<&mut Stage> {
        let position = self.position(id);
        match self.window.get_mut(position) {
            Some(Some(stage)) => Some(stage),
            _ => self.overdue.as_mut()?.get_mut(id),
        }
    }

    /// Replaces the stage of `id`.
    pub(crate) fn advance(&mut self, id: PacketId, stage: Stage) {
        let bytes = stage.bytes();
        if let Some(slot) = self.stage_mut(id) {
            let before = std::mem::replace(slot, stage).bytes();
            self.totals.bytes = self.totals.bytes + bytes - before;
        }
    }

    /// Records that the message of `id` was written again.
    pub(crate) fn sent_again(&mut self, id: PacketId, now: Instant) {
        if let Some(Stage::Published(_, sent_at)) = self.stage_mut(id) {
            *sent_at = now;
        }
    }

    /// Returns in-flight messages whose receiver a share group chose.
    pub(crate) fn shared(&self) -> impl Iterator<Item = SharedDelivery> {
        self.stages().filter_map(Stage::shared)
    }

    /// Returns stored in-flight messages and their share groups.
    pub(crate) fn stored(&self) -> impl Iterator<Item = (Stored, Option<NonZeroU64>)> {
        self.stages().filter_map(|stage| Some((stage.stored()?, stage.shared().map(|shared| shared.share))))
    }

    fn stages(&self) -> impl Iterator<Item = &Stage> {
        self.overdue.iter().flat_map(|overdue| overdue.stages()).chain(self.window.iter().flatten())
    }

    /// Closes `id`, which becomes unused; `false` if it was not open.
    pub(crate) fn close(&mut self, id: PacketId) -> bool {
        self.end(id, |_| ()).is_some()
    }

    /// Closes `id` like [`Outbound::close`]. Returns the result of `look` on its last stage; `None` if it was not open.
    #[inline]
    pub(crate) fn end<R>(&mut self, id: PacketId, look: impl FnOnce(&Stage) -> R) -> Option<R> {
        let position = self.position(id);
        let Some(slot @ Some(_)) = self.window.get_mut(position) else { return self.end_overdue(id, look) };
        let result = slot.as_ref().map(|stage| {
            self.totals.subtract(stage);
            look(stage)
        });
        *slot = None;
        self.drop_done();
        result
    }

    /// Closes the message `id`. `None`, without effect, if it is not in the window, or not in the stage that `is_due` names.
    #[inline]
    pub(crate) fn end_if(&mut self, id: PacketId, is_due: impl FnOnce(&Stage) -> bool) -> Option<TakenAck> {
        let position = self.position(id);
        let slot = self.window.get_mut(position)?;
        let stage = slot.as_ref().filter(|stage| is_due(stage))?;
        self.totals.subtract(stage);
        let ended = TakenAck::Delivered { shared: stage.shared(), stored: stage.stored() };
        *slot = None;
        self.drop_done();
        Some(ended)
    }

    /// Lets the message `id` of QoS 2 wait for PUBCOMP. `None`, without effect, if it is not in the window, does not wait for
    /// PUBREC, or is stored.
    #[inline]
    pub(crate) fn release_unstored(&mut self, id: PacketId) -> Option<()> {
        let position = self.position(id);
        let stage = self.window.get_mut(position)?.as_mut()?;
        if !stage.is_published(QoS::ExactlyOnce) || stage.stored().is_some() {
            return None;
        }
        self.totals.bytes -= stage.bytes();
        *stage = stage.released();
        Some(())
    }

    #[cold]
    #[inline(never)]
    fn end_overdue<R>(&mut self, id: PacketId, look: impl FnOnce(&Stage) -> R) -> Option<R> {
        let overdue = self.overdue.as_mut()?;
        let stage = overdue.remove(id)?;
        self.totals.subtract(&stage);
        if overdue.len() == 0 {
            self.overdue = None;
        }
        Some(look(&stage))
    }

    /// Returns the position of `id` in sending order; `None` if it is not open.
    pub(crate) fn sent_id(&self, id: PacketId) -> Option<SentId> {
        self.sequence(id).map(SentId::of)
    }

    fn is_empty(&self) -> bool {
        self.totals.messages + self.totals.requests == 0
    }

    /// Closes all requests, which end with their connection.
    pub(crate) fn drop_requests(&mut self) {
        if self.totals.requests == 0 {
            return;
        }
        let mut from = 0;
        while let Some((sequence, id)) = self.next_open(from) {
            from = sequence + 1;
            if matches!(self.stage(id), Some(Stage::Request)) {
                self.close(id);
            }
        }
    }

    /// Opens a packet again under its identifier, at its place in the order of sending if that is known. `false` if
    /// another open packet holds the identifier.
    pub(crate) fn reopen(&mut self, id: PacketId, stage: Stage) -> bool {
        if self.stage(id).is_some() {
            return false;
        }
        let (next, back) = (self.next_sequence(), self.behind(id));
        self.prepared_to = 0;
        if back == IDS || back > next {
            self.skip_to(next + IDS - back);
            self.open(stage);
            return true;
        }
        let sequence = next - back;
        self.totals.add(&stage);
        match sequence.checked_sub(self.first) {
            Some(place) => self.window[place as usize] = Some(stage),
            None => self.overdue.get_or_insert_default().insert(sequence, stage),
        }
        true
    }

    /// Begins after this identifier, unless it is one of those given last.
    pub(crate) fn begin_after(&mut self, id: PacketId) {
        let back = self.behind(id);
        if back > IDS / 2 {
            self.skip_to(self.next_sequence() + IDS - back + 1);
            self.prepared_to = 0;
        }
    }

    /// Returns how many identifiers ago this one was given: 1 to [`IDS`].
    fn behind(&self, id: PacketId) -> u64 {
        IDS - (u64::from(id.get() - 1) + IDS - self.next_sequence() % IDS) % IDS
    }

    /// Ends the messages that other receivers have now, and returns their data.
    pub(crate) fn end_late(&mut self) -> Vec<SharedDelivery> {
        let mut late = Vec::new();
        let mut from = 0;
        while let Some((sequence, id)) = self.next_open(from) {
            from = sequence + 1;
            if let Some(&Stage::Late(shared)) = self.stage(id) {
                self.close(id);
                late.push(shared);
            }
        }
        late
    }

    /// Removes and returns the QoS 1 messages without PUBACK that `wanted` selects, oldest first.
    pub(crate) fn withdraw(&mut self, wanted: impl Fn(&Delivery) -> bool) -> Vec<(PacketId, Delivery)> {
        let mut withdrawn = Vec::new();
        let mut from = 0;
        while let Some((sequence, id)) = self.next_open(from) {
            from = sequence + 1;
            let Some(Stage::Published(delivery, _)) = self.stage(id) else { continue };
            if delivery.qos == QoS::AtLeastOnce && wanted(delivery) {
                withdrawn.push((id, delivery.clone()));
                self.close(id);
            }
        }
        withdrawn
    }

    /// The message with this sequence number, if it has no PUBACK or PUBREC.
    pub(crate) fn published(&self, sequence: u64) -> Option<&Delivery> {
        let id = packet_id(sequence);
        match self.stage(id).filter(|_| self.sequence(id) == Some(sequence)) {
            Some(Stage::Published(delivery, _)) => Some(delivery),
            _ => None,
        }
    }

    /// Number of unused Packet Identifiers.
    pub(crate) fn free(&self) -> u16 {
        (IDS as usize - self.totals.messages - self.totals.requests) as u16
    }

    pub(crate) fn messages(&self) -> usize {
        self.totals.messages
    }

    pub(crate) fn bytes(&self) -> usize {
        self.totals.bytes
    }

    /// Returns sequence number and identifier of the first open packet from `from` on.
    pub(crate) fn next_open(&self, from: u64) -> Option<(u64, PacketId)> {
        let overdue = self.overdue.as_ref().and_then(|overdue| overdue.next_open(from));
        let in_window = || {
            let skipped = from.saturating_sub(self.first);
            let rest = self.window.iter().skip(usize::try_from(skipped).ok()?);
            (self.first + skipped..).zip(rest).find_map(|(sequence, stage)| stage.is_some().then_some(sequence))
        };
        overdue.or_else(in_window).map(|sequence| (sequence, packet_id(sequence)))
    }

    /// Returns the sequence number of `id`, if it is open.
    pub(crate) fn sequence(&self, id: PacketId) -> Option<u64> {
        let position = self.position(id);
        match self.window.get(position) {
            Some(Some(_)) => Some(self.first + position as u64),
            _ => self.overdue.as_ref()?.sequence(id),
        }
    }

    /// One past the newest sequence number.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.first + self.window.len() as u64
    }

    fn position(&self, id: PacketId) -> usize {
        let (front, place) = (self.first % IDS, u64::from(id.get() - 1));
        (if place >= front { place - front } else { place + IDS - front }) as usize
    }
}

impl Totals {
    fn add(&mut self, stage: &Stage) {
        if stage.is_message() {
            self.messages += 1;
        } else {
            self.requests += 1;
        }
        self.bytes += stage.bytes();
    }

    fn subtract(&mut self, stage: &Stage) {
        if stage.is_message() {
            self.messages -= 1;
        } else {
            self.requests -= 1;
        }
        self.bytes -= stage.bytes();
    }
}

impl Stage {
    /// Whether it is an unacknowledged message of this QoS.
    #[inline]
    pub(crate) fn is_published(&self, qos: QoS) -> bool {
        matches!(self, Self::Published(delivery, _) if delivery.qos == qos)
    }

    fn is_message(&self) -> bool {
        !matches!(self, Self::Request)
    }

    /// Whether another member of its share group may get it.
    pub(crate) fn may_be_withdrawn(&self) -> bool {
        matches!(self, Self::Published(delivery, _) if delivery.qos == QoS::AtLeastOnce && delivery.share.is_some())
    }

    pub(crate) fn shared(&self) -> Option<SharedDelivery> {
        match self {
            Self::Published(delivery, sent_at) => delivery.shared(*sent_at),
            Self::Released { shared, .. } => *shared,
            Self::Late(_) | Self::Request => None,
        }
    }

    pub(crate) fn stored(&self) -> Option<Stored> {
        match self {
            Self::Published(delivery, _) => delivery.stored,
            Self::Released { stored, .. } => *stored,
            Self::Late(_) | Self::Request => None,
        }
    }

    /// Returns the stage after this one.
    pub(crate) fn released(&self) -> Self {
        Self::Released { shared: self.shared(), stored: self.stored() }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Published(delivery, _) => delivery.queued_bytes(),
            Self::Released { .. } | Self::Late(_) | Self::Request => 0,
        }
    }
}

/// Number of Packet Identifiers: 1 to 65,535.
const IDS: u64 = u16::MAX as u64;

/// Shortest window that is thinned out, and longest skip that a window covers, in sequence numbers.
const WINDOW: usize = 256;

/// Returns the Packet Identifier of a sequence number.
fn packet_id(sequence: u64) -> PacketId {
    PacketId::new((sequence % IDS) as u16 + 1).expect("1 to 65,535")
}

#[cfg(test)]
mod tests;
