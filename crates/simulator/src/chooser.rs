//! Who decides where a message goes: a policy of the balancer, or the bound that no policy can beat by much.

use std::{fmt, str::FromStr};

use tenbin_balancer::Policy;

/// Who decides where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Chooser {
    /// The balancer, by this policy.
    Policy(Policy),
    /// `central_queue`: nobody. Messages wait in one queue, and whoever is free takes the next at once, without any
    /// delay; of several the fastest. No broker can do this over a network: it is what the others are compared with.
    CentralQueue,
}

impl Chooser {
    /// What is compared if nothing is asked for: `adaptive` beside the thesis' score and what other products use, and
    /// the bound.
    pub fn telling() -> Vec<Self> {
        TELLING.map(Self::Policy).into_iter().chain([Self::CentralQueue]).collect()
    }

    /// The name in arguments and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Policy(policy) => policy.name(),
            Self::CentralQueue => CENTRAL_QUEUE,
        }
    }
}

impl fmt::Display for Chooser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Chooser {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name == CENTRAL_QUEUE {
            return Ok(Self::CentralQueue);
        }
        name.parse().map(Self::Policy).map_err(|unknown| format!("{unknown}, {CENTRAL_QUEUE}"))
    }
}

const TELLING: [Policy; 5] =
    [Policy::Adaptive, Policy::ThesisScore, Policy::LeastInflight, Policy::LeastResponseTime, Policy::RoundRobin];
const CENTRAL_QUEUE: &str = "central_queue";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for chooser in Policy::ALL.map(Chooser::Policy).into_iter().chain([Chooser::CentralQueue]) {
            assert_eq!(chooser.name().parse(), Ok(chooser));
        }
        assert!("nobody".parse::<Chooser>().unwrap_err().ends_with("central_queue"));
    }
}
