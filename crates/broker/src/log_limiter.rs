//! Bounds on the log lines that peers cause.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::Config;
use crate::values::{Rate, TokenBucket, network};

/// Bound on the log lines that peers cause, for each network address and in total.
///
/// The subscriber that writes the log must call [`LogLimiter::allows`] for each line with the field `peer`, and
/// [`LogLimiter::allows_kind`] for all other lines. The broker logs the number of suppressed lines
/// ([`BrokerBuilder::log_limiter`](crate::BrokerBuilder::log_limiter)).
#[derive(Debug)]
pub struct LogLimiter {
    limits: LogLimits,
    addresses: Mutex<Addresses>,
    suppressed: AtomicU64,
    has_suppressed: Notify,
}

/// Lines per second; `None` = no bound.
#[derive(Debug, Clone, Copy)]
struct LogLimits {
    per_address: Option<Rate>,
    all: Option<Rate>,
}

#[derive(Debug)]
struct Addresses {
    all: TokenBucket,
    buckets: HashMap<IpAddr, Bucket>,
    /// Lines without a peer, by their place in the code.
    kinds: HashMap<&'static str, Bucket>,
    /// Suppressed lines of addresses without a bucket.
    others: u64,
    /// Time of the last removal of unused buckets.
    swept_at: Option<Instant>,
}

/// Lines of one address.
#[derive(Debug)]
struct Bucket {
    tokens: TokenBucket,
    /// Suppressed lines that are not in a summary yet.
    suppressed: u64,
    /// Time of the first of them.
    since: Instant,
}

/// Suppressed lines since the last summary.
#[derive(Debug, Default, PartialEq, Eq)]
struct Summary {
    /// Addresses with the most suppressed lines, and their numbers.
    most: Vec<(IpAddr, u64)>,
    /// Suppressed lines of all other addresses.
    others: u64,
    /// Places in the code with suppressed lines without a peer, and their numbers.
    kinds: Vec<(&'static str, u64)>,
}

impl LogLimiter {
    /// Creates a limiter with the bounds of `[log]`.
    pub fn new(config: &Config) -> Self {
        let (per_address, all) = config.log_rates();
        let now = Instant::now();
        Self {
            limits: LogLimits { per_address, all },
            addresses: Mutex::new(Addresses {
                all: TokenBucket::full(now),
                buckets: HashMap::new(),
                kinds: HashMap::new(),
                others: 0,
                swept_at: None,
            }),
            suppressed: AtomicU64::new(0),
            has_suppressed: Notify::new(),
        }
    }

    /// Whether a line that this peer caused may be written. If not, counts it as suppressed.
    pub fn allows(&self, peer: IpAddr) -> bool {
        self.allows_at(peer, Instant::now())
    }

    /// Whether a line without a peer may be written; `kind`: its place in the code. If not, counts it as suppressed.
    pub fn allows_kind(&self, kind: &'static str) -> bool {
        self.allows_kind_at(kind, Instant::now())
    }

    fn allows_kind_at(&self, kind: &'static str, now: Instant) -> bool {
        let Some(rate) = self.limits.all.and(Rate::per_second(KIND_LINES)) else { return true };
        let is_allowed = self.lock().kinds.entry(kind).or_insert_with(|| Bucket::full(now)).allows(Some(rate), now);
        self.note(is_allowed);
        is_allowed
    }

    fn note(&self, is_allowed: bool) {
        if !is_allowed {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            self.has_suppressed.notify_one();
        }
    }

    fn allows_at(&self, peer: IpAddr, now: Instant) -> bool {
        if self.limits.per_address.is_none() && self.limits.all.is_none() {
            return true;
        }
        let is_allowed = self.lock().allows(&self.limits, network(peer), now);
        self.note(is_allowed);
        is_allowed
    }

    /// Number of suppressed lines since the start.
    pub(crate) fn suppressed(&self) -> u64 {
        self.suppressed.load(Ordering::Relaxed)
    }

    /// Logs an address's suppressed lines when it becomes quiet, and each [`SUMMARY_EVERY`] until then.
    ///
    /// Idle while no line is suppressed.
    pub(crate) async fn run(&self) {
        loop {
            self.has_suppressed.notified().await;
            let mut goes_on = true;
            while goes_on {
                tokio::time::sleep(LOOK_EVERY).await;
                let (summary, has_more) = self.lock().take_summary(Instant::now(), SUMMARY_EVERY);
                summary.log();
                goes_on = has_more;
            }
        }
    }

    /// Logs all suppressed lines that are not in a summary yet.
    pub(crate) fn log_rest(&self) {
        let (summary, _) = self.lock().take_summary(Instant::now(), Duration::ZERO);
        summary.log();
    }

    fn lock(&self) -> MutexGuard<'_, Addresses> {
        // A panic under this lock loses one line at worst.
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Addresses {
    fn allows(&mut self, limits: &LogLimits, address: IpAddr, now: Instant) -> bool {
        let has_rested = self.swept_at.is_none_or(|at| now >= at + SWEEP_EVERY);
        if self.buckets.len() >= ADDRESSES_MAX && has_rested && !self.buckets.contains_key(&address) {
            self.swept_at = Some(now);
            self.buckets.retain(|_, bucket| bucket.suppressed > 0 || !bucket.tokens.is_full(now));
        }
        let has_place = self.buckets.len() < ADDRESSES_MAX || self.buckets.contains_key(&address);
        let bucket = has_place.then(|| self.buckets.entry(address).or_insert_with(|| Bucket::full(now)));
        let Some(bucket) = bucket else {
            let is_allowed = limits.all.is_none_or(|rate| self.all.try_take(rate, now));
            self.others += u64::from(!is_allowed);
            return is_allowed;
        };
        let is_allowed = limits.per_address.is_none_or(|rate| bucket.tokens.try_take(rate, now))
            && limits.all.is_none_or(|rate| self.all.try_take(rate, now));
        bucket.note(is_allowed, now);
        is_allowed
    }

    /// Takes the lines of addresses that are quiet (full bucket) or have waited for `patience`.
    ///
    /// Also returns whether other addresses have suppressed lines.
    fn take_summary(&mut self, now: Instant, patience: Duration) -> (Summary, bool) {
        let (mut due, mut kinds) = (Vec::new(), Vec::new());
        let mut has_more = false;
        for (address, bucket) in &mut self.buckets {
            has_more |= bucket.take_due(now, patience, |lines| due.push((*address, lines)));
        }
        for (kind, bucket) in &mut self.kinds {
            has_more |= bucket.take_due(now, patience, |lines| kinds.push((*kind, lines)));
        }
        due.sort_unstable_by_key(|&(address, lines)| (std::cmp::Reverse(lines), address));
        let rest = due.split_off(due.len().min(SUMMARY_ADDRESSES));
        let others = rest.iter().map(|(_, lines)| lines).sum::<u64>() + std::mem::take(&mut self.others);
        (Summary { most: due, others, kinds }, has_more)
    }
}

impl Bucket {
    fn full(now: Instant) -> Self {
        Self { tokens: TokenBucket::full(now), suppressed: 0, since: now }
    }

    fn allows(&mut self, rate: Option<Rate>, now: Instant) -> bool {
        let is_allowed = rate.is_none_or(|rate| self.tokens.try_take(rate, now));
        self.note(is_allowed, now);
        is_allowed
    }

    fn note(&mut self, is_allowed: bool, now: Instant) {
        if !is_allowed {
            if self.suppressed == 0 {
                self.since = now;
            }
            self.suppressed += 1;
        }
    }

    /// Passes on the suppressed lines if they are due. Returns whether some are not.
    fn take_due(&mut self, now: Instant, patience: Duration, take: impl FnOnce(u64)) -> bool {
        if self.suppressed == 0 {
            return false;
        }
        let is_due = self.tokens.is_full(now) || now.saturating_duration_since(self.since) >= patience;
        if is_due {
            take(std::mem::take(&mut self.suppressed));
        }
        !is_due
    }
}

impl Summary {
    fn log(&self) {
        for (kind, lines) in &self.kinds {
            tracing::warn!(kind, lines, "log lines suppressed");
        }
        for (address, lines) in &self.most {
            tracing::warn!(%address, lines, "log lines suppressed");
        }
        if self.others > 0 {
            tracing::warn!(lines = self.others, "log lines of further addresses suppressed");
        }
    }
}

/// Maximum number of buckets. While all are in use, further addresses have only the total bound.
const ADDRESSES_MAX: usize = 4096;
/// Minimum interval between two scans for unused buckets.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// Lines per second of one kind that name no peer; a burst of the same number is allowed.
const KIND_LINES: u64 = 100;
/// Addresses that a summary lists.
const SUMMARY_ADDRESSES: usize = 10;
/// Interval of the check for quiet addresses.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval of the summaries of an address that does not become quiet.
const SUMMARY_EVERY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(text: &str) -> (LogLimiter, Instant) {
        (LogLimiter::new(&Config::parse(text).unwrap()), Instant::now())
    }

    fn address(number: u32) -> IpAddr {
        IpAddr::from((0x0A00_0000 + number).to_be_bytes())
    }

    fn allowed(limiter: &LogLimiter, address: IpAddr, lines: usize, now: Instant) -> usize {
        (0..lines).filter(|_| limiter.allows_at(address, now)).count()
    }

    #[test]
    fn each_address_has_its_own_line_rate() {
        let (limiter, now) = limiter("[log]\nlines_per_second_per_address = 5");
        assert_eq!(allowed(&limiter, address(1), 100, now), 5);
        assert_eq!(allowed(&limiter, address(2), 5, now), 5);
        assert_eq!(allowed(&limiter, address(1), 100, now + Duration::from_secs(2)), 5);
        assert_eq!(limiter.suppressed(), 190);
    }

    #[test]
    fn addresses_share_the_total_line_rate() {
        let (limiter, now) = limiter("[log]\nlines_per_second = 50");
        let written = (0..100).map(|number| allowed(&limiter, address(number), 5, now)).sum::<usize>();
        assert_eq!((written, limiter.suppressed()), (50, 450));
    }

    #[test]
    fn lines_without_peer_are_bounded_by_kind() {
        let (limiter, now) = limiter("");
        let allowed = |kind, lines| (0..lines).filter(|_| limiter.allows_kind_at(kind, now)).count();
        assert_eq!((allowed("a", 1000), allowed("b", 50)), (KIND_LINES as usize, 50));
        let (summary, _) = limiter.lock().take_summary(now, Duration::ZERO);
        assert_eq!((summary.kinds, limiter.suppressed()), (vec![("a", 900)], 900));
    }

    #[test]
    fn zero_suppresses_nothing() {
        let (limiter, now) = limiter("[log]\nlines_per_second = 0\nlines_per_second_per_address = 0");
        assert_eq!(allowed(&limiter, address(1), 100_000, now), 100_000);
        assert!(limiter.lock().buckets.is_empty());
    }

    #[test]
    fn suppressed_lines_are_summarized_once_per_address() {
        let (limiter, now) = limiter("[log]\nlines_per_second_per_address = 5");
        allowed(&limiter, address(1), 100, now);
        allowed(&limiter, address(2), 6, now);
        let minute = Duration::from_secs(60);
        assert_eq!(limiter.lock().take_summary(now, minute), (Summary::default(), true), "no bucket is full yet");
        let quiet = now + Duration::from_secs(1);
        allowed(&limiter, address(2), 10, quiet);
        let (summary, has_more) = limiter.lock().take_summary(quiet, minute);
        assert_eq!((&summary.most[..], summary.others, has_more), (&[(address(1), 95)][..], 0, true));
        let (summary, has_more) = limiter.lock().take_summary(quiet, Duration::ZERO);
        assert_eq!((&summary.most[..], has_more), (&[(address(2), 6)][..], false));
    }

    #[test]
    fn many_addresses_take_bounded_memory_and_few_lines() {
        let (limiter, now) = limiter("[log]\nlines_per_second_per_address = 1");
        for number in 0..50_000 {
            allowed(&limiter, address(number), 3, now);
        }
        assert_eq!(limiter.lock().buckets.len(), ADDRESSES_MAX);
        let (summary, _) = limiter.lock().take_summary(now + Duration::from_secs(1), Duration::ZERO);
        let counted = summary.most.iter().map(|(_, lines)| lines).sum::<u64>() + summary.others;
        assert_eq!((summary.most.len(), counted), (SUMMARY_ADDRESSES, limiter.suppressed()));
        assert!(limiter.suppressed() >= 149_000, "all that is beyond the bound of all");
        let later = now + Duration::from_secs(2);
        assert!(limiter.allows_at(address(60_000), later));
        assert_eq!(limiter.lock().buckets.len(), 1, "full buckets go");
    }
}
