use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// Random enough for a test, and the same again for the same seed (splitmix64).
pub(crate) struct Dice(u64);

impl Dice {
    /// `number` tells users of one seed apart.
    pub(crate) fn new(seed: u64, number: usize) -> Self {
        Self(seed ^ (number as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    /// A number in `range`, which is not empty.
    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// True `percent` times of a hundred.
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

/// The seed of this run: the one that the environment variable `variable` asks for, or another each time.
pub(crate) fn seed(variable: &str) -> u64 {
    match std::env::var(variable) {
        Ok(seed) => seed.parse().unwrap_or_else(|_| panic!("{variable} is a number")),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64,
    }
}
