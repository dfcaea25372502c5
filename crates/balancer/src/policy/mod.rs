//! The policies by which a group can choose, and their names. Each has a file; a pick dispatches to them.

pub(crate) mod adaptive;
pub(crate) mod random;
pub(crate) mod round_robin;
pub(crate) mod score;

use std::{error::Error, fmt, str::FromStr};

/// How a group chooses the member for a message.
///
/// With every policy, members that are [`Ready`](crate::Availability::Ready) come before those that are
/// [`Full`](crate::Availability::Full), and these before those that are [`Offline`](crate::Availability::Offline).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// `adaptive`, the default: the member that will have finished everything it was sent first, predicted from
    /// whatever evidence there is: reports, acknowledgements, the drain of its socket. Without any it is round robin.
    /// Looks at all members of a group of up to 64, at 16 of a larger one.
    #[default]
    Adaptive,
    /// `thesis_score`: the highest score by the members' own reports (thesis §4.1.2). Equal scores,
    /// and so a group in which nobody reports, are served round robin. Costs a scan over all members.
    ThesisScore,
    /// `round_robin`: the member that was chosen longest ago in this group (a baseline of thesis §5). Costs a scan
    /// over all members.
    RoundRobin,
    /// `random`: any candidate, with equal chances (a baseline of thesis §5). Looks at one member in the common
    /// case, at all of them if that one is not ready.
    Random,
}

impl Policy {
    /// Every policy, in the order of declaration.
    pub const ALL: [Self; 4] = [Self::Adaptive, Self::ThesisScore, Self::RoundRobin, Self::Random];

    /// The name in configuration files, e.g. `thesis_score`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::ThesisScore => "thesis_score",
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
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
        assert_eq!(Policy::default().to_string(), "adaptive");
    }

    #[test]
    fn an_unknown_name_is_told_the_valid_ones() {
        let error = "Random".parse::<Policy>().expect_err("names are lower case");
        assert_eq!(
            error.to_string(),
            r#"unknown policy "Random"; valid are adaptive, thesis_score, round_robin, random"#
        );
    }
}
