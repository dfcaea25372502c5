use std::num::NonZeroU64;
use std::time::Instant;

use tenbin_codec::PlainPublish;
use tenbin_session::Delivery;

use super::runs::{Run, Wire};

/// Messages for one receiver, in order: single messages with runs between them.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    deliveries: Vec<Delivery>,
    /// Each run with the index in `deliveries` before which it belongs.
    runs: Vec<(usize, Run)>,
    /// Packets of all runs, in order.
    packets: Vec<u8>,
    /// When a measured message of the batch came; `None` = none is measured.
    measured: Option<Instant>,
}

/// Next element of a batch.
pub(crate) enum Entry<'a> {
    Single(Delivery),
    /// A run with its packets.
    Run(Run, &'a [u8]),
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.deliveries.is_empty() && self.runs.is_empty()
    }

    /// Number of elements; a run counts as one.
    pub(crate) fn len(&self) -> usize {
        self.deliveries.len() + self.runs.len()
    }

    /// The single messages.
    pub(crate) fn deliveries(&self) -> &[Delivery] {
        &self.deliveries
    }

    /// The runs.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().map(|(_, run)| run)
    }

    #[inline]
    pub(crate) fn add(&mut self, delivery: Delivery) {
        self.deliveries.push(delivery);
    }

    /// Appends a message as the encoded packet for the receiver.
    #[inline]
    pub(crate) fn add_plain(
        &mut self,
        wire: Wire,
        share: Option<NonZeroU64>,
        share_key: Option<NonZeroU64>,
        message: &PlainPublish<'_>,
    ) {
        let before = self.packets.len();
        message.encode(wire.version, &mut self.packets);
        let bytes = self.packets.len() - before;
        match self.runs.last_mut() {
            Some((place, run)) if *place == self.deliveries.len() && run.goes_on(wire, share, share_key) => {
                run.add(message, bytes);
            }
            _ => {
                let mut run = Run::new(wire, share, share_key);
                run.add(message, bytes);
                self.runs.push((self.deliveries.len(), run));
            }
        }
    }

    /// Appends a run; `append` adds its packets to the other runs' packets.
    pub(crate) fn add_run(&mut self, append: impl FnOnce(&mut Vec<u8>) -> Option<Run>) -> Option<Run> {
        let run = append(&mut self.packets)?;
        self.runs.push((self.deliveries.len(), run));
        Some(run)
    }

    /// The single messages, to append more at the end of the batch.
    pub(crate) fn singles(&mut self) -> &mut Vec<Delivery> {
        &mut self.deliveries
    }

    /// The packets of all runs.
    pub(crate) fn packets(&mut self) -> &mut Vec<u8> {
        &mut self.packets
    }

    /// Notes when a measured message of the batch came.
    pub(crate) fn measure(&mut self, came_at: Option<Instant>) {
        self.measured = came_at;
    }

    /// Returns when a measured message came, once.
    #[inline]
    pub(crate) fn take_measured(&mut self) -> Option<Instant> {
        self.measured.take()
    }

    /// Empties the batch in order.
    #[inline]
    pub(crate) fn drain(&mut self, mut each: impl FnMut(Entry<'_>)) {
        if self.runs.is_empty() {
            self.deliveries.drain(..).for_each(|delivery| each(Entry::Single(delivery)));
            return;
        }
        let mut packets = &self.packets[..];
        let mut runs = self.runs.drain(..).peekable();
        for (place, delivery) in self.deliveries.drain(..).enumerate() {
            while let Some((_, run)) = runs.next_if(|(before, _)| *before <= place) {
                let (own, rest) = packets.split_at(run.bytes);
                packets = rest;
                each(Entry::Run(run, own));
            }
            each(Entry::Single(delivery));
        }
        for (_, run) in runs {
            let (own, rest) = packets.split_at(run.bytes);
            packets = rest;
            each(Entry::Run(run, own));
        }
        self.packets.clear();
    }

    /// All messages, one by one.
    #[cfg(test)]
    pub(crate) fn into_singles(mut self) -> Vec<Delivery> {
        let mut singles = Vec::new();
        self.drain(|entry| match entry {
            Entry::Single(delivery) => singles.push(delivery),
            Entry::Run(run, packets) => singles.extend(run.deliveries(packets)),
        });
        singles
    }

    /// Empties the batch.
    pub(crate) fn clear(&mut self) {
        self.deliveries.clear();
        self.measured = None;
        self.runs.clear();
        self.packets.clear();
    }

    /// Frees memory for packets above `kept_bytes`.
    pub(crate) fn shrink(&mut self, kept_bytes: usize) {
        self.packets.shrink_to(kept_bytes);
    }
}
