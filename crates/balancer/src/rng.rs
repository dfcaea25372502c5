//! A pseudo-random number generator that the caller seeds.

/// A small pseudo-random number generator (SplitMix64), one per thread or task of the caller.
///
/// The same seed gives the same numbers on every machine, so that a test can repeat a choice. A few of the numbers are
/// enough to predict the others: do not use them as secrets.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// Creates a generator. Every seed is good, zero included; use another one for each thread.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next number, uniform over all of `u64`.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0.
    ///
    /// Uses multiply and shift instead of a division: no value is favoured by more than `bound` in 2^64.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next_u64()) * (bound as u128);
        (wide >> 64) as usize
    }

    /// Returns two numbers below `bound` from one draw; `bound` must be below 2^32.
    ///
    /// No value is favoured by more than `bound` in 2^32.
    pub(crate) fn two_below(&mut self, bound: usize) -> [usize; 2] {
        let drawn = self.next_u64();
        [drawn >> 32, drawn & 0xFFFF_FFFF].map(|half| ((half * bound as u64) >> 32) as usize)
    }
}

/// Mixes a number: every bit of the result depends on all bits of `number`, and no two numbers give the same result.
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
