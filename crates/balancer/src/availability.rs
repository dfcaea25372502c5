/// Whether a client can take messages now. A pick chooses among the members of the best availability in the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Availability {
    /// Connected, with room in its queue and quota left.
    #[default]
    Ready = 0,
    /// Connected, but its queue is full or its quota used up: chosen only if no member is `Ready`.
    Full = FULL,
    /// Not connected, its session kept: chosen only if every member is `Offline`; the message then waits for it.
    Offline = OFFLINE,
}

impl Availability {
    /// Converts a discriminant.
    pub(crate) fn of(discriminant: u8) -> Self {
        match discriminant {
            FULL => Self::Full,
            OFFLINE => Self::Offline,
            _ => Self::Ready,
        }
    }
}

/// An [`Availability`] and the findings that let a pick pass over the client, in one byte.
///
/// ```text
///   7     6       5        4       3 2         1 0
/// +---+-------+-------+---------+--------------+------+
/// |   | stuck | tried | rejects | availability | rank |
/// +---+-------+-------+---------+--------------+------+
/// ```
///
/// The rank follows from the other fields. It is stored so that a pick computes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Eligibility(pub(crate) u8);

/// A finding about a client, as a bit of its [`Eligibility`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Finding {
    /// It rejected more than half of its last messages: a suspect. It ranks as full, so that others get the messages.
    Rejects = 1 << 4,
    /// A suspect may have a message that shows whether it still rejects them. It ranks as it would without suspicion.
    Tried = 1 << 5,
    /// Every slot of it holds an overdue message. It ranks as full, and messages that may wait do not go to it.
    Stuck = 1 << 6,
}

impl Eligibility {
    pub(crate) const READY: Self = Self(0);

    /// 0 for a member that is chosen first, up to 3.
    #[inline]
    pub(crate) fn rank(self) -> u8 {
        self.0 & RANK
    }

    pub(crate) fn availability(self) -> Availability {
        Availability::of(self.0 >> AVAILABILITY_SHIFT & RANK)
    }

    #[inline]
    pub(crate) fn has(self, finding: Finding) -> bool {
        self.0 & finding as u8 != 0
    }

    pub(crate) fn with_availability(self, availability: Availability) -> Self {
        Self(self.0 & !(RANK << AVAILABILITY_SHIFT) | (availability as u8) << AVAILABILITY_SHIFT).ranked()
    }

    pub(crate) fn with(self, finding: Finding, holds: bool) -> Self {
        let without = self.0 & !(finding as u8);
        Self(if holds { without | finding as u8 } else { without }).ranked()
    }

    /// Returns the same without any finding.
    pub(crate) fn without_findings(self) -> Self {
        Self::READY.with_availability(self.availability())
    }

    /// Returns whether the findings let others go first.
    pub(crate) fn is_passed_over(self) -> bool {
        self.has(Finding::Stuck) || self.has(Finding::Rejects) && !self.has(Finding::Tried)
    }

    fn ranked(self) -> Self {
        let least = if self.is_passed_over() { FULL } else { 0 };
        Self(self.0 & !RANK | (self.availability() as u8).max(least))
    }
}

const RANK: u8 = 3;
const AVAILABILITY_SHIFT: u32 = 2;
const FULL: u8 = 1;
const OFFLINE: u8 = 3;

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FINDINGS: [Finding; 3] = [Finding::Rejects, Finding::Tried, Finding::Stuck];

    proptest! {
        /// Any changes leave each field as it was last set, and the rank follows from them.
        #[test]
        fn each_field_is_as_last_set(changes in prop::collection::vec((0..4_usize, 0..3_u8, any::<bool>()), 0..20)) {
            let (mut eligibility, mut availability, mut holds) = (Eligibility::READY, Availability::Ready, [false; 3]);
            for (what, which, is_set) in changes {
                if let Some(&finding) = FINDINGS.get(what) {
                    eligibility = eligibility.with(finding, is_set);
                    holds[what] = is_set;
                } else {
                    availability = [Availability::Ready, Availability::Full, Availability::Offline][which as usize];
                    eligibility = eligibility.with_availability(availability);
                }
                prop_assert_eq!(eligibility.availability(), availability);
                prop_assert_eq!(FINDINGS.map(|finding| eligibility.has(finding)), holds);
                let [rejects, tried, stuck] = holds;
                let rank = match availability {
                    Availability::Ready if stuck || rejects && !tried => Availability::Full,
                    same => same,
                };
                prop_assert_eq!(eligibility.rank(), rank as u8);
                prop_assert_eq!(eligibility.without_findings().rank(), availability as u8);
            }
        }
    }
}
