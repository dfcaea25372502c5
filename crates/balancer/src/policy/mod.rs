//! The policies by which a group can choose, and their names. Each has a file; a pick dispatches to them.

pub(crate) mod adaptive;
pub(crate) mod capacity;
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

use std::{error::Error, fmt, str::FromStr};

/// How a group chooses the member for a message.
///
/// With every policy, members that are [`Ready`](crate::Availability::Ready) come before those that are
/// [`Full`](crate::Availability::Full), and these before those that are [`Offline`](crate::Availability::Offline).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// `adaptive`: the member that will have finished everything it was sent first, predicted from whatever
    /// evidence there is: reports, acknowledgements, the drain of its socket. Without any it is round robin. Looks
    /// at all members up to 64, at 16 of more.
    Adaptive,
    /// `thesis_score`, the default: the highest score by the members' own reports (thesis §4.1.2). Equal scores,
    /// and so a group in which nobody reports, are served round robin. Costs a scan over all members.
    #[default]
    ThesisScore,
    /// `round_robin`: the member that was chosen longest ago in this group (a baseline of thesis §5). Costs a scan
    /// over all members.
    RoundRobin,
    /// `weighted_round_robin`: turns in proportion to the members' [weights](crate::Standing::weight), spread
    /// evenly. For workers whose sizes are known and do not change, and that tell nothing of themselves. Costs a
    /// scan over all members.
    WeightedRoundRobin,
    /// `random`: any candidate, with equal chances (a baseline of thesis §5). Looks at one member in the common
    /// case, at all of them if that one is not ready.
    Random,
    /// `sticky`: a publisher stays with the member that it was first given at random, until that one leaves, goes
    /// offline or drains; while it is full others help out. What EMQX calls so; for caches by publisher that may be
    /// built anew. Heeds no load. Costs a search for the member's id, and the group 32 KiB: publishers share 4096
    /// slots.
    Sticky,
    /// `hash_client_id`: all messages of one publisher to the same member, as long as the members stay the same;
    /// who leaves or is not ready moves its own publishers only (rendezvous hashing over
    /// [identities](crate::Standing::identity)). For workers that keep something for each device. Heeds no load,
    /// and a busy publisher is one member's alone. Costs a hash for each member.
    HashClientId,
    /// `hash_topic`: the same by topic, for workers that keep something for each topic.
    HashTopic,
    /// `least_inflight`: the member with the fewest messages that it has neither acknowledged (QoS above 0) nor
    /// been sent (QoS 0); equal ones take turns. For workers of about equal speed that acknowledge when they have
    /// finished; says little at QoS 0. Costs a scan over all members.
    LeastInflight,
    /// `least_response_time`: the member with the least product of acknowledgement latency (peak EWMA, as Finagle
    /// and Linkerd take it; halves in 8.6 s) and messages in flight, this one included. For workers of different
    /// speed that acknowledge when they have finished, and at QoS above 0 alone: it prefers who acknowledges early.
    /// Costs a scan over all members, two cache lines of each.
    LeastResponseTime,
    /// `least_bytes`: as `least_inflight`, by bytes instead of messages. For work that grows with the payload.
    LeastBytes,
    /// `power_of_two`: of two members drawn at random the one with fewer outstanding messages, or else the shorter
    /// predicted wait. For very large groups of about equal speed: it looks at two members, however many there are,
    /// as long as most are ready. With mixed speeds it is clearly worse than `adaptive`.
    PowerOfTwo,
    /// `capacity`: any candidate, with chances in proportion to its speed as reported or estimated; unknown speeds
    /// count as the group's mean. For groups that several brokers share, which know the speeds and not each other's
    /// sends. Heeds no queue. Costs a scan over all members.
    Capacity,
}

impl Policy {
    /// Every policy, in the order of declaration.
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

    /// The name in configuration files, e.g. `thesis_score`.
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
        }
    }
}

impl Policy {
    /// Whether it gives messages to a member because of what they are, so that those of one kind meet there. A message
    /// that it gave to one member should not go to another for the sake of speed.
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
            | Self::Capacity => false,
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

    /// Reads a name as [`name`](Self::name) gives it; case and spaces count.
    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == name)
            .ok_or_else(|| UnknownPolicy { name: name.to_owned() })
    }
}

/// No policy has this name. The message lists the names there are.
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
    fn names_lead_back_to_their_policies() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!(Policy::default().to_string(), "thesis_score");
    }

    #[test]
    fn an_unknown_name_is_told_the_valid_ones() {
        let error = "Random".parse::<Policy>().expect_err("names are lower case");
        let message = error.to_string();
        assert!(message.starts_with(r#"unknown policy "Random"; valid are adaptive, thesis_score, round_robin, "#));
        assert!(Policy::ALL.iter().all(|policy| message.contains(policy.name())), "{message}");
    }
}
