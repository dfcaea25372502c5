//! What single policies need to know of members, or to remember, beside loads and turns.

use crate::{
    members::Seated,
    policy::{Policy, weighted_round_robin::Strides},
    rules::Rules,
};

/// Beside [`Seats`](crate::seats::Seats), in the same order; flat, for scans. Tables are made only for groups
/// whose rules need them.
#[derive(Debug)]
pub(crate) struct PolicyState {
    /// For `weighted_round_robin`.
    pub(crate) strides: Option<Strides>,
}

impl PolicyState {
    /// For the members in `roster`.
    pub(crate) fn new<T>(rules: &Rules, roster: &[Seated<T>]) -> Self {
        let strides = (rules.policy == Policy::WeightedRoundRobin)
            .then(|| Strides::new(roster.iter().map(|seated| (seated.member.standing.weight, seated.period_left))));
        Self { strides }
    }
}
