use std::sync::Arc;

use tenbin_balancer::{Acknowledged, Choosers, Dispatch, Group, LoadReport, MemberId, MemberLoad, Nanos, Rng, Rules};

use super::{Feedback, Rule};
use tenbin_kit::Span;

use crate::plan::{Message, WorkerPlan};

/// A share group of the real balancer, with all calls as a broker would make them.
pub(super) struct Balancer {
    group: Group<usize>,
    is_acknowledged: bool,
    /// By worker; `None` before it joins.
    loads: Vec<Option<Arc<MemberLoad>>>,
    rng: Rng,
}

impl Balancer {
    pub(super) fn new(rules: Rules, own: Arc<Choosers>, is_acknowledged: bool, workers: usize, seed: u64) -> Self {
        let group = Group::with_choosers(rules, own);
        Self { group, is_acknowledged, loads: vec![None; workers], rng: Rng::new(seed) }
    }
}

impl Rule for Balancer {
    fn join(&mut self, worker: usize, plan: &WorkerPlan<'_>, now: Nanos) {
        let load = Arc::new(MemberLoad::new(now));
        if plan.kind.round_trip_known {
            // The kernel's shortest round trip.
            let shortest_ms = 2.0 * plan.kind.delay.ms() * (1.0 - plan.kind.jitter);
            load.set_round_trip(Span::from_ms(shortest_ms).duration());
        }
        if let Some(concurrency) = plan.kind.concurrency {
            load.set_concurrency(u16::try_from(concurrency.get()).unwrap_or(u16::MAX));
        }
        if let Some(messages) = plan.kind.receive_maximum {
            load.set_receive_maximum(u16::try_from(messages.get()).unwrap_or(u16::MAX));
        }
        if plan.kind.remembered {
            load.assume_speed(plan.kind.service.duration());
        }
        self.loads[worker] = Some(Arc::clone(&load));
        self.group.join(MemberId(worker as u64), load, plan.kind.weight.get(), worker, now);
    }

    fn leave(&mut self, worker: usize) {
        self.group.leave(MemberId(worker as u64));
    }

    fn pick(&mut self, message: &Message, waiting: usize, now: Nanos) -> Option<usize> {
        let dispatch = Dispatch {
            at: now,
            bytes: MESSAGE_BYTES,
            is_acknowledged: self.is_acknowledged,
            publisher: hash(message.publisher),
            topic: hash(message.topic),
            key: None,
        };
        let members = self.group.members();
        let member = members.pick_late(&dispatch, waiting, &mut self.rng)?;
        if !self.is_acknowledged {
            // Simulated connections have room.
            member.load().written(1, u64::from(MESSAGE_BYTES), false, now);
        }
        Some(*member.value())
    }

    fn report(&mut self, worker: usize, report: &LoadReport, now: Nanos) {
        if let Some(load) = &self.loads[worker] {
            load.report(report, now);
        }
    }

    fn plain_ping(&mut self, worker: usize, now: Nanos) {
        if let Some(load) = &self.loads[worker] {
            load.plain_ping(now);
        }
    }

    fn acknowledged(&mut self, worker: usize, feedback: &Feedback, now: Nanos) {
        if let Some(load) = &self.loads[worker] {
            load.acknowledged(&Acknowledged::one(feedback.sent_at, MESSAGE_BYTES, now));
        }
    }

    fn rejected(&mut self, worker: usize, _feedback: &Feedback, now: Nanos) {
        if let Some(load) = &self.loads[worker] {
            load.refused(1, u64::from(MESSAGE_BYTES), now);
        }
    }

    fn overdue(&mut self, worker: usize, messages: u32) {
        if let Some(load) = &self.loads[worker] {
            load.set_overdue(messages);
        }
    }

    fn takes_turns(&self) -> bool {
        true
    }

    fn drops_expired(&self) -> bool {
        true
    }
}

/// Spreads a number over all of `u64`.
fn hash(number: u32) -> u64 {
    Rng::new(u64::from(number)).next_u64()
}

/// As in the thesis.
const MESSAGE_BYTES: u32 = 100;
