//! Choice of a message's worker: by a policy of the balancer, or by the bound that no policy can beat by much.

use std::{fmt, str::FromStr};

use tenbin_balancer::Policy;

use crate::rules::Rival;

/// Chooses the worker of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Chooser {
    /// The balancer, with this policy.
    Policy(Policy),
    /// A rule of another system, or one that no broker can have.
    Rival(Rival),
    /// `central_queue`: messages wait in one queue, and a free worker takes the next at once, the fastest one first. No
    /// broker can do this over a network: it is the bound for comparison.
    CentralQueue,
}

impl Chooser {
    /// Default comparison: `adaptive`, the thesis' score, policies of other products, and the bound.
    pub fn telling() -> Vec<Self> {
        TELLING.map(Self::Policy).into_iter().chain([Self::CentralQueue]).collect()
    }

    /// The name in arguments and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Policy(policy) => policy.name(),
            Self::Rival(rival) => rival.name(),
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
        if let Some(rival) = Rival::ALL.into_iter().find(|rival| rival.name() == name) {
            return Ok(Self::Rival(rival));
        }
        let rivals = Rival::ALL.map(Rival::name).join(", ");
        name.parse().map(Self::Policy).map_err(|unknown| format!("{unknown}, {rivals}, {CENTRAL_QUEUE}"))
    }
}

const TELLING: [Policy; 5] =
    [Policy::Adaptive, Policy::ThesisScore, Policy::LeastInflight, Policy::LeastResponseTime, Policy::RoundRobin];
const CENTRAL_QUEUE: &str = "central_queue";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chooser_names_round_trip() {
        let rivals = Rival::ALL.map(Chooser::Rival);
        for chooser in Policy::ALL.map(Chooser::Policy).into_iter().chain(rivals).chain([Chooser::CentralQueue]) {
            assert_eq!(chooser.name().parse(), Ok(chooser));
        }
        assert!("nobody".parse::<Chooser>().unwrap_err().ends_with("central_queue"));
    }
}
