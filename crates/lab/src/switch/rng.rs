//! Random draws of one link: equal for an equal seed, independent of other links and other faults.

use tenbin_kit::rng::{SplitMix64, fnv1a};

/// The generator of one link.
#[derive(Clone, Debug)]
pub(crate) struct Rng(SplitMix64);

impl Rng {
    /// A generator for one purpose of one link. Names identify the link, so that the order of machines has no influence.
    pub(crate) fn new(seed: u64, from: &str, to: &str, purpose: &str) -> Self {
        // 0xff is in no name, so that the parts cannot run into each other.
        let parts = [from, to, purpose].into_iter().flat_map(|part| part.bytes().chain([0xff]));
        Self(SplitMix64::new(SplitMix64::new(seed).next_u64() ^ fnv1a(parts)))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number from 0 up to, but without, 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with the given probability. A probability of 0 draws nothing.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.unit() < probability
    }

    /// A number below `bound`, which must not be 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_depend_on_seed_link_direction_and_purpose() {
        let first = |seed, from, to, purpose| Rng::new(seed, from, to, purpose).next();
        let draw = first(1, "a", "b", "loss");
        assert_eq!(draw, first(1, "a", "b", "loss"));
        let others = [
            first(2, "a", "b", "loss"),
            first(1, "b", "a", "loss"),
            first(1, "a", "b", "x"),
            first(1, "ab", "", "loss"),
        ];
        assert!(others.iter().all(|other| *other != draw), "{others:?}");
    }
}
