//! All calls of the balancer: what a broker would do with it.

use std::sync::Arc;

use tenbin_balancer::{Group, LoadReport, MemberId, MemberLoad, Nanos, Policy, Rng};

use crate::{plan::Message, span::Span};

/// A share group of the real balancer, whose members are workers by their number.
pub(crate) struct Drive {
    group: Group<usize>,
    /// By worker; `None` before it joins.
    loads: Vec<Option<Arc<MemberLoad>>>,
    rng: Rng,
}

impl Drive {
    pub(crate) fn new(policy: Policy, _is_acknowledged: bool, workers: usize, seed: u64) -> Self {
        Self { group: Group::new(policy), loads: vec![None; workers], rng: Rng::new(seed) }
    }

    /// A worker subscribes; `remembered` is its speed on an earlier connection.
    pub(crate) fn join(&mut self, worker: usize, _remembered: Option<Span>, now: Nanos) {
        let load = Arc::new(MemberLoad::new(now));
        self.loads[worker] = Some(Arc::clone(&load));
        self.group.join(MemberId(worker as u64), load, worker, now);
    }

    /// A worker's subscription ends.
    pub(crate) fn leave(&mut self, worker: usize) {
        self.group.leave(MemberId(worker as u64));
    }

    /// Who gets the message; `None` if the group is empty.
    pub(crate) fn pick(&mut self, _message: &Message, now: Nanos) -> Option<usize> {
        self.group.members().pick(now, &mut self.rng).map(|member| *member.value())
    }

    /// A ping with a report arrives.
    pub(crate) fn report(&mut self, worker: usize, report: &LoadReport, now: Nanos) {
        if let Some(load) = &self.loads[worker] {
            load.report(report, now);
        }
    }

    /// A ping without a report arrives.
    pub(crate) fn plain_ping(&mut self, _worker: usize, _now: Nanos) {}

    /// An acknowledgement arrives of the message that was sent at `sent_at`.
    pub(crate) fn acknowledged(&mut self, _worker: usize, _sent_at: Nanos, _now: Nanos) {}
}
