//! Randomness that the caller seeds.

/// A small generator of pseudo-random numbers (SplitMix64), one per thread or task of the caller.
///
/// The same seed gives the same numbers on every machine, which makes a choice repeatable in a test. The numbers
/// can be predicted from a few of them: they are no secret and must not be used as one.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A generator that starts at `seed`. Every seed is good, zero included; give each thread another one.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number, uniform over all of `u64`.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// A number below `bound`, or 0 if `bound` is 0.
    ///
    /// Multiply and shift instead of a division: no value is favoured by more than `bound` in 2^64.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next_u64()) * (bound as u128);
        (wide >> 64) as usize
    }

    /// Two numbers below `bound` for the price of one; `bound` must be below 2^32.
    ///
    /// No value is favoured by more than `bound` in 2^32.
    pub(crate) fn two_below(&mut self, bound: usize) -> [usize; 2] {
        let drawn = self.next_u64();
        [drawn >> 32, drawn & 0xFFFF_FFFF].map(|half| ((half * bound as u64) >> 32) as usize)
    }
}

/// Another number for each number, every bit of which depends on all bits of the given one.
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        let mut rng = Rng::new(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([rng.next_u64(), rng.next_u64(), rng.next_u64()], expected);
    }

    #[test]
    fn below_stays_below_and_reaches_all() {
        let mut rng = Rng::new(0);
        let mut counts = [0_u32; 3];
        for _ in 0..3_000 {
            counts[rng.below(3)] += 1;
        }
        assert!(counts.iter().all(|&count| (900..1_100).contains(&count)), "{counts:?}");
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
        let mut counts = [0_u32; 3];
        for index in (0..1_500).flat_map(|_| rng.two_below(3)) {
            counts[index] += 1;
        }
        assert!(counts.iter().all(|&count| (900..1_100).contains(&count)), "{counts:?}");
    }
}
