//! Read probe: estimates QoS 0 messages of share groups that a client has not read although its socket took them.
//!
//! QoS 0 has no acknowledgements. The kernel's buffers at both ends hold the messages that a slow client reads in many
//! seconds, before its socket blocks. Messages in them cannot go to other members. So the broker asks the kernel at
//! intervals how far the client's TCP window has closed, and reports that to the balancer.

use std::time::{Duration, Instant};

use super::tcp_state::{Ends, TcpState};

/// Read probe of one client, used while it is sent QoS 0 messages of share groups.
#[derive(Debug)]
pub(super) struct ReadProbe {
    /// `None` after [`FAILURES_MAX`] failures in a row.
    ends: Option<Ends>,
    /// Consecutive queries that failed.
    failures: u8,
    progress: Progress,
}

/// Result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// The client has read `read` messages within `span`, and `unread` are left.
    Lags { read: u64, span: Duration, unread: u64 },
    /// The client has read everything after it lagged; `read` messages within `span`.
    CaughtUp { read: u64, span: Duration },
}

impl ReadProbe {
    pub(super) fn new(ends: Ends, written: u64) -> Self {
        Self { ends: Some(ends), failures: 0, progress: Progress { written, ..Progress::default() } }
    }

    /// Counts `messages` messages written, with `written` bytes of the connection so far. Probes if it is time to.
    pub(super) fn wrote(&mut self, messages: u32, written: u64, now: Instant) -> Option<Reading> {
        let ends = self.ends?;
        if !self.progress.is_due(messages, written, now) {
            return None;
        }
        let Some(state) = ends.state() else {
            self.failures += 1;
            if self.failures == FAILURES_MAX {
                self.ends = None;
            }
            // Nothing is known: the balancer must not take it for lagging.
            return self.progress.is_behind.then_some(Reading::CaughtUp { read: 0, span: Duration::ZERO });
        };
        self.failures = 0;
        self.progress.look(state, written, now)
    }
}

/// State from one probe to the next.
#[derive(Debug, Default)]
struct Progress {
    /// When the first message since the last probe was written; time of the last probe while the client lags.
    since: Option<Instant>,
    /// Messages since the last probe.
    messages: u64,
    /// Bytes of the connection at the last probe, and how many of them the client had not read.
    written: u64,
    unread: u64,
    is_behind: bool,
    /// The client's largest window, and the time of the last probe.
    widest: Option<(u32, Instant)>,
}

impl Progress {
    fn is_due(&mut self, messages: u32, written: u64, now: Instant) -> bool {
        self.messages += u64::from(messages);
        let since = *self.since.get_or_insert(now);
        now.saturating_duration_since(since) >= PAUSE && (self.is_behind || written - self.written >= BYTES_MIN)
    }

    fn look(&mut self, state: TcpState, written: u64, now: Instant) -> Option<Reading> {
        let widest = self.widest_window(state.window, now);
        let closed = widest - state.window;
        let unread = u64::from(state.unacknowledged) + u64::from(closed);
        let fresh = written - self.written;
        let read = (self.unread + fresh).saturating_sub(unread);
        // Bytes of other messages count too, since the client reads them in between.
        let per_message = (fresh / self.messages.max(1)).max(1);
        let span = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since)).min(SPAN_MAX);
        let was_behind = self.is_behind;
        self.is_behind = state.unsent > 0 || closed > widest / BEHIND_FROM;
        (self.messages, self.written, self.unread) = (0, written, unread);
        self.since = self.is_behind.then_some(now);
        let read = read / per_message;
        match self.is_behind {
            true => Some(Reading::Lags { read, span, unread: unread / per_message }),
            false => was_behind.then_some(Reading::CaughtUp { read, span }),
        }
    }

    /// The largest window so far. Fades if it does not recur, as the client's kernel may have less memory now.
    fn widest_window(&mut self, window: u32, now: Instant) -> u32 {
        let widest = self.widest.map_or(window, |(widest, looked_at)| {
            // Without a probe the window may have been as wide as ever.
            let time = now.saturating_duration_since(looked_at).min(FADES_MAX);
            let lost = f64::from(widest.saturating_sub(window));
            window + (lost * (1.0 - time.div_duration_f64(FADES))) as u32
        });
        self.widest = Some((widest, now));
        widest
    }
}

/// Time from the first written message to a probe: long enough for the client to read.
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes that justify a probe of a client that keeps up. One that lags is probed at any number, as it may get few
/// messages.
const BYTES_MIN: u64 = 4096;
/// A window closed by less than this fraction is no sign of a read_probe: windows open in large steps.
const BEHIND_FROM: u32 = 4;
/// In a longer span the client may have had nothing to read for a part of it.
const SPAN_MAX: Duration = Duration::from_secs(2);
/// Consecutive failures after which the probe gives up.
const FAILURES_MAX: u8 = 10;
/// Time in which a former window fades, and the maximum time that a probe accounts for.
const FADES: Duration = Duration::from_secs(30);
const FADES_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// A client with a window of 64 KiB that is sent messages of 100 bytes.
    struct Client {
        progress: Progress,
        begun: Instant,
        written: u64,
    }

    impl Client {
        fn new() -> Self {
            let mut client = Self { progress: Progress::default(), begun: Instant::now(), written: 0 };
            client.send(0, 1);
            assert_eq!(client.look(0, 0, 0, WINDOW), None);
            client
        }

        /// Sends messages; returns whether a probe is due.
        fn send(&mut self, at_ms: u64, messages: u32) -> bool {
            self.written += 100 * u64::from(messages);
            self.progress.is_due(messages, self.written, self.at(at_ms))
        }

        fn look(&mut self, at_ms: u64, unacknowledged: u32, unsent: u32, window: u32) -> Option<Reading> {
            let now = self.at(at_ms);
            self.progress.look(TcpState { unacknowledged, unsent, window, round_trip: None }, self.written, now)
        }

        fn at(&self, at_ms: u64) -> Instant {
            self.begun + Duration::from_millis(at_ms)
        }
    }

    const WINDOW: u32 = 64 * 1024;

    /// Allows for the fading of the window between two probes.
    fn assert_lags(reading: Option<Reading>, expected: (u64, u64, u64)) {
        let Some(Reading::Lags { read, span, unread }) = reading else { panic!("{reading:?}") };
        let is_near = |is: u64, expected: u64| is.abs_diff(expected) <= expected / 20 + 1;
        let span_ms = span.as_millis() as u64;
        assert!(is_near(read, expected.0) && span_ms == expected.1 && is_near(unread, expected.2), "{reading:?}");
    }

    #[test]
    fn read_probe_is_due_after_pause_and_minimum_bytes() {
        let mut client = Client::new();
        assert!(!client.send(1_000, 100), "so much at once says nothing yet");
        assert!(!client.send(1_019, 1) && client.send(1_020, 1));
        client.look(1_020, 0, 0, WINDOW);
        assert!(!client.send(2_000, 10) && !client.send(3_000, 30), "4,000 bytes");
        assert!(client.send(4_000, 1));
        assert!(client.look(4_000, 0, 0, WINDOW / 2).is_some());
        assert!(!client.send(4_019, 1) && client.send(4_020, 1), "whether it has caught up");
    }

    #[test]
    fn client_that_reads_everything_yields_no_reading() {
        let mut client = Client::new();
        for at_ms in [1_000, 1_020, 1_040] {
            client.send(at_ms, 1_000);
            assert_eq!(client.look(at_ms, 5_000, 0, WINDOW - 10_000), None, "as far as can be seen");
        }
    }

    #[test]
    fn closing_window_reveals_read_and_unread_messages() {
        let mut client = Client::new();
        client.send(1_000, 300);
        assert_lags(client.look(1_100, 0, 0, WINDOW - 20_000), (100, 100, 200));
        client.send(1_150, 100);
        assert_lags(client.look(1_200, 5_000, 0, WINDOW - 20_000), (50, 100, 250));
        client.send(1_300, 700);
        assert_lags(client.look(1_300, 50_000, 40_000, 0), (0, 100, (50_000 + u64::from(WINDOW)) / 100));
        client.send(9_000, 10);
        assert!(matches!(client.look(9_000, 0, 0, WINDOW), Some(Reading::CaughtUp { read: 1_000.., .. })));
        client.send(9_020, 10);
        assert_eq!(client.look(9_020, 0, 0, WINDOW), None);
    }

    #[test]
    fn smaller_window_becomes_the_new_normal_over_time() {
        let mut client = Client::new();
        let mut seconds = 0;
        loop {
            seconds += 1;
            client.send(1_000 * seconds, 100);
            match client.look(1_000 * seconds, 0, 0, WINDOW / 2) {
                Some(Reading::Lags { .. }) => assert!(seconds < 90),
                ended => break assert!(matches!(ended, Some(Reading::CaughtUp { .. }))),
            }
        }
        assert!(seconds > 5, "{seconds}");
    }

    #[test]
    fn unshared_bytes_count_toward_reading_progress() {
        let mut client = Client::new();
        client.written += 90_000;
        client.send(1_000, 100);
        // 100,000 bytes for 100 messages: the client reads 1,000 for each.
        assert_lags(client.look(1_100, 0, 0, WINDOW - 20_000), (80, 100, 20));
    }
}
