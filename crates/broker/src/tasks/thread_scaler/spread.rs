//! Decides from the threads' load how many are active and which connections move.

use crate::threads::Move;

/// Thread scaler: samples the threads at regular intervals. Pure: all samples are arguments.
///
/// It adds a thread when one is nearly saturated, and removes one when the others would still have ample room. The gap
/// between both conditions prevents oscillation. A new thread is a trial, because threads that wake each other take
/// more processor time for the same work. If the threads are busier than before without a higher throughput, the new
/// thread is removed. If the machine seems to have no idle processor, the trial starts late but still takes place: in a
/// container that figure can be wrong.
#[derive(Debug)]
pub(super) struct Spread {
    /// Busy fraction of each thread, smoothed.
    busy: Vec<f64>,
    /// Number of active threads; these are the first ones.
    active: usize,
    /// Samples with low load in a row.
    calm: u32,
    /// Samples with all active threads saturated in a row; 0 after a move.
    full: u32,
    /// Samples to wait until the last move takes effect.
    settling: u32,
    /// Packets per second in the latest samples, newest last.
    rates: [f64; FULL_FOR as usize],
    /// Idle processors of the machine, smoothed.
    idle: f64,
    trial: Option<Trial>,
    /// Pause between trials that failed.
    trials: Backoff,
    /// Pause between moves that even out the load.
    evens: Backoff,
}

/// Backoff, counted in samples: the pause doubles each time.
#[derive(Debug)]
struct Backoff {
    /// Samples left until the next attempt. `next` is the pause after that.
    left: u32,
    next: u32,
    first: u32,
    most: u32,
}

/// State before a thread was added, to judge whether it helps.
#[derive(Debug)]
struct Trial {
    rate_before: f64,
    /// Sum of the threads' busy fractions.
    busy_before: f64,
    threads_before: f64,
    /// Samples left until the judgement.
    left: u32,
}

impl Spread {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            busy: vec![0.0; threads],
            active: 1,
            calm: 0,
            full: 0,
            settling: 0,
            rates: [0.0; FULL_FOR as usize],
            idle: 0.0,
            trial: None,
            trials: Backoff::new(PAUSE_FIRST, PAUSE_MOST),
            evens: Backoff::new(1, PAUSE_FIRST),
        }
    }

    pub(super) fn active(&self) -> usize {
        self.active
    }

    /// Takes the next sample and returns the move to make.
    ///
    /// `busy`: each thread's busy fraction since the last sample. `rate`: packets per second. `idle`: idle processors.
    pub(super) fn next(&mut self, busy: impl IntoIterator<Item = f64>, rate: f64, idle: f64) -> Option<Move> {
        for (smooth, busy) in self.busy.iter_mut().zip(busy) {
            *smooth += (busy - *smooth) / 2.0;
        }
        self.rates.rotate_left(1);
        self.rates[self.rates.len() - 1] = rate;
        self.idle += (idle - self.idle) / 2.0;
        self.trials.look();
        self.evens.look();
        if self.busiest().1 < FULL {
            self.evens.reset();
        }
        if self.busiest().1 < ROOM {
            self.trials.reset(); // the load has changed: earlier trials say nothing about it
        }
        if let Some(trial) = &mut self.trial {
            trial.left = trial.left.saturating_sub(1);
        }
        if self.settling > 0 {
            self.settling -= 1;
            return None;
        }
        let is_full = self.busiest().1 >= FULL && self.least_busy().1 >= ROOM;
        self.full = if is_full { self.full + 1 } else { 0 };
        let next = self.judge().or_else(|| self.more()).or_else(|| self.even()).or_else(|| self.less());
        if next.is_some() {
            (self.settling, self.full) = (SETTLING, 0);
        }
        next
    }

    /// Ends a trial that is over, and removes the thread if it was of no use. A clear loss of throughput ends it
    /// earlier.
    fn judge(&mut self) -> Option<Move> {
        let (sum, rate) = (self.sum(), self.rate());
        let trial = self.trial.as_ref()?;
        let wanted = GAIN / trial.threads_before;
        let needed = match trial.left {
            0 => 1.0 + wanted,
            left if left <= TRIAL / 2 => 1.0 - wanted / 2.0,
            _ => return None,
        };
        if sum >= trial.busy_before + WASTE && rate < trial.rate_before * needed {
            self.trials.done();
            return Some(self.give_back());
        }
        if trial.left == 0 {
            self.trial = None;
            self.trials.reset();
        }
        None
    }

    /// Adds a thread if all active ones are saturated.
    fn more(&mut self) -> Option<Move> {
        if self.full < if self.idle < SPARE { PAUSE_FIRST } else { FULL_FOR }
            || self.active == self.busy.len()
            || !self.trials.may_be_done()
            || self.trial.is_some()
        {
            return None;
        }
        let (from, to) = (self.busiest().0, self.active);
        let (rate_before, busy_before, threads_before) = (self.rate(), self.sum(), self.active as f64);
        self.trial = Some(Trial { rate_before, busy_before, threads_before, left: TRIAL });
        self.active += 1;
        Some(Move { from, to, share: 0.5 })
    }

    /// Moves load from the busiest thread to one with room. Pauses longer each time: a single hot connection cannot be
    /// split.
    fn even(&mut self) -> Option<Move> {
        let ((from, most), (to, least)) = (self.busiest(), self.least_busy());
        if most < FULL || least >= ROOM || !self.evens.may_be_done() {
            return None;
        }
        self.evens.done();
        Some(Move { from, to, share: (most - least) / most / 2.0 })
    }

    /// Removes a thread if the load has been low for a while.
    fn less(&mut self) -> Option<Move> {
        let is_calm = self.active > 1 && self.sum() < PLENTY * (self.active - 1) as f64;
        self.calm = if is_calm { self.calm + 1 } else { 0 };
        if self.calm < CALM {
            return None;
        }
        self.calm = 0;
        Some(self.give_back())
    }

    fn give_back(&mut self) -> Move {
        self.trial = None;
        self.active -= 1;
        Move { from: self.active, to: self.least_busy().0, share: 1.0 }
    }

    /// Mean packet rate of the latest samples.
    fn rate(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len() as f64
    }

    fn sum(&self) -> f64 {
        self.at_work().map(|(_, busy)| busy).sum()
    }

    fn busiest(&self) -> (usize, f64) {
        self.at_work().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, 0.0))
    }

    fn least_busy(&self) -> (usize, f64) {
        self.at_work().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, 0.0))
    }

    fn at_work(&self) -> impl Iterator<Item = (usize, f64)> {
        self.busy[..self.active].iter().copied().enumerate()
    }
}

impl Backoff {
    fn new(first: u32, most: u32) -> Self {
        Self { left: 0, next: first, first, most }
    }

    fn look(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    fn may_be_done(&self) -> bool {
        self.left == 0
    }

    fn done(&mut self) {
        self.left = self.next;
        self.next = (self.next * 2).min(self.most);
    }

    fn reset(&mut self) {
        (self.left, self.next) = (0, self.first);
    }
}

/// Busy fraction from which a thread is saturated.
const FULL: f64 = 0.9;
/// Samples of saturation before a thread is added: the throughput without it must be known for the comparison.
const FULL_FOR: u32 = 5;
/// Busy fraction below which a thread has room for more connections.
pub(super) const ROOM: f64 = 0.6;
/// Idle processors needed to start a trial without delay.
const SPARE: f64 = 0.3;
/// Average busy fraction that the remaining threads may reach when one is removed.
const PLENTY: f64 = 0.5;
/// Samples of low load before a thread is removed.
const CALM: u32 = 20;
/// Samples until a move takes effect.
const SETTLING: u32 = 3;
/// Samples in a trial: time for connections to move and for the load to even out.
const TRIAL: u32 = 12;
/// Gain in throughput that a trial must show, as a fraction of one thread's throughput before.
const GAIN: f64 = 0.25;
/// Additional busy time, in threads, above which a trial without that gain fails.
const WASTE: f64 = 0.3;
/// Samples from a failed trial to the next one: ten seconds, doubled each time up to `PAUSE_MOST`.
const PAUSE_FIRST: u32 = 100;
const PAUSE_MOST: u32 = 800;

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `count` equal samples with growing throughput and returns the moves.
    fn looks(spread: &mut Spread, count: usize, busy: &[f64]) -> Vec<Move> {
        (0..count).filter_map(|_| spread.next(busy.iter().copied(), spread.rate() * 2.0 + 1.0, 4.0)).collect()
    }

    /// As [`looks`], with constant throughput.
    fn vain_looks(spread: &mut Spread, count: usize, busy: &[f64]) -> Vec<Move> {
        (0..count).filter_map(|_| spread.next(busy.iter().copied(), 1_000.0, 4.0)).collect()
    }

    #[test]
    fn load_below_saturation_stays_on_one_thread() {
        let mut spread = Spread::new(4);
        assert_eq!(looks(&mut spread, 100, &[0.85, 0.0, 0.0, 0.0]), []);
        assert_eq!(spread.active(), 1);
    }

    #[test]
    fn saturated_thread_gives_half_to_the_next() {
        let mut spread = Spread::new(3);
        assert_eq!(looks(&mut spread, 9, &[1.0, 0.0, 0.0]), [Move { from: 0, to: 1, share: 0.5 }]);
        assert_eq!(looks(&mut spread, 13, &[1.0, 0.98, 0.0]), [Move { from: 0, to: 2, share: 0.5 }]);
        assert_eq!(looks(&mut spread, 50, &[1.0, 0.98, 0.9]), [], "there is no other");
        assert_eq!(spread.active(), 3);
    }

    #[test]
    fn trial_starts_late_without_idle_processor() {
        let mut spread = Spread::new(2);
        let look = |spread: &mut Spread, idle| spread.next([1.0, 0.0], 1_000.0, idle);
        assert!((0..90).all(|_| look(&mut spread, 0.2).is_none()));
        assert!((0..3).any(|_| look(&mut spread, 1.0).is_some()), "now it has");
        let mut spread = Spread::new(2);
        let first = (0..200).find(|_| look(&mut spread, 0.0).is_some());
        assert!(first.is_some_and(|looks| looks > 90), "{first:?}: it may be that others make way for us");
    }

    #[test]
    fn load_is_evened_out_before_a_thread_is_added() {
        let mut spread = Spread::new(3);
        looks(&mut spread, 9, &[1.0, 0.0, 0.0]);
        let moves = looks(&mut spread, 12, &[1.0, 0.2, 0.0]);
        assert!(moves.iter().all(|each| (each.from, each.to) == (0, 1) && each.share < 0.5), "{moves:?}");
        assert_eq!(spread.active(), 2);
    }

    #[test]
    fn connections_return_after_sustained_low_load() {
        let mut spread = Spread::new(2);
        looks(&mut spread, 9, &[1.0, 0.0]);
        assert_eq!(looks(&mut spread, 100, &[0.4, 0.4]), [], "more than one should do alone");
        assert_eq!(looks(&mut spread, 10, &[0.2, 0.1]), [], "not for long yet");
        assert_eq!(looks(&mut spread, 20, &[0.2, 0.1]), [Move { from: 1, to: 0, share: 1.0 }]);
        assert_eq!((spread.active(), looks(&mut spread, 100, &[0.3, 0.0])), (1, vec![]));
    }

    #[test]
    fn thread_without_gain_is_removed() {
        let mut spread = Spread::new(2);
        let (there, back) = (Move { from: 0, to: 1, share: 0.5 }, Move { from: 1, to: 0, share: 1.0 });
        vain_looks(&mut spread, 20, &[0.8, 0.0]);
        assert_eq!(vain_looks(&mut spread, 20, &[1.0, 1.0]), [there, back]);
        assert_eq!(spread.active(), 1);
        assert_eq!(vain_looks(&mut spread, 80, &[1.0, 0.0]), [], "not again at once");
        assert_eq!(vain_looks(&mut spread, 50, &[1.0, 1.0]), [there, back]);
        assert_eq!(vain_looks(&mut spread, 150, &[1.0, 0.0]), [], "later from time to time");
        vain_looks(&mut spread, 10, &[0.3, 0.0]);
        assert_eq!(vain_looks(&mut spread, 8, &[1.0, 0.0]), [there], "another load");
    }

    #[test]
    fn thread_that_lowers_throughput_is_removed_early() {
        let mut spread = Spread::new(2);
        assert_eq!(vain_looks(&mut spread, 9, &[1.0, 0.0]).len(), 1);
        let back = (1..=20).find(|_| spread.next([1.0, 1.0], 800.0, 4.0).is_some());
        assert!(back.is_some_and(|looks| looks <= 6), "{back:?}");
        assert_eq!(spread.active(), 1);
    }

    #[test]
    fn thread_that_relieves_others_is_kept_without_gain() {
        let mut spread = Spread::new(2);
        vain_looks(&mut spread, 20, &[0.8, 0.0]);
        assert_eq!(vain_looks(&mut spread, 8, &[0.95, 0.0]).len(), 1);
        assert_eq!(vain_looks(&mut spread, 100, &[0.55, 0.56]), []);
        assert_eq!(spread.active(), 2);
    }

    #[test]
    fn single_hot_connection_moves_less_and_less_often() {
        let mut spread = Spread::new(2);
        looks(&mut spread, 9, &[1.0, 0.0]);
        let moves = vain_looks(&mut spread, 600, &[1.0, 0.1]);
        assert!((3..20).contains(&moves.len()), "{}", moves.len());
    }
}
