use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// Pseudorandom numbers, good enough for tests and equal for equal seeds (splitmix64).
pub(crate) struct Dice(u64);

impl Dice {
    /// `number` distinguishes users of one seed.
    pub(crate) fn new(seed: u64, number: usize) -> Self {
        Self(seed ^ (number as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    /// A number in `range`, which is not empty.
    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// Returns true with a probability of `percent`.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.within(0..100) < percent
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// The seed of this run: from the environment variable `variable`, or a random one.
pub(crate) fn seed(variable: &str) -> u64 {
    match std::env::var(variable) {
        Ok(seed) => seed.parse().unwrap_or_else(|_| panic!("{variable} is a number")),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64,
    }
}
