//! What single policies need to know of members, or to remember, beside loads and turns.

use crate::{
    members::Seated,
    policy::{Policy, rendezvous, weighted_round_robin::Strides},
    rules::Rules,
};

/// Beside [`Seats`](crate::seats::Seats), in the same order; flat, for scans. Tables are made only for groups
/// whose rules need them.
#[derive(Debug)]
pub(crate) struct PolicyState {
    /// Of the clients, [spread](rendezvous::spread): for the policies that hash.
    pub(crate) identities: Box<[u64]>,
    /// For `weighted_round_robin`.
    pub(crate) strides: Option<Strides>,
}

impl PolicyState {
    /// For the members in `roster`.
    pub(crate) fn new<T>(rules: &Rules, roster: &[Seated<T>]) -> Self {
        let identities = roster.iter().map(|seated| rendezvous::spread(seated.member.standing.identity)).collect();
        let strides = (rules.policy == Policy::WeightedRoundRobin)
            .then(|| Strides::new(roster.iter().map(|seated| (seated.member.standing.weight, seated.period_left))));
        Self { identities, strides }
    }
}
