use std::time::{Duration, Instant};

use tenbin_client::{LoadReporter, Message};

use super::shared::Shared;
use super::timeline::Timeline;
use crate::payload::Stamp;
use crate::{Clock, Receipt};

/// A message in a worker's queue.
#[derive(Debug, Clone)]
pub(super) struct Arrival {
    pub(super) stamp: Stamp,
    pub(super) received_at: Instant,
    /// The message to acknowledge after processing, if the worker does so.
    pub(super) to_acknowledge: Option<Message>,
}

/// Record of an arrival.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivery {
    pub(crate) stamp: Stamp,
    pub(crate) received_ns: u64,
    /// Whether it is the first copy of its message.
    pub(crate) receipt: Receipt,
    /// `None` if the message was still queued when the run ended.
    pub(crate) taken: Option<Taken>,
}

/// Processing times of a message that its worker took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    /// Time by the timeline, up to which latency is measured.
    pub(crate) taken_ns: u64,
    /// When the worker's thread took the message; later than `taken_ns` by the timer's delay.
    pub(crate) observed_ns: u64,
    pub(crate) finished_ns: u64,
}

/// Record of a worker, thread by thread, each in the order of taking.
#[derive(Debug, Default)]
pub(crate) struct WorkerRecord {
    pub(crate) deliveries: Vec<Delivery>,
    /// Messages that it had, and had not finished, when it died.
    pub(crate) died_with_it: u64,
    /// Time of each load report by the run's clock, and its mean processing time.
    pub(crate) reports: Vec<(u64, Duration)>,
}

/// One worker, or one of its threads: takes messages out of the queue and is busy with each for its service time.
pub(super) struct Worker {
    pub(super) timeline: Timeline,
    pub(super) clock: Clock,
    /// Source of the load reports of the worker's client.
    pub(super) reporter: LoadReporter,
    /// Time of its death, by the run's clock; [`u64::MAX`] for never.
    pub(super) dies_ns: u64,
}

impl WorkerRecord {
    /// Adds the record of another thread of the same worker.
    pub(super) fn add(&mut self, other: Self) {
        self.deliveries.extend(other.deliveries);
        self.died_with_it += other.died_with_it;
        self.reports.extend(other.reports);
    }
}

impl Worker {
    /// Works until `next`, which waits for a message, returns `None`; passes each finished message to `acknowledge`.
    ///
    /// After the run is stopped, it only records messages.
    pub(super) fn work(
        mut self,
        shared: &Shared,
        mut next: impl FnMut() -> Option<Arrival>,
        acknowledge: impl Fn(&Message),
    ) -> WorkerRecord {
        let mut record = WorkerRecord::default();
        while let Some(Arrival { stamp, received_at, to_acknowledge }) = next() {
            let received_ns = self.clock.at_ns(received_at);
            let mut taken = None;
            if !shared.is_stopped() {
                let slot = self.timeline.take(stamp.sequence, received_ns, stamp.created_ns);
                self.clock.sleep_until(slot.taken_ns.min(self.dies_ns));
                self.reporter.started();
                let observed_ns = self.clock.now_ns();
                self.clock.sleep_until(slot.finished_ns.min(self.dies_ns));
                if slot.finished_ns > self.dies_ns {
                    record.died_with_it += 1;
                    continue;
                }
                self.reporter.finish_after(Duration::from_nanos(slot.finished_ns - slot.taken_ns));
                taken = Some(Taken { taken_ns: slot.taken_ns, observed_ns, finished_ns: slot.finished_ns });
                to_acknowledge.as_ref().inspect(|message| acknowledge(message));
            }
            // A message counts as received once it is processed. If it dies with a worker and is not sent again, it is
            // lost.
            let receipt = shared.receive(stamp.sequence);
            record.deliveries.push(Delivery { stamp, received_ns, receipt, taken });
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use super::super::timeline::Pace;
    use super::*;

    fn work(service: Duration, clock: Clock, shared: &Shared, arrivals: Vec<Arrival>, dies_ns: u64) -> WorkerRecord {
        let reporter = LoadReporter::new(Duration::from_secs(1));
        let worker = Worker { timeline: Timeline::new(Pace::steady(service)), clock, reporter, dies_ns };
        let mut queue = arrivals.into_iter();
        worker.work(shared, || queue.next(), |_| {})
    }

    fn arrivals(shared: &Shared, count: usize, received_at: Instant) -> Vec<Arrival> {
        let arrival = |_| {
            let stamp = Stamp { run: 0, sequence: shared.publish(), created_ns: 0 };
            Arrival { stamp, received_at, to_acknowledge: None }
        };
        (0..count).map(arrival).collect()
    }

    #[test]
    fn messages_in_a_queue_follow_each_other_without_a_gap() {
        let (clock, shared, received_at) = (Clock::start(), Shared::default(), Instant::now());
        let arrivals = arrivals(&shared, 20, received_at);
        let record = work(Duration::from_millis(1), clock, &shared, arrivals, u64::MAX);

        // Taken at the first arrival plus whole service times, however late the thread woke.
        let first_ns = clock.at_ns(received_at);
        assert_eq!(record.deliveries.len(), 20);
        for (index, delivery) in record.deliveries.iter().enumerate() {
            let taken = delivery.taken.expect("the run goes on");
            assert_eq!(taken.taken_ns, first_ns + index as u64 * 1_000_000);
            assert!(taken.observed_ns >= taken.taken_ns);
        }
        assert_eq!(shared.totals().received, 20);
    }

    #[test]
    fn a_stopped_worker_empties_its_queue_without_working() {
        let (clock, shared) = (Clock::start(), Shared::default());
        let mut arrivals = arrivals(&shared, 1, Instant::now());
        shared.stop();
        arrivals.extend([arrivals[0].clone(), arrivals[0].clone()]);
        let deliveries = work(Duration::from_secs(3600), clock, &shared, arrivals, u64::MAX).deliveries;
        assert!(deliveries.iter().all(|delivery| delivery.taken.is_none()));
        let receipts: Vec<_> = deliveries.iter().map(|delivery| delivery.receipt).collect();
        assert_eq!(receipts, [Receipt::First, Receipt::Duplicate, Receipt::Duplicate]);
    }

    #[test]
    fn unfinished_messages_die_with_their_worker() {
        let (clock, shared, received_at) = (Clock::start(), Shared::default(), Instant::now());
        let arrivals = arrivals(&shared, 5, received_at);
        // In the middle of the third message.
        let dies_ns = clock.at_ns(received_at) + 2_500_000;
        let record = work(Duration::from_millis(1), clock, &shared, arrivals, dies_ns);
        assert_eq!((record.deliveries.len(), record.died_with_it), (2, 3));
        assert_eq!((shared.totals().received, shared.totals().lost), (2, 3));
    }
}
