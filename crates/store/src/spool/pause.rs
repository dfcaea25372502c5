//! How long the committer pauses after a write, so that more messages share the next one.

use std::{
    sync::PoisonError,
    time::{Duration, Instant},
};

use super::shared::SharedLog;

/// The pause after each write.
///
/// Each write costs processor time, regardless of size. While messages keep coming, a pause puts more of them into the
/// next write, and delays their acknowledgements by its length. A pause in which no batch arrives is a loss. So its
/// length follows the result of the last one:
///
/// - It begins short, once two batches or more arrived while the disk confirmed a write.
/// - It is twice the time in which the batches of the last pause arrived. So it grows while messages arrive
///   independently of acknowledgements. It stays short if publishers wait for acknowledgements: they send at once after
///   those, then stop.
/// - It halves after a write of [`ENOUGH`] batches.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// Length of the next pause; zero means none.
    length: Duration,
    /// Smoothed duration of `fdatasync`.
    sync: Duration,
}

impl Pause {
    /// Records how long the disk took to confirm a write.
    pub(super) fn confirmed(&mut self, took: Duration) {
        self.sync = if self.sync.is_zero() { took } else { (self.sync * 7 + took) / 8 };
    }

    /// Pauses after a write of this many batches, unless the pause is zero.
    pub(super) fn wait(&mut self, shared: &SharedLog, batches: usize) {
        let mut log = shared.log();
        let length = self.begin(batches, log.waited_batches);
        if length.is_zero() {
            return;
        }
        let begun = Instant::now();
        while !log.is_closing {
            let left = length.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            log = shared.work.wait_timeout(log, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let last = log.waited_at.filter(|_| log.waited_batches > 0);
        self.end(last.map(|last| last.saturating_duration_since(begun)));
    }

    /// Returns the pause after a write of `batches`, during which `others` arrived.
    fn begin(&mut self, batches: usize, others: usize) -> Duration {
        let (least, most) = self.bounds();
        let length = match (batches, others) {
            (ENOUGH.., _) => self.length / 2,
            (_, 2..) => self.length.max(least),
            _ => self.length,
        };
        self.set(length.min(most), least);
        self.length
    }

    /// Ends a pause. `last` is the time from its start to the arrival of its last batch, if any.
    fn end(&mut self, last: Option<Duration>) {
        let (least, most) = self.bounds();
        self.set(last.map_or(Duration::ZERO, |last| (last * 2).min(most)), least);
    }

    fn set(&mut self, length: Duration, least: Duration) {
        self.length = if length < least { Duration::ZERO } else { length };
    }

    /// Returns the shortest and the longest pause.
    fn bounds(&self) -> (Duration, Duration) {
        let most = (self.sync * SYNCS_MAX).min(CYCLE_MAX.saturating_sub(self.sync));
        (most / 8, most)
    }
}

/// Batches per write at which the cost of each is small.
const ENOUGH: usize = 32;
/// Longest pause, as a multiple of the disk's `fdatasync` duration.
const SYNCS_MAX: u32 = 3;
/// Longest pause and write together. A slower disk collects enough without a pause.
const CYCLE_MAX: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use std::{cmp::Reverse, collections::BinaryHeap};

    use super::*;

    /// Result of some thousand simulated batches; times in µs.
    struct Outcome {
        batches_per_write: f64,
        /// From a batch to its acknowledgement.
        mean_wait: f64,
        longest_wait: u64,
    }

    /// Simulates writes on a disk that takes `sync` each. `first` gives arrival times; `next` gives the arrival of the
    /// batch that follows an acknowledged one, if any.
    fn play(
        sync: u64,
        first: impl Iterator<Item = u64>,
        next: impl Fn(u64, usize) -> Option<u64>,
        pauses: bool,
    ) -> Outcome {
        let mut coming: BinaryHeap<_> = first.map(Reverse).collect();
        let (mut pause, mut now, mut writes, mut waits) = (Pause::default(), 0, 0, Vec::new());
        while waits.len() < BATCHES {
            let Some(&Reverse(earliest)) = coming.peek() else { break };
            now = now.max(earliest);
            let batch = take_until(&mut coming, now);
            now += sync;
            writes += 1;
            pause.confirmed(Duration::from_micros(sync));
            let others = coming.iter().filter(|Reverse(at)| *at <= now).count();
            for (index, came) in batch.iter().enumerate() {
                waits.push(now - came);
                coming.extend(next(now, index).map(Reverse));
            }
            let length = if pauses { pause.begin(batch.len(), others) } else { Duration::ZERO };
            if !length.is_zero() {
                let end = now + length.as_micros() as u64;
                let last =
                    coming.iter().filter(|Reverse(at)| (now + 1..=end).contains(at)).map(|Reverse(at)| *at).max();
                pause.end(last.map(|last| Duration::from_micros(last - now)));
                now = end;
            }
        }
        let settled = &waits[waits.len() / 4..];
        Outcome {
            batches_per_write: waits.len() as f64 / f64::from(writes),
            mean_wait: settled.iter().sum::<u64>() as f64 / settled.len() as f64,
            longest_wait: *settled.iter().max().unwrap(),
        }
    }

    fn take_until(coming: &mut BinaryHeap<Reverse<u64>>, now: u64) -> Vec<u64> {
        let mut taken = Vec::new();
        while let Some(Reverse(at)) = coming.peek().copied().filter(|Reverse(at)| *at <= now) {
            taken.push(at);
            coming.pop();
        }
        taken
    }

    /// Arrival times at random, `gap` µs apart on average, independent of acknowledgements.
    fn at_random(gap: f64) -> impl Iterator<Item = u64> {
        let (mut state, mut at) = (1_u64, 0.0);
        (0..BATCHES * 2).map(move |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            at -= gap * (((state >> 11) as f64 + 1.0) / (1_u64 << 53) as f64).ln();
            at as u64
        })
    }

    const BATCHES: usize = 4_000;
    const ROUND_TRIP: u64 = 60;

    #[test]
    fn messages_that_keep_coming_share_writes() {
        let paced = |pauses| play(200, at_random(100.0), |_, _| None, pauses);
        let (without, with) = (paced(false), paced(true));
        assert!(without.batches_per_write < 3.0, "{}", without.batches_per_write);
        assert!(with.batches_per_write > 5.0, "{}", with.batches_per_write);
        // At most the rest of a write, a pause of three writes, and a write.
        assert!(with.longest_wait <= 5 * 200, "{}", with.longest_wait);
    }

    #[test]
    fn lone_message_is_written_without_pause() {
        for gap in [1_000.0, 10_000.0] {
            let seldom = play(200, at_random(gap), |_, _| None, true);
            assert!(seldom.mean_wait < 300.0, "{gap}: {}", seldom.mean_wait);
        }
        let alone = play(200, std::iter::once(0), |now, _| Some(now + 50), true);
        assert_eq!((alone.mean_wait, alone.longest_wait), (200.0, 200));
    }

    #[test]
    fn pause_hardly_slows_publishers_that_await_answers() {
        for (sync, publishers) in [(30, 2), (30, 10), (200, 5), (200, 10), (200, 30), (500, 10), (5_000, 10)] {
            let answered = |now, index: usize| Some(now + ROUND_TRIP + 3 * index as u64);
            let played = |pauses| play(sync, 0..publishers, answered, pauses).mean_wait + ROUND_TRIP as f64;
            let slower = played(true) / played(false);
            assert!(slower < 1.35, "{sync} µs, {publishers}: {slower}");
        }
    }

    #[test]
    fn large_writes_and_slow_disks_have_no_pause() {
        let mut pause = Pause::default();
        pause.confirmed(Duration::from_micros(200));
        assert_eq!(pause.begin(ENOUGH, 2 * ENOUGH), Duration::ZERO);
        assert!(pause.begin(ENOUGH - 1, 2) > Duration::ZERO);
        assert_eq!(pause.begin(ENOUGH, 2 * ENOUGH), Duration::ZERO);
        let mut slow = Pause::default();
        slow.confirmed(2 * CYCLE_MAX);
        assert_eq!(slow.begin(1, 10), Duration::ZERO);
    }
}
