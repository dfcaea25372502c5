use std::time::{Duration, Instant};

use tenbin_client::LoadReporter;

use super::shared::Shared;
use crate::payload::Stamp;
use crate::{Clock, Receipt};

/// When a worker takes and finishes its messages: one after the other, each for the same time.
///
/// Deadlines are absolute. While the queue is not empty the next message is taken at the very instant at which
/// the one before is finished, so that a timer which wakes late delays no later message.
///
/// ```text
///   received   m1     m2  m3
///   taken      m1     .   m2        m3         (. = waits)
///   worker     [ service ][ service ][ service ]
/// ```
#[derive(Debug, Clone)]
pub struct Timeline {
    service_ns: u64,
    free_at_ns: u64,
}

/// A message's time with its worker, in nanoseconds of the run's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// When it is taken out of the queue.
    pub taken_ns: u64,
    /// When the worker has finished it.
    pub finished_ns: u64,
}

impl Timeline {
    /// Of a worker that takes `service` for a message and is free.
    pub fn new(service: Duration) -> Self {
        Self { service_ns: service.as_nanos() as u64, free_at_ns: 0 }
    }

    /// The slot of the next message in the queue, which arrived at `received_ns` and was made at `created_ns`.
    pub fn take(&mut self, received_ns: u64, created_ns: u64) -> Slot {
        let taken_ns = received_ns.max(created_ns).max(self.free_at_ns);
        self.free_at_ns = taken_ns + self.service_ns;
        Slot { taken_ns, finished_ns: self.free_at_ns }
    }
}

/// A message in a worker's queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    pub(super) stamp: Stamp,
    pub(super) received_at: Instant,
}

/// What became of an arrival.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivery {
    pub(crate) stamp: Stamp,
    pub(crate) received_ns: u64,
    /// Whether it is the first copy of its message.
    pub(crate) receipt: Receipt,
    /// `None` when the run ended with the message still in the queue.
    pub(crate) taken: Option<Taken>,
}

/// A message that its worker took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    /// By the timeline: what latency is measured to.
    pub(crate) taken_ns: u64,
    /// When the worker's thread really held it; later than `taken_ns` by what the system's timer adds.
    pub(crate) observed_ns: u64,
}

/// One worker: takes messages out of its queue and is busy with each for its service time.
pub(super) struct Worker {
    pub(super) service: Duration,
    pub(super) clock: Clock,
    /// Tells the broker, through the worker's client, how busy it is.
    pub(super) reporter: LoadReporter,
}

impl Worker {
    /// Works until `next`, which waits for a message, has no more. Once the run has been stopped, messages are
    /// still taken down but no longer worked on.
    pub(super) fn work(self, shared: &Shared, mut next: impl FnMut() -> Option<Arrival>) -> Vec<Delivery> {
        let mut timeline = Timeline::new(self.service);
        let mut deliveries = Vec::new();
        while let Some(Arrival { stamp, received_at }) = next() {
            let received_ns = self.clock.at_ns(received_at);
            let receipt = shared.receive(stamp.sequence);
            let mut delivery = Delivery { stamp, received_ns, receipt, taken: None };
            if !shared.is_stopped() {
                let slot = timeline.take(received_ns, stamp.created_ns);
                self.reporter.started();
                delivery.taken = Some(Taken { taken_ns: slot.taken_ns, observed_ns: self.clock.now_ns() });
                self.clock.sleep_until(slot.finished_ns);
                self.reporter.finish_after(self.service);
            }
            deliveries.push(delivery);
        }
        deliveries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(service: Duration, clock: Clock, shared: &Shared, arrivals: Vec<Arrival>) -> Vec<Delivery> {
        let worker = Worker { service, clock, reporter: LoadReporter::new(Duration::from_secs(1)) };
        let mut queue = arrivals.into_iter();
        worker.work(shared, || queue.next())
    }

    #[test]
    fn messages_in_a_queue_follow_each_other_without_a_gap() {
        let (clock, shared, received_at) = (Clock::start(), Shared::default(), Instant::now());
        let arrivals = (0..20)
            .map(|_| Arrival { stamp: Stamp { sequence: shared.publish(), created_ns: 0 }, received_at })
            .collect();
        let deliveries = work(Duration::from_millis(1), clock, &shared, arrivals);

        // However late the thread woke: taken at the first arrival plus whole service times.
        let first_ns = clock.at_ns(received_at);
        assert_eq!(deliveries.len(), 20);
        for (index, delivery) in deliveries.iter().enumerate() {
            let taken = delivery.taken.expect("the run goes on");
            assert_eq!(taken.taken_ns, first_ns + index as u64 * 1_000_000);
            assert!(taken.observed_ns >= taken.taken_ns);
        }
        assert_eq!(shared.totals().received, 20);
    }

    #[test]
    fn a_stopped_worker_empties_its_queue_without_working() {
        let (clock, shared) = (Clock::start(), Shared::default());
        let stamp = Stamp { sequence: shared.publish(), created_ns: 0 };
        shared.stop();
        let arrivals = vec![Arrival { stamp, received_at: Instant::now() }; 3];
        let deliveries = work(Duration::from_secs(3600), clock, &shared, arrivals);
        assert!(deliveries.iter().all(|delivery| delivery.taken.is_none()));
        let receipts: Vec<_> = deliveries.iter().map(|delivery| delivery.receipt).collect();
        assert_eq!(receipts, [Receipt::First, Receipt::Duplicate, Receipt::Duplicate]);
    }
}
