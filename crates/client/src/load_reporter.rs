use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenbin_balancer::LoadReport;

/// Counts what a worker has to do and how long it takes, for the extended pings of its [`Client`](crate::Client).
///
/// The client adds each received message to the queue; the application marks when it takes one out
/// ([`start`](Self::start) or [`started`](Self::started)) and when it is done with it. Each ping carries the
/// queue's length and the mean processing time since the ping before, and begins the mean anew.
///
/// Clones share the counters, which any thread may use: they are atomics, nobody waits. One reporter belongs to
/// one client; two would share and reset one mean.
///
/// ```
/// use std::time::Duration;
/// use tenbin_client::LoadReporter;
///
/// let reporter = LoadReporter::new(Duration::from_secs(1));
/// reporter.process(|| { /* one message */ });
/// reporter.finish_after(Duration::from_millis(25));
/// assert!(reporter.snapshot().processing_time <= Duration::from_millis(25));
/// ```
#[derive(Clone)]
pub struct LoadReporter {
    interval: Duration,
    counters: Arc<Counters>,
}

impl LoadReporter {
    /// Shortest interval; what is shorter counts as that.
    pub const INTERVAL_MIN: Duration = Duration::from_millis(1);

    /// A reporter that wants a ping every `interval`, at least every Keep Alive; the thesis has one second.
    pub fn new(interval: Duration) -> Self {
        Self { interval: interval.max(Self::INTERVAL_MIN), counters: Arc::default() }
    }

    /// The interval it was made with.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// A message is taken out of the queue: queue −1; measures until [`Processing::finish`] or drop.
    pub fn start(&self) -> Processing {
        self.started();
        Processing { reporter: self.clone(), since: Instant::now() }
    }

    /// A message is taken out of the queue: queue −1, nothing is measured.
    pub fn started(&self) {
        let _ =
            self.counters.queue.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |messages| messages.checked_sub(1));
    }

    /// A message is done that took `processing_time`, for callers that know it. Leaves the queue as it is.
    /// At most [`LoadReport::PROCESSING_TIME_MAX`]; what is above counts as that.
    pub fn finish_after(&self, processing_time: Duration) {
        let nanos = processing_time.min(LoadReport::PROCESSING_TIME_MAX).as_nanos() as u64;
        let _ = self.counters.processed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            Some(Processed::from_word(word).plus(nanos).to_word())
        });
    }

    /// Takes a message out of the queue and measures `f`, also when it panics.
    pub fn process<R>(&self, f: impl FnOnce() -> R) -> R {
        let _processing = self.start();
        f()
    }

    /// What a ping would say now; resets nothing.
    pub fn snapshot(&self) -> LoadReport {
        self.report(self.counters.processed.load(Ordering::Relaxed))
    }

    /// What a ping says, which begins the mean anew; the queue stays. The client does this at each ping.
    pub fn take(&self) -> LoadReport {
        self.report(self.counters.processed.swap(0, Ordering::Relaxed))
    }

    /// A message was received. Comes before the message is within the application's reach, which could otherwise
    /// take it out of the queue before it is in.
    pub(crate) fn arrived(&self) {
        self.counters.queue.fetch_add(1, Ordering::Relaxed);
    }

    fn report(&self, processed: u64) -> LoadReport {
        LoadReport {
            messages_in_queue: self.counters.queue.load(Ordering::Relaxed),
            processing_time: Processed::from_word(processed).mean(),
            draining: false,
        }
    }
}

impl fmt::Debug for LoadReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadReporter").field("interval", &self.interval).field("now", &self.snapshot()).finish()
    }
}

/// One message under way at the application; its end adds its duration to the mean.
#[derive(Debug)]
#[must_use = "dropped at once it measures nothing"]
pub struct Processing {
    reporter: LoadReporter,
    since: Instant,
}

impl Processing {
    /// The message is done. Drop does the same.
    pub fn finish(self) {}
}

impl Drop for Processing {
    fn drop(&mut self) {
        self.reporter.finish_after(self.since.elapsed());
    }
}

/// Relaxed throughout: each word is whole by itself and orders nothing else.
#[derive(Debug, Default)]
struct Counters {
    /// Messages received and not taken out. The client's task adds, the application subtracts, never below 0.
    queue: AtomicU64,
    /// A [`Processed`], in one word so that count and total always belong together. The application adds, the
    /// client's task swaps it for 0.
    processed: AtomicU64,
}

/// What was processed since the last report.
///
/// ```text
///   bit   63 … 42           41 … 0
///         messages (22)     total processing time, ns (42: 73 minutes)
/// ```
///
/// What does not fit makes all that came before count half: the mean stays, and leans to what is newer.
#[derive(Clone, Copy)]
struct Processed {
    messages: u64,
    total_ns: u64,
}

impl Processed {
    fn from_word(word: u64) -> Self {
        Self { messages: word >> TOTAL_BITS, total_ns: word & TOTAL_MAX }
    }

    fn to_word(self) -> u64 {
        self.messages << TOTAL_BITS | self.total_ns
    }

    /// `nanos` is at most an hour, so halving ends at the latest with nothing.
    fn plus(mut self, nanos: u64) -> Self {
        while self.messages == MESSAGES_MAX || self.total_ns + nanos > TOTAL_MAX {
            let half = self.messages / 2;
            // 42 and 22 bits: the product fits.
            self.total_ns = (self.total_ns * half).checked_div(self.messages).unwrap_or(0);
            self.messages = half;
        }
        Self { messages: self.messages + 1, total_ns: self.total_ns + nanos }
    }

    fn mean(self) -> Duration {
        Duration::from_nanos(self.total_ns.checked_div(self.messages).unwrap_or(0))
    }
}

const TOTAL_BITS: u32 = 42;
const TOTAL_MAX: u64 = (1 << TOTAL_BITS) - 1;
const MESSAGES_MAX: u64 = u64::MAX >> TOTAL_BITS;

#[cfg(test)]
mod tests {
    use super::*;

    fn reporter() -> LoadReporter {
        LoadReporter::new(Duration::from_secs(1))
    }

    #[test]
    fn take_resets_the_mean_and_not_the_queue() {
        let reporter = reporter();
        (0..3).for_each(|_| reporter.arrived());
        reporter.started();
        reporter.finish_after(Duration::from_millis(10));
        reporter.finish_after(Duration::from_millis(20));
        let expected = LoadReport { messages_in_queue: 2, processing_time: Duration::from_millis(15), draining: false };
        assert_eq!(reporter.snapshot(), expected);
        assert_eq!(reporter.take(), expected);
        assert_eq!(reporter.take(), LoadReport { processing_time: Duration::ZERO, ..expected });
    }

    #[test]
    fn the_queue_never_goes_below_zero() {
        let reporter = reporter();
        reporter.started();
        reporter.arrived();
        assert_eq!(reporter.snapshot().messages_in_queue, 1);
    }

    #[test]
    fn a_guard_measures_until_it_is_dropped_or_finished() {
        let reporter = reporter();
        reporter.arrived();
        let processing = reporter.start();
        assert_eq!(reporter.snapshot().messages_in_queue, 0);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(reporter.snapshot().processing_time, Duration::ZERO, "not done yet");
        processing.finish();
        assert!(reporter.take().processing_time >= Duration::from_millis(2));
        assert_eq!(reporter.process(|| 7), 7);
        assert!(reporter.snapshot().processing_time > Duration::ZERO);
    }

    #[test]
    fn what_does_not_fit_keeps_the_mean() {
        let reporter = reporter();
        let hour = LoadReport::PROCESSING_TIME_MAX;
        (0..5).for_each(|_| reporter.finish_after(hour * 2));
        assert_eq!(reporter.take().processing_time, hour);

        let mut processed = Processed { messages: MESSAGES_MAX - 1, total_ns: (MESSAGES_MAX - 1) * 100 };
        (0..10).for_each(|_| processed = processed.plus(100));
        assert_eq!(processed.mean(), Duration::from_nanos(100));
        assert!(processed.messages < MESSAGES_MAX);
        assert_eq!(Processed::from_word(processed.to_word()).total_ns, processed.total_ns);
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        let reporter = reporter();
        let reports = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        reporter.arrived();
                        reporter.started();
                        reporter.finish_after(Duration::from_nanos(500));
                    }
                });
            }
            (0..100).map(|_| reporter.take()).collect::<Vec<_>>()
        });
        let means = reports.into_iter().map(|report| report.processing_time.as_nanos());
        assert!(means.into_iter().all(|mean| mean == 0 || mean == 500), "count and total belong together");
        assert_eq!(reporter.snapshot().messages_in_queue, 0);
    }

    #[test]
    fn an_interval_of_nothing_is_the_shortest() {
        assert_eq!(LoadReporter::new(Duration::ZERO).interval(), LoadReporter::INTERVAL_MIN);
    }
}
