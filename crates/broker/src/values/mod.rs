//! Plain values that many modules share: identities, limits, rules, times. They know no other module.

mod acl_rule;
mod bound;
mod clock;
mod drain_refused;
mod grant;
mod hash_key;
mod identity;
mod limits;
mod match_bound;
mod name_pattern;
mod network;
mod ordering_key;
mod origin;
pub(crate) mod policy_name;
mod recent;
mod share_rules;
mod speed;
mod token_bucket;
mod topic_pattern;
mod when_full;
mod work_queue;

pub(crate) use acl_rule::acl_rules;
pub use acl_rule::{AclAction, AclRule, Effect};
pub(crate) use bound::Bound;
pub(crate) use clock::{Clock, Moment};
pub(crate) use drain_refused::DrainRefused;
pub(crate) use grant::Grant;
pub(crate) use hash_key::HashKey;
pub use identity::{Identity, Principal, Terms};
pub(crate) use limits::{
    AdmissionLimits, DecisionLimits, MemoryLimits, SessionLimits, SpeedLimits, SubscriptionLimits, UNCHARGED_PACKET,
    room_for_packet,
};
pub(crate) use match_bound::MatchBound;
pub use name_pattern::NamePattern;
pub use network::{Network, WrongNetwork};
pub use ordering_key::{OrderingKey, UnknownKey};
pub use origin::{Certificate, Origin, Peer, TransportProtocol};
pub(crate) use recent::Recent;
pub use share_rules::{FairBy, ShareRule};
pub(crate) use share_rules::{GroupRules, Naming, ShareRules};
pub(crate) use speed::{KnownSpeed, SpeedChanges, SpeedKey};
pub(crate) use tenbin_pending::network;
pub(crate) use token_bucket::{Rate, TokenBucket};
pub use topic_pattern::TopicPattern;
pub(crate) use topic_pattern::{Names, Relation};
pub use when_full::WhenFull;
pub use work_queue::{DeadLetterTopic, OnReject, WorkQueue};
