//! Runs a plan under one chooser.

mod rejections;
mod unacknowledged;

use std::sync::Arc;

use tenbin_balancer::{Choosers, FairQueue, LoadReport, Nanos};

use crate::{
    chooser::Chooser,
    events::Events,
    plan::{Direction, Plan},
    rules::{self, Feedback, Rule},
    scenario::Acknowledges,
    worker::{Acknowledged, Sent, Worker},
};

pub(crate) use unacknowledged::Handling;
use unacknowledged::Unacknowledged;

/// Fate of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// Time of arrival at the broker.
    pub(crate) arrived: Nanos,
    /// The last worker that received it.
    pub(crate) worker: Option<u32>,
    /// Time when the worker took it out of its queue.
    pub(crate) taken: Option<Nanos>,
    /// Time of the first completion.
    pub(crate) finished: Option<Nanos>,
    /// Whether the group gave it up: a dead letter, or rejected for good.
    pub(crate) is_dead: bool,
}

/// What became of a plan.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// In the order of arrival.
    pub(crate) deliveries: Vec<Delivery>,
    /// By worker.
    pub(crate) workers: Vec<Handling>,
}

/// Runs `plan`, with or without acknowledgements; `own` has the caller's policies.
///
/// Ends when every message is finished or lost, or [`PATIENCE_NS`] after the last arrival.
pub(crate) fn simulate(plan: &Plan<'_>, is_acknowledged: bool, chooser: Chooser, own: &Arc<Choosers>) -> Outcome {
    let mut simulation = Simulation::new(plan, is_acknowledged, chooser, own);
    simulation.run();
    Outcome { deliveries: simulation.deliveries, workers: simulation.unacknowledged.workers }
}

struct Simulation<'a> {
    plan: &'a Plan<'a>,
    is_acknowledged: bool,
    /// `None` for one queue at the broker, from which free workers take messages.
    rule: Option<Box<dyn Rule + 'a>>,
    events: Events<Event>,
    workers: Vec<Worker<'a>>,
    /// Workers that are members now, in the order of joining.
    members: Vec<u32>,
    /// Messages that wait at the broker, for a member or in the central queue.
    waiting: FairQueue<u32>,
    deliveries: Vec<Delivery>,
    unacknowledged: Unacknowledged,
    open: Open,
}

/// Messages that are neither finished nor lost.
struct Open {
    left: usize,
    is_open: Vec<bool>,
}

impl Open {
    /// Ends the life of a message, unless it has ended.
    fn close(&mut self, message: u32) {
        self.left -= usize::from(std::mem::take(&mut self.is_open[message as usize]));
    }

    fn has(&self, message: u32) -> bool {
        self.is_open[message as usize]
    }
}

/// `worker` and `message` are numbers in the plan.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A message arrives at the broker.
    Arrives { message: u32 },
    /// A message arrives at its worker.
    Received { worker: u32, sent: Sent },
    /// A thread completes a message.
    Finished { worker: u32, sent: Sent, service_ns: u64 },
    /// A worker resumes after a pause, or gets threads.
    Resumes { worker: u32 },
    /// A worker writes acknowledgements that have waited for others, unless it has done so since.
    WriteDue { worker: u32 },
    /// The last segment of a worker is confirmed.
    Confirmed { worker: u32 },
    /// A worker's ping is due, unless it has sent further pings since.
    PingDue { worker: u32, pings: u32 },
    /// A ping arrives at the broker.
    Ping { worker: u32, report: Option<LoadReport> },
    /// An acknowledgement or rejection arrives at the broker.
    Answered { worker: u32, message: u32, feedback: Feedback },
    /// The time for an acknowledgement is over.
    Overdue { worker: u32, message: u32 },
    /// The pause of a rejected message is over.
    Returns { message: u32 },
    /// The answer to a probe is due.
    Probed { worker: u32 },
    /// A worker subscribes.
    Joins { worker: u32 },
    /// A worker leaves or dies.
    Leaves { worker: u32, dies: bool },
}

impl<'a> Simulation<'a> {
    fn new(plan: &'a Plan<'a>, is_acknowledged: bool, chooser: Chooser, own: &Arc<Choosers>) -> Self {
        let mut events = Events::new();
        for (worker, of) in (0..).zip(&plan.workers) {
            events.schedule(of.joins, Event::Joins { worker });
            if let Some(leaving) = of.leaves {
                events.schedule(leaving.at, Event::Leaves { worker, dies: leaving.dies });
            }
            for (_, end) in &of.pauses {
                events.schedule(*end, Event::Resumes { worker });
            }
            for (at, _) in &of.thread_steps {
                events.schedule(*at, Event::Resumes { worker });
            }
        }
        if let Some(first) = plan.messages.first() {
            events.schedule(first.at, Event::Arrives { message: 0 });
        }
        let unseen = |message: &crate::plan::Message| Delivery {
            arrived: message.at,
            worker: None,
            taken: None,
            finished: None,
            is_dead: false,
        };
        Self {
            plan,
            is_acknowledged,
            rule: match chooser {
                Chooser::Policy(policy) => Some(rules::policy(policy, own, plan, is_acknowledged)),
                Chooser::Rival(rival) => Some(rival.rule(plan, is_acknowledged)),
                Chooser::CentralQueue => None,
            },
            events,
            workers: plan.workers.iter().map(Worker::new).collect(),
            members: Vec::new(),
            waiting: FairQueue::new(),
            deliveries: plan.messages.iter().map(unseen).collect(),
            unacknowledged: Unacknowledged::new(plan.scenario.queue, plan.messages.len(), plan.workers.len()),
            open: Open { left: plan.messages.len(), is_open: vec![true; plan.messages.len()] },
        }
    }

    fn run(&mut self) {
        let last = self.plan.messages.last().map_or(0, |message| message.at.0);
        self.run_until(Nanos(last + PATIENCE_NS));
    }

    fn run_until(&mut self, end: Nanos) {
        while self.open.left > 0 {
            match self.events.next() {
                Some((now, event)) if now <= end => self.handle(event, now),
                _ => break,
            }
        }
    }

    fn handle(&mut self, event: Event, now: Nanos) {
        match event {
            Event::Arrives { message } => {
                if let Some(next) = self.plan.messages.get(message as usize + 1) {
                    self.events.schedule(next.at, Event::Arrives { message: message + 1 });
                }
                self.dispatch(message, now);
            }
            Event::Received { worker, sent } => self.receive(worker, sent, now),
            Event::Finished { worker, sent, service_ns } => self.finish(worker, sent, service_ns, now),
            Event::Resumes { worker } => self.go_on(worker, now),
            Event::WriteDue { worker } => self.write_due(worker, now),
            Event::Confirmed { worker } => self.release(worker, now),
            Event::PingDue { worker, pings } => self.ping(worker, pings, now),
            Event::Ping { worker, report } => {
                if let Some(rule) = &mut self.rule {
                    match report {
                        Some(report) => rule.report(worker as usize, &report, now),
                        None => rule.plain_ping(worker as usize, now),
                    }
                }
                self.serve_waiting(now);
            }
            Event::Answered { worker, message, feedback } => self.answered(worker, message, &feedback, now),
            Event::Overdue { worker, message } => self.overdue(worker, message, now),
            Event::Returns { message } => self.dispatch(message, now),
            Event::Probed { worker } => {
                let of = &self.workers[worker as usize];
                if let (Some(rule), false) = (&mut self.rule, of.is_dead) {
                    rule.probed(worker as usize, of.probe());
                }
            }
            Event::Joins { worker } => self.join(worker, now),
            Event::Leaves { worker, dies } => self.leave(worker, dies, now),
        }
    }

    /// Sends a message to a member of the group, or queues it.
    fn dispatch(&mut self, message: u32, now: Nanos) {
        let takes_turns = self.rule.as_ref().is_some_and(|rule| rule.takes_turns());
        let publisher = if takes_turns { self.plan.messages[message as usize].publisher } else { 0 };
        self.waiting.push(publisher.into(), message);
        if self.rule.is_some() { self.serve_waiting(now) } else { self.serve_central_queue(now) }
    }

    /// Sends the messages that wait at the broker, as long as there is a member for the next.
    fn serve_waiting(&mut self, now: Nanos) {
        let Some(rule) = &mut self.rule else { return };
        while let Some(message) = self.waiting.pop() {
            let of = &self.plan.messages[message as usize];
            if rule.drops_expired() && of.expires <= now {
                self.open.close(message);
                continue;
            }
            let Some(worker) = rule.pick(of, self.waiting.len(), now) else {
                return self.waiting.put_back(message);
            };
            for worker in rule.probes() {
                let round_trip_ns = 2 * self.plan.workers[worker].path_ns();
                self.events.schedule(Nanos(now.0 + round_trip_ns), Event::Probed { worker: worker as u32 });
            }
            self.deliveries[message as usize].worker = Some(worker as u32);
            let received = self.workers[worker].arrival(Direction::ToWorker, of.seed, now);
            let sent = Sent { message, at: now, received, ahead: 0 };
            let worker = worker as u32;
            self.events.schedule(received, Event::Received { worker, sent });
            self.unacknowledged.sent(worker, message);
            let within = self.unacknowledged.queue.and_then(|queue| queue.acknowledge_within);
            if let Some(within) = within.filter(|_| self.is_acknowledged) {
                self.events.schedule(Nanos(now.0 + within.ns()), Event::Overdue { worker, message });
            }
        }
    }

    /// Gives messages of the central queue to free threads.
    fn serve_central_queue(&mut self, now: Nanos) {
        while !self.waiting.is_empty() {
            let is_free = |worker: &u32| {
                let worker = &self.workers[*worker as usize];
                worker.free(now) > 0 && worker.plan.pause_end(now).is_none()
            };
            let mean_ns = |worker: &u32| self.workers[*worker as usize].plan.mean_ns(now);
            let free = self.members.iter().copied().filter(is_free).min_by_key(mean_ns);
            let Some((worker, message)) = free.and_then(|worker| Some((worker, self.waiting.pop()?))) else { return };
            self.deliveries[message as usize].worker = Some(worker);
            self.take(worker, Sent { message, at: now, received: now, ahead: 0 }, None, now);
        }
    }

    fn receive(&mut self, worker: u32, sent: Sent, now: Nanos) {
        let of = &mut self.workers[worker as usize];
        if of.is_dead {
            return;
        }
        let sent = Sent { ahead: of.in_flight(), ..sent };
        of.queue.push_back(sent);
        of.segment_received(&sent, now);
        let acknowledged = of.acknowledger.received(sent);
        // A paused process acknowledges when it resumes.
        let acknowledges = of.plan.pause_end(now).unwrap_or(now);
        self.release(worker, now);
        self.acknowledge(worker, acknowledged, acknowledges);
        self.go_on(worker, now);
        self.plan_eager_ping(worker, now);
    }

    /// Lets free threads take messages out of the queue.
    fn go_on(&mut self, worker: u32, now: Nanos) {
        if self.rule.is_none() {
            return self.serve_central_queue(now);
        }
        let of = &self.workers[worker as usize];
        if of.is_dead || of.plan.pause_end(now).is_some() {
            return;
        }
        // The messages of a batch are finished together, in the time of the first.
        let is_batch = of.plan.kind.batch.get() > 1;
        let mut batch_ns = None;
        for _ in 0..of.free(now) {
            let Some(sent) = self.workers[worker as usize].queue.pop_front() else { return };
            let service_ns = self.take(worker, sent, batch_ns, now);
            batch_ns = is_batch.then_some(service_ns);
        }
    }

    /// Begins the work on a message, which takes `service_ns` if that is known. Returns how long it takes.
    fn take(&mut self, worker: u32, sent: Sent, service_ns: Option<u64>, taken: Nanos) -> u64 {
        let rejected_after = self.rejected_after(worker, sent.message);
        let of = &mut self.workers[worker as usize];
        of.busy += 1;
        of.acknowledger.begun();
        self.deliveries[sent.message as usize].taken = Some(taken);
        let seed = self.plan.messages[sent.message as usize].seed;
        let service_ns = rejected_after.or(service_ns).unwrap_or_else(|| of.plan.service_ns(taken, seed));
        let finished = of.plan.finish(taken, service_ns);
        self.events.schedule(finished, Event::Finished { worker, sent, service_ns: finished.0 - taken.0 });
        service_ns
    }

    fn finish(&mut self, worker: u32, sent: Sent, service_ns: u64, now: Nanos) {
        let of = &mut self.workers[worker as usize];
        if of.is_dead {
            return;
        }
        of.busy -= 1;
        if self.rejected_after(worker, sent.message).is_none() {
            self.workers[worker as usize].finished(sent, service_ns, now);
            let finished = &mut self.deliveries[sent.message as usize].finished;
            *finished = finished.or(Some(now));
            self.open.close(sent.message);
        } else if self.rule.is_none() || !self.is_acknowledged {
            self.rejected(sent.message, now);
        }
        let of = &mut self.workers[worker as usize];
        let (is_next_received, was_due) = (!of.queue.is_empty(), of.acknowledger.due());
        let acknowledged = of.acknowledger.completed(sent, service_ns, is_next_received, now);
        if let Some(due) = of.acknowledger.due()
            && was_due != Some(due)
        {
            self.events.schedule(due, Event::WriteDue { worker });
        }
        self.acknowledge(worker, acknowledged, now);
        self.go_on(worker, now);
        self.plan_eager_ping(worker, now);
    }

    fn write_due(&mut self, worker: u32, now: Nanos) {
        let of = &mut self.workers[worker as usize];
        if of.is_dead || of.acknowledger.due().is_none_or(|due| due > now) {
            return;
        }
        if let Some(end) = of.plan.pause_end(now) {
            return self.events.schedule(end, Event::WriteDue { worker });
        }
        let acknowledged = of.acknowledger.write();
        self.acknowledge(worker, acknowledged, now);
    }

    /// Writes acknowledgements, one by one. The kernel may hold them back.
    fn acknowledge(&mut self, worker: u32, all: impl IntoIterator<Item = Acknowledged>, now: Nanos) {
        if !self.is_acknowledged {
            return;
        }
        for acknowledged in all {
            let of = &mut self.workers[worker as usize];
            if of.nagle.is_blocked(now) {
                let confirmed = of.nagle.hold(acknowledged);
                self.events.schedule(confirmed, Event::Confirmed { worker });
            } else {
                self.send(worker, &[acknowledged], now);
            }
        }
    }

    /// Sends the acknowledgements that the kernel has held back, if it may do so now.
    fn release(&mut self, worker: u32, now: Nanos) {
        let of = &mut self.workers[worker as usize];
        if !of.is_dead {
            let released = of.nagle.release(now);
            self.send(worker, &released, now);
        }
    }

    /// Sends acknowledgements in one segment.
    fn send(&mut self, worker: u32, acknowledged: &[Acknowledged], now: Nanos) {
        let Some((first, _)) = acknowledged.first() else { return };
        let seed = self.plan.messages[first.message as usize].seed;
        let of = &mut self.workers[worker as usize];
        let arrives = of.arrival(Direction::ToBroker, seed, now);
        of.segment_sent(arrives, now);
        let queue = of.in_flight();
        for (sent, service_ns) in acknowledged {
            let feedback = Feedback { sent_at: sent.at, queue, service_ns: *service_ns };
            self.events.schedule(arrives, Event::Answered { worker, message: sent.message, feedback });
        }
    }

    fn ping(&mut self, worker: u32, pings: u32, now: Nanos) {
        let of = &mut self.workers[worker as usize];
        let has_left = of.plan.leaves.is_some_and(|leaving| leaving.at <= now);
        if of.pings != pings || has_left {
            return;
        }
        if let Some(end) = of.plan.pause_end(now) {
            return self.events.schedule(end, Event::PingDue { worker, pings });
        }
        if !of.has_eager_ping && self.plan.skips_ping(worker, pings) {
            of.pings += 1;
        } else {
            let report = of.ping(now);
            let arrives = of.arrival(Direction::ToBroker, self.plan.ping_seed(worker, pings), now);
            self.events.schedule(arrives, Event::Ping { worker, report });
        }
        let pings = self.workers[worker as usize].pings;
        let next = Nanos(now.0 + self.plan.scenario.pings.every.ns());
        self.events.schedule(next, Event::PingDue { worker, pings });
    }

    /// Schedules an early ping, if there is a reason for one.
    fn plan_eager_ping(&mut self, worker: u32, now: Nanos) {
        let of = &mut self.workers[worker as usize];
        if !self.plan.scenario.pings.eager || of.has_eager_ping || self.rule.is_none() {
            return;
        }
        if let Some(at) = of.eager_ping_at(now) {
            of.has_eager_ping = true;
            let pings = of.pings;
            self.events.schedule(at, Event::PingDue { worker, pings });
        }
    }

    fn join(&mut self, worker: u32, now: Nanos) {
        self.members.push(worker);
        let plan = self.workers[worker as usize].plan;
        match &mut self.rule {
            Some(rule) => rule.join(worker as usize, plan, now),
            None => return self.serve_central_queue(now),
        }
        self.events.schedule(plan.first_ping, Event::PingDue { worker, pings: 0 });
        self.serve_waiting(now);
    }

    fn leave(&mut self, worker: u32, dies: bool, now: Nanos) {
        self.members.retain(|member| *member != worker);
        if let Some(rule) = &mut self.rule {
            rule.leave(worker as usize);
        }
        if !dies {
            return;
        }
        self.workers[worker as usize].is_dead = true;
        self.unacknowledged.died(worker);
        for message in 0..self.deliveries.len() as u32 {
            let delivery = &mut self.deliveries[message as usize];
            if delivery.worker != Some(worker) || delivery.finished.is_some() || delivery.is_dead {
                continue;
            }
            if self.is_acknowledged {
                (delivery.worker, delivery.taken) = (None, None);
                self.dispatch(message, now);
            } else {
                self.open.close(message);
            }
        }
    }
}

/// Virtual time after the last arrival until open messages count as unfinished: an hour.
const PATIENCE_NS: u64 = 3_600_000_000_000;

#[cfg(test)]
mod tests;
