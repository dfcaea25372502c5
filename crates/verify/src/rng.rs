//! Random draws that depend on a seed and a name alone.

use tenbin_kit::rng::{SplitMix64, fnv1a};

/// Generator of a named choice.
pub(crate) struct Rng(SplitMix64);

impl Rng {
    /// The generator for the choice `name` in runs with `seed`.
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        Self(SplitMix64::new(seed ^ fnv1a(name.bytes())))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`, which must not be 0. The bias is below 2⁻³² for the bounds in use.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Moves `count` elements, drawn without repetition, to the front, and returns them in their former order.
    pub(crate) fn draw<T: Clone>(&mut self, from: &[T], count: usize) -> Vec<T> {
        let mut indices: Vec<_> = (0..from.len()).collect();
        let count = count.min(from.len());
        for at in 0..count {
            let other = at + self.below((from.len() - at) as u64) as usize;
            indices.swap(at, other);
        }
        indices.truncate(count);
        indices.sort_unstable();
        indices.into_iter().map(|index| from[index].clone()).collect()
    }
}
