use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenbin_balancer::LoadReport;
use tokio::sync::Notify;

/// Counter of a worker's queued messages and processing times, for the load reports of its [`Client`](crate::Client).
///
/// The client adds each received message to the queue. The application calls [`start`](Self::start) or
/// [`started`](Self::started) when it takes a message, and ends the measurement when the message is done. Each report
/// has the queue's length and the mean processing time since the last report, and resets the mean.
///
/// Reports are sent once per interval, and earlier after a large change, at least [`EAGER_GAP`](Self::EAGER_GAP) apart.
/// [`eager`](Self::eager) turns early reports off. A large change is any of these:
///
/// * The first message on a connection is done.
/// * The mean is at least 1.5 times the last reported one, or at most two thirds of it.
/// * The queue's length is at least four more than twice the reported one.
///
/// Clones share the counters, which are atomics that any thread may use without waiting. Use one reporter per client:
/// two clients would share and reset one mean.
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
    eager: bool,
    counters: Arc<Counters>,
}

impl LoadReporter {
    /// Shortest interval; shorter values count as this one.
    pub const INTERVAL_MIN: Duration = Duration::from_millis(1);

    /// Shortest time from a report to an early one.
    pub const EAGER_GAP: Duration = Duration::from_millis(100);

    /// Makes a reporter with this interval; if pings carry the reports, Keep Alive may shorten it. The thesis uses one
    /// second.
    pub fn new(interval: Duration) -> Self {
        Self { interval: interval.max(Self::INTERVAL_MIN), eager: true, counters: Arc::default() }
    }

    /// Whether reports are also sent early after a large change; default true. The thesis has regular reports only.
    #[must_use]
    pub fn eager(mut self, eager: bool) -> Self {
        self.eager = eager;
        self
    }

    /// Keeps the last `limit` reports for [`LoadReporter::kept`], at most 40 bytes each; default 0.
    ///
    /// Call it before cloning: it resets the counters.
    #[must_use]
    pub fn keep(mut self, limit: usize) -> Self {
        self.counters = Arc::new(Counters { kept_max: limit, ..Counters::default() });
        self
    }

    /// Returns the reports that [`LoadReporter::keep`] has kept, oldest first, with their times.
    pub fn kept(&self) -> Vec<(Instant, LoadReport)> {
        self.counters.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    /// The interval between regular reports.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Takes a message out of the queue, and measures until [`Processing::finish`] or drop.
    pub fn start(&self) -> Processing {
        self.started();
        Processing { reporter: self.clone(), since: Instant::now() }
    }

    /// Takes a message out of the queue without measuring.
    pub fn started(&self) {
        let _ =
            self.counters.queue.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |messages| messages.checked_sub(1));
    }

    /// Adds a measured processing time, without changing the queue.
    ///
    /// Values above [`LoadReport::PROCESSING_TIME_MAX`] count as that.
    pub fn finish_after(&self, processing_time: Duration) {
        let nanos = processing_time.min(LoadReport::PROCESSING_TIME_MAX).as_nanos() as u64;
        let _ = self.counters.processed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            Some(Processed::from_word(word).plus(nanos).to_word())
        });
        self.look_for_news();
    }

    /// Asks for no further messages until [`resume`](Self::resume). Reported at once, and in every report.
    ///
    /// A broker that supports this gives unsent messages to others. The application should finish the messages it
    /// already has.
    pub fn drain(&self) {
        self.set_draining(true);
    }

    /// Asks for messages again after [`drain`](Self::drain). Reported at once.
    pub fn resume(&self) {
        self.set_draining(false);
    }

    /// Takes a message out of the queue and measures `f`, even if `f` panics.
    pub fn process<R>(&self, f: impl FnOnce() -> R) -> R {
        let _processing = self.start();
        f()
    }

    /// Returns the present values without resetting the mean.
    pub fn snapshot(&self) -> LoadReport {
        self.report(self.counters.processed.load(Ordering::Relaxed))
    }

    /// Returns a report and resets the mean, but not the queue. The client calls this for each report.
    pub fn take(&self) -> LoadReport {
        // First, so that any later change counts for the next report.
        self.counters.has_news.store(false, Ordering::Relaxed);
        let processed = self.counters.processed.swap(0, Ordering::Relaxed);
        let report = self.report(processed);
        self.counters.reported_queue.store(report.messages_in_queue, Ordering::Relaxed);
        let processed = Processed::from_word(processed);
        if processed.messages > 0 {
            self.counters.reported_mean.store(processed.mean_ns(), Ordering::Relaxed);
        }
        self.counters.keep(report);
        report
    }

    /// Adds a received message. Call it before the application can see the message, which could otherwise be taken out
    /// first.
    pub(crate) fn arrived(&self) {
        self.counters.queue.fetch_add(1, Ordering::Relaxed);
        self.look_for_news();
    }

    /// Resets the reported values at the start of a connection, since its broker knows none.
    pub(crate) fn connected(&self) {
        self.counters.reported_queue.store(0, Ordering::Relaxed);
        self.counters.reported_mean.store(NONE_REPORTED, Ordering::Relaxed);
        self.counters.has_news.store(self.counters.draining.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether an early report is due.
    pub(crate) fn has_news(&self) -> bool {
        self.counters.has_news.load(Ordering::Relaxed)
    }

    /// Waits until an early report is due. Cancel safe.
    pub(crate) async fn news(&self) {
        self.counters.news.notified().await;
    }

    fn set_draining(&self, draining: bool) {
        if self.counters.draining.swap(draining, Ordering::Relaxed) != draining {
            self.tell_news();
        }
    }

    fn look_for_news(&self) {
        if self.eager && !self.has_news() && self.counters.have_moved() {
            self.tell_news();
        }
    }

    fn tell_news(&self) {
        if !self.counters.has_news.swap(true, Ordering::Relaxed) {
            self.counters.news.notify_one();
        }
    }

    fn report(&self, processed: u64) -> LoadReport {
        LoadReport {
            messages_in_queue: self.counters.queue.load(Ordering::Relaxed),
            processing_time: Duration::from_nanos(Processed::from_word(processed).mean_ns()),
            draining: self.counters.draining.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for LoadReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadReporter")
            .field("interval", &self.interval)
            .field("eager", &self.eager)
            .field("now", &self.snapshot())
            .finish()
    }
}

/// Measurement of one message; its end adds the duration to the mean.
#[derive(Debug)]
#[must_use = "dropped at once it measures nothing"]
pub struct Processing {
    reporter: LoadReporter,
    since: Instant,
}

impl Processing {
    /// Ends the measurement, as drop does.
    pub fn finish(self) {}
}

impl Drop for Processing {
    fn drop(&mut self) {
        self.reporter.finish_after(self.since.elapsed());
    }
}

/// Counters with relaxed ordering: each word is consistent by itself and orders nothing else.
#[derive(Debug)]
struct Counters {
    /// Messages received and not taken out. The client's task adds, the application subtracts, never below 0.
    queue: AtomicU64,
    /// A [`Processed`] in one word, so that count and total always match. The application adds, the client's task swaps
    /// it for 0.
    processed: AtomicU64,
    /// Queue length in the last report on this connection. Written by the client's task.
    reported_queue: AtomicU64,
    /// Last reported mean on this connection in ns, or [`NONE_REPORTED`]. Written by the client's task.
    reported_mean: AtomicU64,
    /// Written by the application.
    draining: AtomicBool,
    /// Whether an early report is due. Any thread sets it; the client's task clears it when it reports.
    has_news: AtomicBool,
    /// Wakes the client's task when `has_news` becomes true.
    news: Notify,
    /// The last `kept_max` reports. Locked once per report, and never while another lock is held.
    kept: Mutex<VecDeque<(Instant, LoadReport)>>,
    kept_max: usize,
}

impl Counters {
    fn keep(&self, report: LoadReport) {
        if self.kept_max == 0 {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == self.kept_max {
            kept.pop_front();
        }
        kept.push_back((Instant::now(), report));
    }

    /// Whether queue or mean differ much from the last report.
    fn have_moved(&self) -> bool {
        let processed = Processed::from_word(self.processed.load(Ordering::Relaxed));
        let reported = self.reported_mean.load(Ordering::Relaxed);
        let mean = processed.mean_ns();
        // Both are at most an hour, so the products fit.
        let is_far = || mean != reported && (2 * mean >= 3 * reported || 3 * mean <= 2 * reported);
        let mean_has_moved = reported == NONE_REPORTED || is_far();
        let reported_queue = self.reported_queue.load(Ordering::Relaxed);
        processed.messages > 0 && mean_has_moved || self.queue.load(Ordering::Relaxed) >= 2 * reported_queue + 4
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            queue: AtomicU64::new(0),
            processed: AtomicU64::new(0),
            reported_queue: AtomicU64::new(0),
            reported_mean: AtomicU64::new(NONE_REPORTED),
            draining: AtomicBool::new(false),
            has_news: AtomicBool::new(false),
            news: Notify::new(),
            kept: Mutex::default(),
            kept_max: 0,
        }
    }
}

/// Messages processed since the last report.
///
/// ```text
///   bit   63 … 42           41 … 0
///         messages (22)     total processing time, ns (42: 73 minutes)
/// ```
///
/// On overflow, count and total are halved: the mean stays, and newer messages weigh more.
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

    /// `nanos` is at most an hour, so the halving ends, at the latest with zero.
    fn plus(mut self, nanos: u64) -> Self {
        while self.messages == MESSAGES_MAX || self.total_ns + nanos > TOTAL_MAX {
            let half = self.messages / 2;
            // 42 and 22 bits: the product fits.
            self.total_ns = (self.total_ns * half).checked_div(self.messages).unwrap_or(0);
            self.messages = half;
        }
        Self { messages: self.messages + 1, total_ns: self.total_ns + nanos }
    }

    fn mean_ns(self) -> u64 {
        self.total_ns.checked_div(self.messages).unwrap_or(0)
    }
}

const TOTAL_BITS: u32 = 42;
const TOTAL_MAX: u64 = (1 << TOTAL_BITS) - 1;
const MESSAGES_MAX: u64 = u64::MAX >> TOTAL_BITS;
/// Marker for no reported mean; greater than any mean.
const NONE_REPORTED: u64 = u64::MAX;

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
    fn last_reports_are_kept_on_request() {
        let (plain, keeping) = (reporter(), reporter().keep(2));
        for reporter in [&plain, &keeping] {
            for millis in [10, 20, 30] {
                reporter.finish_after(Duration::from_millis(millis));
                reporter.take();
            }
        }
        assert!(plain.kept().is_empty());
        let kept = keeping.clone().kept();
        let means = kept.iter().map(|(_, report)| report.processing_time.as_millis());
        assert!(means.eq([20, 30]) && kept[0].0 <= kept[1].0, "{kept:?}");
    }

    #[test]
    fn the_queue_never_goes_below_zero() {
        let reporter = reporter();
        reporter.started();
        reporter.arrived();
        assert_eq!(reporter.snapshot().messages_in_queue, 1);
    }

    #[test]
    fn guard_measures_until_drop_or_finish() {
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
    fn overflow_keeps_the_mean() {
        let reporter = reporter();
        let hour = LoadReport::PROCESSING_TIME_MAX;
        (0..5).for_each(|_| reporter.finish_after(hour * 2));
        assert_eq!(reporter.take().processing_time, hour);

        let mut processed = Processed { messages: MESSAGES_MAX - 1, total_ns: (MESSAGES_MAX - 1) * 100 };
        (0..10).for_each(|_| processed = processed.plus(100));
        assert_eq!(processed.mean_ns(), 100);
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
    fn first_mean_and_changes_by_half_are_reported_early() {
        let reporter = reporter();
        let finish = |micros| reporter.finish_after(Duration::from_micros(micros));
        let report_after = |micros: &[u64]| {
            micros.iter().for_each(|&micros| finish(micros));
            let had_news = reporter.has_news();
            reporter.take();
            (had_news, reporter.has_news())
        };
        assert_eq!(report_after(&[]), (false, false));
        assert_eq!(report_after(&[1000]), (true, false), "the first");
        assert_eq!(report_after(&[1499, 1000, 700]), (false, false));
        assert_eq!(report_after(&[1600]), (true, false), "of 1066");
        assert_eq!(report_after(&[1100, 1500]), (false, false));
        assert_eq!(report_after(&[866]), (true, false), "two thirds of 1300");
        assert_eq!(report_after(&[]), (false, false), "nothing done is no mean");
        assert_eq!(report_after(&[866, 900]), (false, false), "against the last one that was reported");
        reporter.connected();
        assert_eq!(report_after(&[883]), (true, false), "the first on this connection");
    }

    #[test]
    fn queue_above_twice_the_reported_one_is_reported_early() {
        let reporter = reporter();
        for (reported, news_at) in [(0, 4), (4, 12), (12, 28)] {
            for length in reported + 1..=news_at {
                assert!(!reporter.has_news());
                reporter.arrived();
                assert_eq!(reporter.has_news(), length == news_at);
            }
            assert_eq!(reporter.take().messages_in_queue, news_at);
        }
    }

    #[test]
    fn without_eager_only_draining_is_reported_early() {
        let reporter = reporter().eager(false);
        (0..100).for_each(|_| reporter.arrived());
        reporter.finish_after(Duration::from_secs(1));
        assert!(!reporter.has_news());
        for _ in 0..2 {
            reporter.drain();
            assert!(reporter.has_news() && reporter.take().draining && !reporter.has_news());
            reporter.drain();
            assert!(!reporter.has_news(), "it was told");
            reporter.connected();
            assert!(reporter.has_news() && reporter.snapshot().draining, "the next connection is told too");
            reporter.take();
            reporter.resume();
            assert!(reporter.has_news() && !reporter.take().draining);
        }
    }

    #[test]
    fn zero_interval_counts_as_the_shortest() {
        assert_eq!(LoadReporter::new(Duration::ZERO).interval(), LoadReporter::INTERVAL_MIN);
    }
}
