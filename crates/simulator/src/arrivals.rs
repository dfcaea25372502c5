//! Arrival times of messages at the broker.

use std::{fmt, num::NonZeroU32};

use serde::{Deserialize, Serialize};
use tenbin_balancer::Rng;
use tenbin_kit::Span;

use crate::distribution::Distribution;

/// Arrival times of messages at the broker, of all publishers together.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Arrivals {
    /// One message after each such interval.
    Fixed(Span),
    /// One message after an exponential interval of this mean, as many independent publishers produce.
    Poisson(Span),
    /// Many messages at one instant.
    Bursts {
        /// Messages of a burst.
        messages: NonZeroU32,
        /// Interval between bursts.
        every: Span,
    },
}

impl Arrivals {
    pub(crate) fn fault(self) -> Option<&'static str> {
        match self {
            Self::Fixed(Span::ZERO) | Self::Poisson(Span::ZERO) | Self::Bursts { every: Span::ZERO, .. } => {
                Some("the time between them has to be more than 0")
            }
            _ => None,
        }
    }

    /// Returns the arrival times of `count` messages in ns, the first at 0.
    pub fn instants(self, count: u32, rng: &mut Rng) -> Vec<u64> {
        match self {
            Self::Fixed(every) => (0..u64::from(count)).map(|index| index * every.ns()).collect(),
            Self::Bursts { messages, every } => {
                (0..count).map(|index| u64::from(index / messages.get()) * every.ns()).collect()
            }
            Self::Poisson(mean) => {
                let gap = |rng: &mut Rng| Distribution::Exponential.service_ns(mean.ns(), rng.next_u64());
                std::iter::successors(Some(0), |at| Some(at + gap(rng))).take(count as usize).collect()
            }
        }
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(every) => write!(f, "every {every}"),
            Self::Poisson(mean) => write!(f, "Poisson, every {mean} on average"),
            Self::Bursts { messages, every } => write!(f, "{messages} at once every {every}"),
        }
    }
}

/// A message of a measured run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Time of its arrival, on the same scale as the times in [`WorkerKind`](crate::scenario::WorkerKind).
    pub at: Span,
    /// Random number from which [`Distribution::service_ns`](crate::Distribution::service_ns) draws its service time.
    pub seed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_of_each_kind() {
        let mut rng = Rng::new(3);
        let ms = Span::from_ms(1.0);
        assert_eq!(Arrivals::Fixed(ms).instants(3, &mut rng), [0, 1_000_000, 2_000_000]);
        let bursts = Arrivals::Bursts { messages: NonZeroU32::new(2).unwrap(), every: ms };
        assert_eq!(bursts.instants(5, &mut rng), [0, 0, 1_000_000, 1_000_000, 2_000_000]);
        let poisson = Arrivals::Poisson(ms).instants(100_001, &mut rng);
        assert!(poisson.is_sorted() && poisson[0] == 0);
        let last_s = poisson[100_000] as f64 / 1e9;
        assert!((99.0..101.0).contains(&last_s), "{last_s}");
    }
}
