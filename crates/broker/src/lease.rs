//! The lease of a broker: until when it may act.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

/// Until when a broker may act. Clones are the same lease, which belongs to one broker.
///
/// While a broker may not act, it reads no packet, writes none and publishes no Will. Clients stay connected and wait.
/// Each look compares the lease with the clock, so that a process that was stopped sees that its lease has ended.
///
/// The clock is CLOCK_BOOTTIME on Linux, which goes on while the machine is suspended, and CLOCK_MONOTONIC elsewhere. A
/// virtual machine whose clocks are stopped can outlive its lease.
#[derive(Debug, Clone)]
pub struct Lease(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Nanoseconds of the clock, or one of the values below.
    until: AtomicU64,
    /// Nanoseconds of the clock at which the lease went on after it had ended; 0 = never. Relaxed: a hint.
    resumed_at: AtomicU64,
    /// Connections that wait, by the number of their client.
    waiting: Mutex<HashMap<u64, Waker>>,
    /// Wakes all other work that waits.
    resumed: Notify,
}

impl Lease {
    /// A lease without end, as a broker has that is alone. It costs no look at the clock.
    pub fn unlimited() -> Self {
        Self::new(UNLIMITED)
    }

    /// A lease that has not begun.
    pub fn not_begun() -> Self {
        Self::new(ENDED)
    }

    fn new(until: u64) -> Self {
        Self(Arc::new(Inner {
            until: AtomicU64::new(until),
            resumed_at: AtomicU64::new(0),
            waiting: Mutex::default(),
            resumed: Notify::new(),
        }))
    }

    /// Time of the clock by which leases end.
    pub fn now() -> Duration {
        Duration::from_nanos(clock())
    }

    /// Sets until when the broker may act, in time of [`Lease::now`]. It may be earlier than before.
    ///
    /// Clients go on if the lease had ended.
    pub fn extend(&self, until: Duration) {
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.set(until.clamp(ENDED, UNLIMITED - 1));
    }

    /// Sets that the broker may act without end.
    pub fn extend_without_end(&self) {
        self.set(UNLIMITED);
    }

    /// Ends the lease. It may be extended again.
    pub fn end(&self) {
        self.set(ENDED);
    }

    /// Ends the lease for good. Wakes all that wait.
    pub(crate) fn close(&self) {
        self.0.until.store(CLOSED, Ordering::SeqCst);
        self.wake_all();
    }

    fn set(&self, until: u64) {
        let change = |before: u64| (before != CLOSED).then_some(until);
        let Ok(before) = self.0.until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change) else { return };
        if before == UNLIMITED || until == ENDED {
            return;
        }
        // After the change: a task that has seen the end of the old time sees the new one, or is woken.
        let now = clock();
        if before <= now {
            self.0.resumed_at.store(now, Ordering::Relaxed);
            self.wake_all();
        }
    }

    /// Wakes all that wait, so that they look again.
    pub(crate) fn wake_all(&self) {
        let waiting = std::mem::take(&mut *self.waiting());
        waiting.into_values().for_each(Waker::wake);
        self.0.resumed.notify_waiters();
    }

    /// Whether the broker may act.
    #[inline]
    pub fn holds(&self) -> bool {
        self.0.until.load(Ordering::Acquire) == UNLIMITED || self.holds_now()
    }

    #[inline(never)]
    fn holds_now(&self) -> bool {
        // The clock first, see `set`.
        let now = clock();
        now < self.0.until.load(Ordering::SeqCst)
    }

    /// Whether the lease went on within the last `time` after it had ended. The pause may have been longer.
    pub(crate) fn has_resumed_within(&self, time: Duration) -> bool {
        let at = self.0.resumed_at.load(Ordering::Relaxed);
        at > 0 && u128::from(clock().saturating_sub(at)) <= time.as_nanos()
    }

    /// Waits until the broker may act.
    pub(crate) async fn held(&self) {
        while !self.holds() {
            let mut resumed = pin!(self.0.resumed.notified());
            resumed.as_mut().enable();
            if !self.holds() {
                resumed.await;
            }
        }
    }

    /// As [`Lease::held`], for the connection of client `number`, which needs no future for it.
    pub(crate) fn poll_held(&self, number: u64, context: &Context<'_>) -> bool {
        self.waiting().insert(number, context.waker().clone());
        let holds = self.holds(); // after the registration, so that no extension is missed
        if holds {
            self.waiting().remove(&number);
        }
        holds
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Waker>> {
        // No panic occurs under this lock.
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Lease {
    fn default() -> Self {
        Self::unlimited()
    }
}

fn clock() -> u64 {
    let now = clock_gettime(CLOCK);
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Ended for good.
const CLOSED: u64 = 0;
/// Ended, or not begun.
const ENDED: u64 = 1;
const UNLIMITED: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn soon(millis: u64) -> Duration {
        Lease::now() + Duration::from_millis(millis)
    }

    #[test]
    fn lease_ends_by_the_clock_alone() {
        let lease = Lease::not_begun();
        assert!(!lease.holds() && Lease::unlimited().holds() && Lease::default().holds());
        lease.extend(soon(30));
        assert!(lease.holds());
        std::thread::sleep(Duration::from_millis(40));
        assert!(!lease.holds());
        lease.extend_without_end();
        assert!(lease.holds());
        lease.end();
        assert!(!lease.holds());
        lease.close();
        lease.extend(soon(1000));
        lease.extend_without_end();
        assert!(!lease.holds());
    }

    #[test]
    fn extension_wakes_only_after_an_end() {
        let (lease, wakes) = (Lease::not_begun(), Arc::<Wakes>::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        assert!(!lease.poll_held(1, &context) && !lease.poll_held(1, &context));
        lease.end();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        assert!(!lease.has_resumed_within(Duration::from_secs(10)));
        lease.extend(soon(60_000));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert!(lease.has_resumed_within(Duration::from_secs(10)) && lease.poll_held(1, &context));
        lease.extend(soon(60_000));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        lease.end();
        let mut held = pin!(lease.held());
        assert!(held.as_mut().poll(&mut context).is_pending());
        lease.extend(soon(60_000));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
        assert!(held.as_mut().poll(&mut context).is_ready());
    }

    /// Threads wait while another one extends the lease for shorter than its interval.
    #[test]
    fn no_extension_is_missed() {
        let lease = Lease::not_begun();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let driver = lease.clone();
        let driven = std::thread::spawn(move || {
            for _ in 0..2000 {
                driver.extend(Lease::now() + Duration::from_micros(30));
                std::thread::sleep(Duration::from_micros(60));
            }
            driver.extend_without_end();
        });
        let waits = |number| {
            let lease = lease.clone();
            runtime.spawn(async move {
                while lease.0.until.load(Ordering::Relaxed) != UNLIMITED {
                    std::future::poll_fn(|context| match lease.poll_held(number, context) {
                        true => std::task::Poll::Ready(()),
                        false => std::task::Poll::Pending,
                    })
                    .await;
                    lease.held().await;
                    tokio::task::yield_now().await;
                }
            })
        };
        let waiting = [waits(1), waits(2)];
        driven.join().unwrap();
        runtime.block_on(async {
            for task in waiting {
                tokio::time::timeout(Duration::from_secs(10), task).await.unwrap().unwrap();
            }
        });
    }
}
