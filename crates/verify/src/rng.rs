//! Random draws that depend on a seed and a name alone.

/// Generator of a named choice: SplitMix64.
pub(crate) struct Rng(u64);

impl Rng {
    /// The generator for the choice `name` in runs with `seed`.
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        // FNV-1a. The standard library's hasher may change between versions, and draws must not.
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        Self(seed ^ hash)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
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
