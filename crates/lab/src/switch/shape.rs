//! Faults of a link as figures.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Faults of one direction between two machines. The default has none.
///
/// Several shapes may act on one link at a time: delays add up, probabilities combine as independent events, the lowest
/// rate counts, and one partition is enough.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shape {
    /// Time that each frame is held.
    pub delay: Duration,
    /// Greatest deviation from `delay`, to both sides; each frame draws its own, evenly.
    pub jitter: Duration,
    /// Lets frames overtake each other when `jitter` makes a later one due first.
    pub reorder: bool,
    /// Probability that a packet is dropped, 0 to 1.
    pub loss: f64,
    /// Probability that a packet arrives twice, 0 to 1.
    pub duplicate: f64,
    /// Probability that a single bit of a packet is inverted, 0 to 1. Checksums do not change, so receivers notice.
    pub corrupt: f64,
    /// Limit of throughput.
    pub rate: Option<Rate>,
    /// Drops everything.
    pub partition: bool,
}

/// Limit of a link's throughput, with the queue in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Bits a second, counted over whole Ethernet frames without preamble. 0 passes nothing.
    pub bits_per_second: u64,
    /// Bytes that may wait; a packet beyond them is dropped. One packet always finds room.
    pub queue_bytes: u64,
}

impl Shape {
    /// True if the faults must see single packets, not segments of up to 64 KiB that a sender's kernel left whole.
    pub(crate) fn needs_packets(&self) -> bool {
        self.loss > 0.0 || self.duplicate > 0.0 || self.corrupt > 0.0 || self.rate.is_some()
    }

    /// Reason why the figures are unusable.
    pub(crate) fn mistake(&self) -> Option<String> {
        let probabilities = [("loss", self.loss), ("duplicate", self.duplicate), ("corrupt", self.corrupt)];
        let wrong = probabilities.into_iter().find(|(_, value)| !(0.0..=1.0).contains(value));
        wrong.map(|(name, value)| format!("{name} is a probability, so {value} must be from 0 to 1"))
    }

    /// The effect of two shapes on one link.
    pub(crate) fn and(&self, other: &Self) -> Self {
        let either = |a: f64, b: f64| 1.0 - (1.0 - a) * (1.0 - b);
        let rate = match (self.rate, other.rate) {
            (Some(one), Some(two)) if two.bits_per_second < one.bits_per_second => Some(two),
            (one, two) => one.or(two),
        };
        Self {
            delay: self.delay.saturating_add(other.delay),
            jitter: self.jitter.saturating_add(other.jitter),
            reorder: self.reorder || other.reorder,
            loss: either(self.loss, other.loss),
            duplicate: either(self.duplicate, other.duplicate),
            corrupt: either(self.corrupt, other.corrupt),
            rate,
            partition: self.partition || other.partition,
        }
    }
}
