//! Sending order, for an application that stores in-flight messages.

use tenbin_codec::PacketId;

use super::{IDS, packet_id};

/// Identifier of a sent message and its position in sending order.
///
/// Packet Identifiers are used in rotation, so an identifier alone does not show which of two messages was sent first.
/// `round` counts the rotations from 0 to [`SentId::ROUNDS`] − 1, and then starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentId {
    /// The identifier in the packet.
    pub packet_id: PacketId,
    /// Number of complete rotations before.
    pub round: u16,
}

impl SentId {
    /// Number of distinct rounds.
    pub const ROUNDS: u16 = 1 << 14;

    pub(super) fn of(sequence: u64) -> Self {
        Self { packet_id: packet_id(sequence), round: (sequence / IDS % u64::from(Self::ROUNDS)) as u16 }
    }

    /// Returns the lowest sequence number from `from` on with this identifier and round.
    pub(super) fn sequence_from(self, from: u64) -> u64 {
        from + (self.place() + PLACES - from % PLACES) % PLACES
    }

    pub(super) fn place(self) -> u64 {
        u64::from(self.round) * IDS + u64::from(self.packet_id.get() - 1)
    }

    /// Sorts the in-flight messages of one session in sending order.
    ///
    /// The first message is the one after the longest gap between positions in use.
    pub fn sort<T>(messages: &mut [T], id: impl Fn(&T) -> Self) {
        messages.sort_by_key(|message| id(message).place());
        let place = |at: usize| id(&messages[at]).place();
        let stretch_before = |&at: &usize| match at.checked_sub(1) {
            Some(before) => place(at) - place(before),
            None => place(0) + PLACES - place(messages.len() - 1),
        };
        // Of equal gaps the earliest, so that an intact order stays.
        let first = (0..messages.len()).rev().max_by_key(stretch_before).unwrap_or(0);
        messages.rotate_left(first);
    }
}

/// Number of distinct [`SentId`]s.
const PLACES: u64 = IDS * SentId::ROUNDS as u64;

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(sequences: &[u64]) -> Vec<u64> {
        let mut messages = sequences.to_vec();
        messages.sort_by_key(|sequence| sequence % 7); // Shuffles the messages.
        SentId::sort(&mut messages, |&sequence| SentId::of(sequence));
        messages
    }

    #[test]
    fn sent_messages_sort_by_round_and_identifier() {
        for sequences in [
            &[][..],
            &[7],
            &[0, 1, 2],
            &[IDS - 2, IDS - 1, IDS, IDS + 2],
            // The first was still unacknowledged after one or more complete rotations.
            &[3, 60_000, 60_001, 60_002],
            &[3, IDS + 10, 2 * IDS + 10, 2 * IDS + 11],
            &[PLACES - 3 * IDS, PLACES - 1, PLACES, PLACES + 1, PLACES + IDS],
        ] {
            assert_eq!(sorted(sequences), sequences);
        }
    }

    #[test]
    fn sent_id_leads_back_to_its_sequence_number() {
        for sequence in [0, 1, IDS - 1, IDS, 5 * IDS + 7, PLACES - 1, PLACES, PLACES + 9] {
            let id = SentId::of(sequence);
            assert_eq!(id.sequence_from(sequence), sequence);
            assert_eq!(id.sequence_from(sequence.saturating_sub(300)), sequence);
            assert_eq!(id.sequence_from(sequence + 1), sequence + PLACES);
        }
    }
}
