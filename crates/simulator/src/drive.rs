//! All calls of the balancer, as a broker would make them.

use std::sync::Arc;

use tenbin_balancer::{Acknowledged, Dispatch, Group, LoadReport, MemberId, MemberLoad, Nanos, Policy, Rng};

use crate::{
    plan::{Message, WorkerPlan},
    span::Span,
};

/// A share group of the real balancer. Its members are workers, by number.
pub(crate) struct Drive {
    group: Group<usize>,
    is_acknowledged: bool,
    /// By worker; `None` before it joins.
    loads: Vec<Option<Arc<MemberLoad>>>,
    rng: Rng,
}

impl Drive {
    pub(crate) fn new(policy: Policy, is_acknowledged: bool, workers: usize, seed: u64) -> Self {
        Self { group: Group::new(policy), is_acknowledged, loads: vec![None; workers], rng: Rng::new(seed) }
    }

    /// Lets a worker connect and subscribe.
    pub(crate) fn join(&mut self, worker: usize, plan: &WorkerPlan<'_>, now: Nanos) {
        let load = Arc::new(MemberLoad::new(now));
        load.set_round_trip(Span::from_ns(2 * plan.kind.delay.ns()).duration());
        if plan.kind.remembered {
            load.assume_speed(plan.kind.service.duration());
        }
        self.loads[worker] = Some(Arc::clone(&load));
        self.group.join(MemberId(worker as u64), load, plan.kind.weight.get(), worker, now);
    }

    /// Ends a worker's subscription.
    pub(crate) fn leave(&mut self, worker: usize) {
        self.group.leave(MemberId(worker as u64));
    }

    /// Chooses the worker of a message; `None` if the group is empty. The message is sent at once: simulated
    /// connections have room.
    pub(crate) fn pick(&mut self, message: &Message, now: Nanos) -> Option<usize> {
        let dispatch = Dispatch {
            at: now,
            bytes: MESSAGE_BYTES,
            is_acknowledged: self.is_acknowledged,
            publisher: hash(message.publisher),
            topic: hash(message.topic),
            key: None,
        };
        let members = self.group.members();
        let member = members.pick(&dispatch, &mut self.rng)?;
        if !self.is_acknowledged {
            member.load().written(1, u64::from(MESSAGE_BYTES), false, now);
        }
        Some(*member.value())
    }

    /// Handles a ping with a report.
    pub(crate) fn report(&mut self, worker: usize, report: &LoadReport, now: Nanos) {
        if let Some(load) = &self.loads[worker] {
            load.report(report, now);
        }
    }

    /// Handles a ping without a report.
    pub(crate) fn plain_ping(&mut self, worker: usize, now: Nanos) {
        if let Some(load) = &self.loads[worker] {
            load.plain_ping(now);
        }
    }

    /// Handles the acknowledgement of the message sent at `sent_at`.
    pub(crate) fn acknowledged(&mut self, worker: usize, sent_at: Nanos, now: Nanos) {
        if let Some(load) = &self.loads[worker] {
            load.acknowledged(&Acknowledged::one(sent_at, MESSAGE_BYTES, now));
        }
    }
}

/// Spreads a number over all of `u64`.
fn hash(number: u32) -> u64 {
    Rng::new(u64::from(number)).next_u64()
}

/// As in the thesis.
const MESSAGE_BYTES: u32 = 100;
