//! State that single policies need beside loads and turns.

use std::sync::Arc;

use crate::{
    chooser::Choosers,
    departed::Departed,
    key_pins::KeyPins,
    members::Seated,
    policy::{Policy, rendezvous, sticky::Sticky, weighted_round_robin::Strides},
    rules::Rules,
    standing::MemberId,
};

/// State of the group's policies, in flat arrays in the order of [`Seats`](crate::seats::Seats). Tables exist only in
/// groups whose rules need them.
#[derive(Debug)]
pub(crate) struct PolicyState {
    pub(crate) ids: Box<[MemberId]>,
    /// Identities of the clients, [spread](rendezvous::spread), for the hashing policies.
    pub(crate) identities: Box<[u64]>,
    /// Weights of the members, for choosers of the caller's own; empty with other policies.
    pub(crate) weights: Box<[u32]>,
    /// The caller's own policies.
    pub(crate) choosers: Arc<Choosers>,
    /// For `weighted_round_robin`.
    pub(crate) strides: Option<Strides>,
    /// For `sticky`; shared by successive snapshots.
    pub(crate) sticky: Option<Sticky>,
    /// For ordered groups; shared by successive snapshots.
    pub(crate) pins: Option<KeyPins>,
    /// Former members that hold keys of `pins`; empty if the order [may break](Self::may_break_order).
    pub(crate) departed: Departed,
    /// [`Rules::may_break_order`].
    pub(crate) may_break_order: bool,
}

impl PolicyState {
    /// Creates the state for the members in `roster`, with the tables of the state `before`.
    pub(crate) fn new<T>(rules: &Rules, roster: &[Seated<T>], before: Option<&Self>) -> Self {
        let members = || roster.iter().map(|seated| &seated.member);
        let is_sticky = rules.policy == Policy::Sticky;
        let weights = || roster.iter().map(|seated| (seated.member.standing.weight, seated.period_left));
        let sticky = || before.and_then(|before| before.sticky.clone()).unwrap_or_else(Sticky::new);
        let pins = || before.and_then(|before| before.pins.clone()).unwrap_or_else(KeyPins::new);
        Self {
            ids: members().map(|member| member.id).collect(),
            identities: members().map(|member| rendezvous::spread(member.standing.identity)).collect(),
            weights: match rules.policy {
                Policy::Custom(_) => members().map(|member| member.standing.weight).collect(),
                _ => Box::default(),
            },
            choosers: before.map_or_else(Arc::default, |before| Arc::clone(&before.choosers)),
            strides: (rules.policy == Policy::WeightedRoundRobin).then(|| Strides::new(weights())),
            sticky: is_sticky.then(sticky),
            pins: (rules.is_ordered && !is_sticky).then(pins),
            departed: Departed::default(),
            may_break_order: rules.may_break_order,
        }
    }

    /// Copies the tables for a shadow that starts from here, without members and their strides.
    pub(crate) fn copied(&self) -> Self {
        let (ids, identities, weights) = Default::default();
        Self {
            ids,
            identities,
            weights,
            choosers: Arc::clone(&self.choosers),
            strides: None,
            sticky: self.sticky.as_ref().map(Sticky::copied),
            pins: None,
            departed: Departed::default(),
            may_break_order: false,
        }
    }
}
