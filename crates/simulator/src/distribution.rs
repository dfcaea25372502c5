//! Service times of messages.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Shape of service times around their mean.
///
/// A time is drawn from the message's seed, a random number that is the same for every worker. So all policies
/// of a run are compared on the same work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Always the mean.
    #[default]
    Fixed,
    /// Uniform within the mean ± this fraction of it, 0 to 1.
    Jitter(f64),
    /// Exponential.
    Exponential,
    /// Pareto with this index, greater than 1: the smaller, the heavier the tail.
    Pareto(f64),
    /// Lognormal with this coefficient of variation: standard deviation ÷ mean.
    Lognormal(f64),
    /// Two classes of work: a share of the messages takes a multiple of the time of the others.
    Outliers {
        /// Share of the long messages, 0 to 1.
        share: f64,
        /// Time of a long message ÷ time of another.
        times: f64,
    },
}

impl Distribution {
    /// Error in its parameter, if any.
    pub(crate) fn fault(self) -> Option<String> {
        match self {
            Self::Jitter(fraction) if !(0.0..=1.0).contains(&fraction) => {
                Some(format!("jitter is a fraction of the mean from 0 to 1, not {fraction}"))
            }
            Self::Pareto(index) if !(index > 1.0 && index.is_finite()) => {
                Some(format!("the index of pareto has to be greater than 1 for a mean, not {index}"))
            }
            Self::Lognormal(cv) if !(cv > 0.0 && cv <= 100.0) => {
                Some(format!("the coefficient of variation of lognormal is from 0 to 100, not {cv}"))
            }
            Self::Outliers { share, .. } if !(0.0..=1.0).contains(&share) => {
                Some(format!("the share of outliers is from 0 to 1, not {share}"))
            }
            Self::Outliers { times, .. } if !(times >= 1.0 && times.is_finite()) => {
                Some(format!("the times of outliers are 1 or more, not {times}"))
            }
            _ => None,
        }
    }

    /// Returns a service time in ns, at least 1, for a message with this seed.
    pub fn service_ns(self, mean_ns: u64, seed: u64) -> u64 {
        let mean = mean_ns as f64;
        // 53 bits: exact in an f64, and below 1.
        let uniform = (seed >> 11) as f64 / (1_u64 << 53) as f64;
        let ns = match self {
            Self::Fixed => return mean_ns.max(1),
            Self::Jitter(fraction) => mean * (1.0 + fraction * (2.0 * uniform - 1.0)),
            Self::Exponential => -(1.0 - uniform).ln() * mean,
            Self::Pareto(index) => mean * (index - 1.0) / index * (1.0 - uniform).powf(-1.0 / index),
            Self::Lognormal(cv) => {
                let variance = (1.0 + cv * cv).ln();
                mean * (variance.sqrt() * normal(seed) - variance / 2.0).exp()
            }
            Self::Outliers { share, times } => {
                let other = mean / (1.0 - share + share * times);
                if uniform < share { other * times } else { other }
            }
        };
        ns.clamp(1.0, LONGEST_NS) as u64
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed => f.write_str("fixed"),
            Self::Jitter(fraction) => write!(f, "jitter {fraction}"),
            Self::Exponential => f.write_str("exponential"),
            Self::Pareto(index) => write!(f, "pareto {index}"),
            Self::Lognormal(cv) => write!(f, "lognormal {cv}"),
            Self::Outliers { share, times } => write!(f, "{:.0} % × {times}", 100.0 * share),
        }
    }
}

/// Returns a number of the standard normal distribution (Box and Muller), from the two halves of `seed`.
fn normal(seed: u64) -> f64 {
    let half = |bits: u32| (f64::from(bits) + 0.5) / (u64::from(u32::MAX) + 1) as f64;
    let (radius, angle) = (half((seed >> 32) as u32), half(seed as u32));
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

/// An hour, the largest service time of a Pareto tail.
const LONGEST_NS: f64 = 3600e9;

#[cfg(test)]
mod tests {
    use tenbin_balancer::Rng;

    use super::*;

    #[test]
    fn distributions_keep_their_mean() {
        let shapes = [
            (Distribution::Fixed, 0.0),
            (Distribution::Jitter(0.5), 0.01),
            (Distribution::Exponential, 0.01),
            (Distribution::Pareto(3.0), 0.02),
            (Distribution::Lognormal(1.0), 0.02),
            (Distribution::Outliers { share: 0.02, times: 30.0 }, 0.05),
        ];
        for (distribution, tolerance) in shapes {
            let mut rng = Rng::new(1);
            let n = 100_000;
            let sum: u64 = (0..n).map(|_| distribution.service_ns(1_000_000, rng.next_u64())).sum();
            let mean = sum as f64 / n as f64 / 1e6;
            assert!((mean - 1.0).abs() <= tolerance, "{distribution}: {mean}");
        }
    }

    #[test]
    fn extreme_random_numbers_stay_within_bounds() {
        for seed in [0, u64::MAX] {
            let jitter = Distribution::Jitter(0.25).service_ns(1000, seed);
            assert!((750..=1250).contains(&jitter), "{jitter}");
            for distribution in [Distribution::Exponential, Distribution::Pareto(1.01), Distribution::Lognormal(3.0)] {
                assert!((1..=LONGEST_NS as u64).contains(&distribution.service_ns(1_000_000, seed)));
            }
        }
    }

    #[test]
    fn parameters_have_ranges() {
        let outliers = |share, times| Distribution::Outliers { share, times };
        let wrong = [
            Distribution::Jitter(-0.1),
            Distribution::Jitter(1.1),
            Distribution::Pareto(1.0),
            Distribution::Lognormal(0.0),
            outliers(1.1, 2.0),
            outliers(0.1, 0.5),
        ];
        assert!(wrong.iter().all(|distribution| distribution.fault().is_some()));
        let right = [Distribution::Fixed, Distribution::Jitter(1.0), Distribution::Pareto(1.5)];
        assert!(right.iter().all(|distribution| distribution.fault().is_none()));
    }
}
