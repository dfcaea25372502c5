//! Figures of a share group for operators.

use std::sync::Arc;

use tenbin_balancer::{Availability, Dispatch, MemberId, Nanos, Rng};

use super::SharedGroup;
use crate::values::Moment;

/// Load of a share group, of which its scale follows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupLoad {
    /// Messages that have arrived so far, given or waiting.
    pub(crate) arrived: u64,
    /// Messages that are not completed.
    pub(crate) backlog: u64,
    /// Connected members that do not drain.
    pub(crate) members: usize,
    /// Those of them whose speed is known.
    pub(crate) known: usize,
    /// Messages a second that these complete.
    pub(crate) per_second: f64,
}

impl SharedGroup {
    pub(crate) fn load(&self, now: Nanos) -> GroupLoad {
        let members = self.members.members();
        let waiting = self.waiting() as u64;
        let arrived = self.given(&members) + waiting;
        let mut load = GroupLoad { arrived, backlog: waiting, members: 0, known: 0, per_second: 0.0 };
        for candidate in members.explain(&Dispatch { at: now, is_acknowledged: true, ..Dispatch::default() }) {
            load.backlog += candidate.pending.max(candidate.in_flight);
            if candidate.availability == Availability::Offline || candidate.is_draining {
                continue;
            }
            load.members += 1;
            if !candidate.processing_time.is_zero() {
                load.known += 1;
                load.per_second += 1.0 / candidate.processing_time.as_secs_f64();
            }
        }
        load
    }

    pub(crate) fn has_member(&self, number: u64) -> bool {
        self.members.members().iter().any(|member| member.id() == MemberId(number))
    }

    /// Gives waiting messages to members that may have room.
    pub(crate) fn serve(self: &Arc<Self>, now: Moment) {
        self.dispatch_waiting(now, &mut Rng::new(self.number.get()));
    }
}
