//! Figures of a share group for operators.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tenbin_balancer::{Availability, Dispatch, MemberId, Nanos, Rng};

use super::{SharedGroup, beginning};
use crate::values::Moment;

/// Load of a share group, of which its scale follows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GroupLoad {
    /// Messages that have arrived so far, given or waiting.
    pub(crate) arrived: u64,
    /// Messages given to members.
    pub(crate) given: u64,
    /// Messages that no member has.
    pub(crate) waiting: u64,
    /// Messages that are not completed.
    pub(crate) backlog: u64,
    /// Connected members that do not drain.
    pub(crate) members: usize,
    /// Those of them whose speed is known.
    pub(crate) known: usize,
    /// Messages a second that these complete.
    pub(crate) per_second: f64,
    /// Least predicted wait of these.
    pub(crate) predicted_wait: Option<Duration>,
    /// Messages that went from a present member to another one.
    pub(crate) redispatched: u64,
}

/// A name of bounded length.
fn label(name: &str) -> Cow<'_, str> {
    match beginning(name) {
        whole if whole.len() == name.len() => Cow::Borrowed(name),
        beginning => {
            let hash = Sha256::digest(name).iter().take(6).map(|byte| format!("{byte:02x}")).collect::<String>();
            Cow::Owned(format!("{beginning}…{hash}"))
        }
    }
}

impl SharedGroup {
    pub(crate) fn load(&self, now: Nanos) -> GroupLoad {
        let members = self.members.members();
        let waiting = self.waiting() as u64;
        let given = self.given(&members);
        let mut load = GroupLoad {
            arrived: given + waiting,
            given,
            waiting,
            backlog: waiting,
            members: 0,
            known: 0,
            per_second: 0.0,
            predicted_wait: None,
            redispatched: members.iter().map(|member| member.load().snapshot().taken_back).sum(),
        };
        for candidate in members.explain(&Dispatch { at: now, is_acknowledged: true, ..Dispatch::default() }) {
            // Without reports it is unknown which messages a member has completed: `pending` counts them all.
            let is_reporting = !candidate.reported_processing_time.is_zero();
            let pending = if is_reporting { candidate.pending } else { 0 };
            load.backlog += pending.max(candidate.in_flight);
            if candidate.availability == Availability::Offline || candidate.is_draining {
                continue;
            }
            load.members += 1;
            let wait = candidate.predicted_wait;
            load.predicted_wait = Some(load.predicted_wait.map_or(wait, |least| least.min(wait)));
            if !candidate.processing_time.is_zero() {
                load.known += 1;
                load.per_second += 1.0 / candidate.processing_time.as_secs_f64();
            }
        }
        load
    }

    /// Share name and filter for labels. Long ones are cut, with a hash of the whole, so that no two become one.
    pub(crate) fn labels(&self) -> (Cow<'_, str>, Cow<'_, str>) {
        (label(self.name.share_name.text().as_str()), label(self.name.filter.text().as_str()))
    }

    pub(crate) fn has_member(&self, number: u64) -> bool {
        self.members.members().iter().any(|member| member.id() == MemberId(number))
    }

    /// Gives waiting messages to members that may have room.
    pub(crate) fn serve(self: &Arc<Self>, now: Moment) {
        self.dispatch_waiting(now, &mut Rng::new(self.number.get()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_long_names_differ() {
        let long = |end: &str| "ä".repeat(5000) + end;
        let (one, other) = (long("1"), long("2"));
        assert_ne!(label(&one), label(&other));
        assert_eq!(label(&one), label(&long("1")));
        assert!(label(&one).len() < 1000);
        assert_eq!(label("short"), "short");
    }
}
