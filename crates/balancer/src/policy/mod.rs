//! The dispatch policies and their names. Each has a file; a pick dispatches to them.

pub(crate) mod adaptive;
pub(crate) mod capacity;
pub(crate) mod custom;
pub(crate) mod least;
pub(crate) mod least_bytes;
pub(crate) mod least_inflight;
pub(crate) mod least_response_time;
pub(crate) mod ordered;
pub(crate) mod power_of_two;
pub(crate) mod random;
pub(crate) mod rendezvous;
pub(crate) mod round_robin;
pub(crate) mod score;
pub(crate) mod sticky;
pub(crate) mod weighted_round_robin;

pub use adaptive::Burst;

use std::{error::Error, fmt, str::FromStr};

/// The rule by which a group chooses the member for a message.
///
/// With every policy, members that are [`Ready`](crate::Availability::Ready) come before those that are
/// [`Full`](crate::Availability::Full), and these before those that are [`Offline`](crate::Availability::Offline).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// `adaptive`, the default: the member with the shortest predicted wait. The prediction uses all evidence: reports,
    /// acknowledgements, the throughput of its socket. Without evidence it is round robin. Considers all members of a
    /// group of up to 64, and 16 of a larger one.
    #[default]
    Adaptive,
    /// `thesis_score`: the highest score by the members' own reports (thesis §4.1.2). Equal scores, such as in a group
    /// without reports, are served round robin. Costs a scan over all members.
    ThesisScore,
    /// `round_robin`: the member chosen longest ago in this group (a baseline of thesis §5). Costs a scan over all
    /// members.
    RoundRobin,
    /// `weighted_round_robin`: turns in proportion to the members' [weights](crate::Standing::weight), spread evenly.
    /// For workers with known and constant capacities that send no reports. Costs a scan over all members.
    WeightedRoundRobin,
    /// `random`: any candidate, with equal chances (a baseline of thesis §5). Considers one member in the common case,
    /// and all of them if this member is not ready.
    Random,
    /// `sticky`: a publisher stays with its first, random member until the member leaves, goes offline or drains. While
    /// it is full, others help out. The same as EMQX's `sticky`, for caches by publisher that can be rebuilt. Ignores
    /// load. Costs a search for the member's id, and 32 KiB per group: publishers share 4096 slots.
    Sticky,
    /// `hash_client_id`: all messages of one publisher go to the same member, as long as the members stay the same. A
    /// member that leaves or is not ready moves only its own publishers (rendezvous hashing over
    /// [identities](crate::Standing::identity)). For workers with state per device. Ignores load; a busy publisher
    /// loads one member only. Costs a hash for each member.
    HashClientId,
    /// `hash_topic`: the same by topic, for workers with state per topic.
    HashTopic,
    /// `least_inflight`: the member with the fewest messages neither acknowledged (QoS above 0) nor written (QoS 0);
    /// equal ones take turns. For workers of about equal speed that acknowledge after the work; of little use at QoS 0.
    /// Costs a scan over all members.
    LeastInflight,
    /// `least_response_time`: the member with the least product of acknowledgement latency and messages in flight, this
    /// one included. The latency is a peak EWMA like Finagle's and Linkerd's, with a half-life of 8.6 s. For workers of
    /// different speed that acknowledge after the work, at QoS above 0 only: it prefers members that acknowledge early.
    /// Costs a scan over all members, two cache lines of each.
    LeastResponseTime,
    /// `least_bytes`: as `least_inflight`, by bytes instead of messages. For work that grows with the payload.
    LeastBytes,
    /// `power_of_two`: of two random members the one with fewer outstanding messages, or else the shorter predicted
    /// wait. For very large groups of about equal speed: it considers only two members, as long as most are ready. With
    /// mixed speeds it is clearly worse than `adaptive`.
    PowerOfTwo,
    /// `capacity`: any candidate, with chances in proportion to its reported or estimated speed; unknown speeds count
    /// as the group's mean. For groups shared by several brokers that know the speeds but not each other's sends.
    /// Ignores queues. Costs a scan over all members.
    Capacity,
    /// A [`Chooser`](crate::Chooser) of the caller's own, by its number in the group's [`Choosers`](crate::Choosers).
    Custom(u8),
}

impl Policy {
    /// All policies of this crate, in the order of declaration.
    pub const ALL: [Self; 13] = [
        Self::Adaptive,
        Self::ThesisScore,
        Self::RoundRobin,
        Self::WeightedRoundRobin,
        Self::Random,
        Self::Sticky,
        Self::HashClientId,
        Self::HashTopic,
        Self::LeastInflight,
        Self::LeastResponseTime,
        Self::LeastBytes,
        Self::PowerOfTwo,
        Self::Capacity,
    ];

    /// The name in configuration files, e.g. `thesis_score`. [`Choosers::name_of`](crate::Choosers::name_of) knows the names
    /// of the caller's own.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::ThesisScore => "thesis_score",
            Self::RoundRobin => "round_robin",
            Self::WeightedRoundRobin => "weighted_round_robin",
            Self::Random => "random",
            Self::Sticky => "sticky",
            Self::HashClientId => "hash_client_id",
            Self::HashTopic => "hash_topic",
            Self::LeastInflight => "least_inflight",
            Self::LeastResponseTime => "least_response_time",
            Self::LeastBytes => "least_bytes",
            Self::PowerOfTwo => "power_of_two",
            Self::Capacity => "capacity",
            Self::Custom(_) => "custom",
        }
    }
}

impl Policy {
    /// Returns whether the policy keeps messages of one kind (publisher or topic) with one member. Redelivery for the
    /// sake of speed should not move such messages.
    pub const fn has_affinity(self) -> bool {
        match self {
            Self::Sticky | Self::HashClientId | Self::HashTopic => true,
            Self::Adaptive
            | Self::ThesisScore
            | Self::RoundRobin
            | Self::WeightedRoundRobin
            | Self::Random
            | Self::LeastInflight
            | Self::LeastResponseTime
            | Self::LeastBytes
            | Self::PowerOfTwo
            | Self::Capacity
            | Self::Custom(_) => false,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    /// Parses a [`name`](Self::name); case and spaces count.
    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == name)
            .ok_or_else(|| UnknownPolicy { name: name.to_owned() })
    }
}

/// Error for an unknown policy name. The message lists the valid names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    name: String,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown policy {:?}; valid are {}", self.name, Policy::ALL.map(Policy::name).join(", "))
    }
}

impl Error for UnknownPolicy {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_names_parse_back() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!(Policy::default().to_string(), "adaptive");
    }

    #[test]
    fn unknown_policy_error_lists_the_valid_names() {
        let error = "Random".parse::<Policy>().expect_err("names are lower case");
        let message = error.to_string();
        assert!(message.starts_with(r#"unknown policy "Random"; valid are adaptive, thesis_score, round_robin, "#));
        assert!(Policy::ALL.iter().all(|policy| message.contains(policy.name())), "{message}");
    }
}
