//! A timer that is exact to a tenth of a millisecond; the runtime's timers count whole milliseconds.

use std::io;
use std::time::Instant;

/// A timer for one deadline at a time.
#[derive(Debug)]
pub(super) struct Alarm {
    #[cfg(target_os = "linux")]
    timer: linux::Timer,
}

impl Alarm {
    /// Creates a timer on the current runtime.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            #[cfg(target_os = "linux")]
            timer: linux::Timer::new()?,
        })
    }

    /// Waits until `deadline`, or for ever if there is none. Cancel safe.
    pub(super) async fn at(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        let Some(deadline) = deadline else { return std::future::pending().await };
        #[cfg(target_os = "linux")]
        self.timer.wait_until(deadline).await?;
        #[cfg(not(target_os = "linux"))]
        tokio::time::sleep_until(deadline.into()).await;
        Ok(())
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::time::Instant;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    #[derive(Debug)]
    pub(super) struct Timer {
        fd: AsyncFd<OwnedFd>,
        /// The deadline it is set for; `None` once it has expired.
        set_for: Option<Instant>,
    }

    impl Timer {
        pub(super) fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            #[expect(deprecated, reason = "its successor is unsafe, for types that do not own what they register")]
            let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
            Ok(Self { fd, set_for: None })
        }

        pub(super) async fn wait_until(&mut self, deadline: Instant) -> io::Result<()> {
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(());
                }
                if self.set_for != Some(deadline) {
                    // Some centuries, so that the conversions below cannot fail.
                    let tv_sec = left.as_secs().min(1 << 33) as i64;
                    let it_value = Timespec { tv_sec, tv_nsec: left.subsec_nanos().into() };
                    let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
                    timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value })?;
                    self.set_for = Some(deadline);
                }
                let mut ready = self.fd.readable().await?;
                // Would block: it expired for an earlier deadline and was set again.
                if ready.try_io(|fd| Ok(rustix::io::read(fd, &mut [0; 8])?)).is_ok() {
                    self.set_for = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn an_alarm_rings_after_its_deadline_and_can_be_set_anew() {
        let mut alarm = Alarm::new().unwrap();
        let start = Instant::now();
        let (far, near) = (start + Duration::from_secs(3600), start + Duration::from_millis(20));
        for deadline in [Some(far), None] {
            let waited = tokio::time::timeout(Duration::from_millis(5), alarm.at(deadline)).await;
            assert!(waited.is_err(), "{deadline:?}");
        }
        for deadline in [near, near, near + Duration::from_millis(5), start] {
            alarm.at(Some(deadline)).await.unwrap();
            assert!(Instant::now() >= deadline);
        }
        assert!(start.elapsed() < Duration::from_secs(3000), "the first deadline is forgotten");
    }
}
