//! Open packets older than the window.

use std::collections::BTreeMap;

use tenbin_codec::PacketId;

use super::{IDS, Stage, packet_id};

/// Open packets by sequence number and by Packet Identifier. Memory grows only with their number.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    stages: BTreeMap<u64, Stage>,
    sequences: BTreeMap<u16, u64>,
    /// Bit n of word w: identifier 64w + n + 1 is in use. A missing word is 0.
    used: BTreeMap<u16, u64>,
}

impl Overdue {
    pub(super) fn len(&self) -> usize {
        self.stages.len()
    }

    pub(super) fn insert(&mut self, sequence: u64, stage: Stage) {
        let (word, bit) = bit_of(sequence);
        *self.used.entry(word).or_default() |= bit;
        self.sequences.insert(packet_id(sequence).get(), sequence);
        self.stages.insert(sequence, stage);
    }

    pub(super) fn remove(&mut self, id: PacketId) -> Option<Stage> {
        let sequence = self.sequences.remove(&id.get())?;
        let (word, bit) = bit_of(sequence);
        if let Some(bits) = self.used.get_mut(&word) {
            *bits &= !bit;
            if *bits == 0 {
                self.used.remove(&word);
            }
        }
        self.stages.remove(&sequence)
    }

    pub(super) fn sequence(&self, id: PacketId) -> Option<u64> {
        self.sequences.get(&id.get()).copied()
    }

    pub(super) fn get(&self, id: PacketId) -> Option<&Stage> {
        self.stages.get(&self.sequence(id)?)
    }

    pub(super) fn get_mut(&mut self, id: PacketId) -> Option<&mut Stage> {
        let sequence = self.sequence(id)?;
        self.stages.get_mut(&sequence)
    }

    pub(super) fn stages(&self) -> impl Iterator<Item = &Stage> {
        self.stages.values()
    }

    pub(super) fn stages_mut(&mut self) -> impl Iterator<Item = &mut Stage> {
        self.stages.values_mut()
    }

    pub(super) fn next_open(&self, from: u64) -> Option<u64> {
        self.stages.range(from..).next().map(|(&sequence, _)| sequence)
    }

    /// Returns the first sequence number from `from` on whose identifier is in use here; `u64::MAX` if there is none.
    pub(super) fn next_used(&self, from: u64) -> u64 {
        let start = packet_id(from).get();
        let after = self.sequences.range(start..).next().map(|(&id, _)| u64::from(id - start));
        let wrapped = || self.sequences.keys().next().map(|&id| u64::from(id) + IDS - u64::from(start));
        after.or_else(wrapped).map_or(u64::MAX, |distance| from + distance)
    }

    /// Returns the first sequence number from `from` on whose identifier is not in use here. One must exist.
    pub(super) fn next_free(&self, from: u64) -> u64 {
        let mut sequence = from;
        loop {
            let (word, bit) = bit_of(sequence);
            let used = self.used.get(&word).copied().unwrap_or_default();
            // Remaining identifiers of this word, from this one on; the last word has 63.
            let position = bit.trailing_zeros();
            let left = if u64::from(word) == IDS / 64 { IDS % 64 } else { 64 } - u64::from(position);
            let taken = u64::from((used >> position).trailing_ones());
            if taken < left {
                return sequence + taken;
            }
            sequence += left;
        }
    }
}

/// Returns word and bit of a sequence number's identifier.
fn bit_of(sequence: u64) -> (u16, u64) {
    let index = sequence % IDS;
    ((index / 64) as u16, 1 << (index % 64))
}
