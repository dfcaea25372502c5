//! Random draws of one link: equal for an equal seed, independent of other links and other faults.

/// A generator of SplitMix64: its draws are part of a run's result, so they must not change with a library's version.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A generator for one purpose of one link. Names identify the link, so that the order of machines has no influence.
    pub(crate) fn new(seed: u64, from: &str, to: &str, purpose: &str) -> Self {
        // FNV-1a; 0xff is in no name, so that the parts cannot run into each other.
        let parts = [from, to, purpose].into_iter().flat_map(|part| part.bytes().chain([0xff]));
        let hash = parts
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        let mut rng = Self(seed);
        let mixed = rng.next() ^ hash;
        Self(mixed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
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
    fn first_draws_are_those_of_the_published_algorithm() {
        let mut rng = Rng(1_234_567);
        assert_eq!([rng.next(), rng.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

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
