//! Rejected and overdue messages: retries and dead letters.

use tenbin_balancer::Nanos;

use super::{Acknowledges, Event, Feedback, Simulation};

impl Simulation<'_> {
    /// Returns the time in ns after which the worker rejects the message; `None` if it processes it.
    pub(super) fn rejected_after(&self, worker: u32, message: u32) -> Option<u64> {
        let kind = self.plan.workers[worker as usize].kind;
        if kind.acknowledges == Acknowledges::OnArrival {
            return None; // it has accepted the message
        }
        let poison = self.plan.scenario.poison.filter(|_| self.plan.messages[message as usize].is_poison);
        kind.rejects.or(poison.map(|poison| poison.after)).map(tenbin_kit::Span::ns)
    }

    /// Takes an acknowledgement or rejection that arrives at the broker.
    pub(super) fn answered(&mut self, worker: u32, message: u32, feedback: &Feedback, now: Nanos) {
        let is_rejection = self.rejected_after(worker, message).is_some();
        let (overdue, is_its) = self.unacknowledged.answered(worker, message);
        if let Some(rule) = &mut self.rule {
            if let Some(overdue) = overdue {
                rule.overdue(worker as usize, overdue);
            }
            if is_rejection {
                rule.rejected(worker as usize, feedback, now);
            } else {
                rule.acknowledged(worker as usize, feedback, now);
            }
        }
        if is_rejection && is_its {
            self.rejected(message, now);
        }
        self.serve_waiting(now);
    }

    /// Lets a rejected message wait for its next delivery, or gives it up.
    pub(super) fn rejected(&mut self, message: u32, now: Nanos) {
        let deliveries = self.unacknowledged.deliveries(message).max(1);
        match self.unacknowledged.queue.and_then(|queue| queue.pause_ns(deliveries)) {
            Some(pause_ns) => {
                self.deliveries[message as usize].worker = None;
                self.events.schedule(Nanos(now.0 + pause_ns), Event::Returns { message });
            }
            None => self.give_up(message),
        }
    }

    /// Lets a message go to another worker, unless it was acknowledged in time.
    pub(super) fn overdue(&mut self, worker: u32, message: u32, now: Nanos) {
        let Some(overdue) = self.unacknowledged.overdue(worker, message) else { return };
        if let Some(rule) = &mut self.rule {
            rule.overdue(worker as usize, overdue);
        }
        let deliveries = self.unacknowledged.deliveries(message);
        if self.unacknowledged.queue.is_some_and(|queue| queue.has_reached_limit(deliveries)) {
            self.give_up(message);
        } else if self.open.has(message) {
            self.dispatch(message, now);
        }
    }

    fn give_up(&mut self, message: u32) {
        if self.open.has(message) {
            self.deliveries[message as usize].is_dead = true;
            self.open.close(message);
        }
    }
}
