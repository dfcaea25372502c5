//! Bounds on the log lines that peers cause.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::Config;
use crate::admission::network;
use crate::token_bucket::{Rate, TokenBucket};

/// Bound on the log lines that peers cause, for each network address and for all of them.
///
/// Whoever writes the log asks [`LogLimiter::allows`] before it writes a line with the field `peer`. The broker logs how many
/// lines were suppressed ([`BrokerBuilder::log_limiter`](crate::BrokerBuilder::log_limiter)).
#[derive(Debug)]
pub struct LogLimiter {
    limits: LogLimits,
    addresses: Mutex<Addresses>,
    suppressed: AtomicU64,
    has_suppressed: Notify,
}

/// Lines a second; `None` = no bound.
#[derive(Debug, Clone, Copy)]
struct LogLimits {
    per_address: Option<Rate>,
    all: Option<Rate>,
}

#[derive(Debug)]
struct Addresses {
    all: TokenBucket,
    buckets: HashMap<IpAddr, Bucket>,
    /// Suppressed lines of addresses without a bucket.
    others: u64,
    /// When buckets that were not in use were removed.
    swept_at: Option<Instant>,
}

/// Lines of one address.
#[derive(Debug)]
struct Bucket {
    tokens: TokenBucket,
    /// Suppressed lines that are not logged yet.
    suppressed: u64,
    /// When the first of them was suppressed.
    since: Instant,
}

/// Suppressed lines that were not logged before.
#[derive(Debug, Default, PartialEq, Eq)]
struct Summary {
    /// Addresses with the most lines, and their lines.
    most: Vec<(IpAddr, u64)>,
    /// Lines of all other addresses.
    others: u64,
}

impl LogLimiter {
    /// With the bounds of `[log]`.
    pub fn new(config: &Config) -> Self {
        let (per_address, all) = config.log_rates();
        let now = Instant::now();
        Self {
            limits: LogLimits { per_address, all },
            addresses: Mutex::new(Addresses {
                all: TokenBucket::full(now),
                buckets: HashMap::new(),
                others: 0,
                swept_at: None,
            }),
            suppressed: AtomicU64::new(0),
            has_suppressed: Notify::new(),
        }
    }

    /// Whether a line may be written that this peer caused. If not, the line counts as suppressed.
    pub fn allows(&self, peer: IpAddr) -> bool {
        self.allows_at(peer, Instant::now())
    }

    fn allows_at(&self, peer: IpAddr, now: Instant) -> bool {
        if self.limits.per_address.is_none() && self.limits.all.is_none() {
            return true;
        }
        let is_allowed = self.lock().allows(&self.limits, network(peer), now);
        if !is_allowed {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            self.has_suppressed.notify_one();
        }
        is_allowed
    }

    /// Suppressed lines since the start.
    pub(crate) fn suppressed(&self) -> u64 {
        self.suppressed.load(Ordering::Relaxed)
    }

    /// Logs suppressed lines once the address is quiet, and once a [`SUMMARY_EVERY`] while it is not. Without suppressed lines it
    /// costs nothing.
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

    /// Logs all suppressed lines that are not logged yet.
    pub(crate) fn log_rest(&self) {
        let (summary, _) = self.lock().take_summary(Instant::now(), Duration::ZERO);
        summary.log();
    }

    fn lock(&self) -> MutexGuard<'_, Addresses> {
        // A panic under this lock leaves at worst a line out.
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
        let new = || Bucket { tokens: TokenBucket::full(now), suppressed: 0, since: now };
        let bucket = has_place.then(|| self.buckets.entry(address).or_insert_with(new));
        let Some(bucket) = bucket else {
            let is_allowed = limits.all.is_none_or(|rate| self.all.try_take(rate, now));
            self.others += u64::from(!is_allowed);
            return is_allowed;
        };
        let is_allowed = limits.per_address.is_none_or(|rate| bucket.tokens.try_take(rate, now))
            && limits.all.is_none_or(|rate| self.all.try_take(rate, now));
        if !is_allowed {
            if bucket.suppressed == 0 {
                bucket.since = now;
            }
            bucket.suppressed += 1;
        }
        is_allowed
    }

    /// Of addresses whose buckets are full again, or that have waited for `patience`; and whether others wait still.
    fn take_summary(&mut self, now: Instant, patience: Duration) -> (Summary, bool) {
        let mut due = Vec::new();
        let mut has_more = false;
        for (address, bucket) in self.buckets.iter_mut().filter(|(_, bucket)| bucket.suppressed > 0) {
            if bucket.tokens.is_full(now) || now.saturating_duration_since(bucket.since) >= patience {
                due.push((*address, std::mem::take(&mut bucket.suppressed)));
            } else {
                has_more = true;
            }
        }
        due.sort_unstable_by_key(|&(address, lines)| (std::cmp::Reverse(lines), address));
        let rest = due.split_off(due.len().min(SUMMARY_ADDRESSES));
        let others = rest.iter().map(|(_, lines)| lines).sum::<u64>() + std::mem::take(&mut self.others);
        (Summary { most: due, others }, has_more)
    }
}

impl Summary {
    fn log(&self) {
        for (address, lines) in &self.most {
            tracing::warn!(%address, lines, "log lines suppressed");
        }
        if self.others > 0 {
            tracing::warn!(lines = self.others, "log lines of further addresses suppressed");
        }
    }
}

/// Addresses with a bucket of their own. Where all are in use, a further address shares the bound of all.
const ADDRESSES_MAX: usize = 4096;
/// Buckets are looked through for unused ones so often at most.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// Addresses that are named at a time.
const SUMMARY_ADDRESSES: usize = 10;
/// How often it is looked which addresses are quiet.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the suppressed lines of an address that is not quiet are logged.
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
    fn each_address_has_its_own_lines() {
        let (limiter, now) = limiter("[log]\nlines_per_second_per_address = 5");
        assert_eq!(allowed(&limiter, address(1), 100, now), 5);
        assert_eq!(allowed(&limiter, address(2), 5, now), 5);
        assert_eq!(allowed(&limiter, address(1), 100, now + Duration::from_secs(2)), 5);
        assert_eq!(limiter.suppressed(), 190);
    }

    #[test]
    fn addresses_share_the_bound_of_all() {
        let (limiter, now) = limiter("[log]\nlines_per_second = 50");
        let written = (0..100).map(|number| allowed(&limiter, address(number), 5, now)).sum::<usize>();
        assert_eq!((written, limiter.suppressed()), (50, 450));
    }

    #[test]
    fn zero_suppresses_nothing() {
        let (limiter, now) = limiter("[log]\nlines_per_second = 0\nlines_per_second_per_address = 0");
        assert_eq!(allowed(&limiter, address(1), 100_000, now), 100_000);
        assert!(limiter.lock().buckets.is_empty());
    }

    #[test]
    fn suppressed_lines_are_summed_up_once_per_address() {
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
