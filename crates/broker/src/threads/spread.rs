//! How many threads are to be at work, and which connections go where: decided by how busy the threads are.

/// Connections are to leave a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Move {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Part of them, by chance; 1 = all.
    pub(super) share: f64,
}

/// Looks at the threads at regular times. Pure: what it sees is an argument.
///
/// One more thread is taken when one has hardly a moment to spare, one less when those that stay would have plenty. The
/// gap between the two keeps it from going back and forth. A thread more is a trial: threads that wake each other take
/// more processor time for the same work. So if they are busy for longer than before, and not more is done, it is given
/// back. Where the machine seems to have no processor left for it, it is tried late: what is told of that is not always
/// true for us.
#[derive(Debug)]
pub(super) struct Spread {
    /// Part of the time for which each thread was busy, smoothed.
    busy: Vec<f64>,
    /// The first so many are at work.
    active: usize,
    /// Looks since there was too little to do.
    calm: u32,
    /// Looks since all threads at work were full, or the last move shows.
    full: u32,
    /// Looks until the last move shows.
    settling: u32,
    /// Packets a second at the last looks, the last one last.
    rates: [f64; FULL_FOR as usize],
    /// Processors of the machine that had nothing to do, smoothed.
    idle: f64,
    trial: Option<Trial>,
    /// Between trials in vain.
    trials: Backoff,
    /// Between moves that even out.
    evens: Backoff,
}

/// Something that is done less and less often.
#[derive(Debug)]
struct Backoff {
    /// Looks until it may be done again, and after how many then.
    left: u32,
    next: u32,
    first: u32,
    most: u32,
}

/// Whether one thread more is of any use.
#[derive(Debug)]
struct Trial {
    rate_before: f64,
    /// Sum of the parts for which threads were busy.
    busy_before: f64,
    threads_before: f64,
    /// Looks until it is judged.
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

    /// The next look: for which part of the time since the last one each thread was busy, how many packets there were a
    /// second, and how many processors had nothing to do.
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
            self.trials.reset(); // what was learned is of another load
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

    /// Ends a trial that is over: one less again, if the last one was of no use. That clearly less is done shows earlier.
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

    /// One more.
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

    /// Somebody at work has room for some of what the busiest one does. Where that is one connection's doing it does not
    /// help, and is tried less and less often.
    fn even(&mut self) -> Option<Move> {
        let ((from, most), (to, least)) = (self.busiest(), self.least_busy());
        if most < FULL || least >= ROOM || !self.evens.may_be_done() {
            return None;
        }
        self.evens.done();
        Some(Move { from, to, share: (most - least) / most / 2.0 })
    }

    /// One less.
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

    /// The mean of the last looks.
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

/// A thread that is busy for so much of the time has no room.
const FULL: f64 = 0.9;
/// For so many looks, before it is helped: what is done without help has to be known, to be compared with.
const FULL_FOR: u32 = 5;
/// One that is busy for less has room for more.
pub(super) const ROOM: f64 = 0.6;
/// So much of a processor's time has to be left, for a thread more to be tried at once.
const SPARE: f64 = 0.3;
/// What those that stay may have to do on average if one goes.
const PLENTY: f64 = 0.5;
/// Looks for which there has to be little to do.
const CALM: u32 = 20;
/// Looks that it takes until a move shows.
const SETTLING: u32 = 3;
/// Looks from one thread more to the judgement: some seconds' tenths, for moves and what evens them out.
const TRIAL: u32 = 12;
/// What has to be done more with it, of what one thread did before.
const GAIN: f64 = 0.25;
/// If not: for how much of a thread's time more all may be busy with it.
const WASTE: f64 = 0.3;
/// Looks from a trial in vain to the next one: ten seconds, then twice as many, up to this.
const PAUSE_FIRST: u32 = 100;
const PAUSE_MOST: u32 = 800;

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks so often at the same, while more is done from look to look, and says what was moved.
    fn looks(spread: &mut Spread, count: usize, busy: &[f64]) -> Vec<Move> {
        (0..count).filter_map(|_| spread.next(busy.iter().copied(), spread.rate() * 2.0 + 1.0, 4.0)).collect()
    }

    /// The same, while always as much is done.
    fn vain_looks(spread: &mut Spread, count: usize, busy: &[f64]) -> Vec<Move> {
        (0..count).filter_map(|_| spread.next(busy.iter().copied(), 1_000.0, 4.0)).collect()
    }

    #[test]
    fn one_thread_does_what_one_can_do() {
        let mut spread = Spread::new(4);
        assert_eq!(looks(&mut spread, 100, &[0.85, 0.0, 0.0, 0.0]), []);
        assert_eq!(spread.active(), 1);
    }

    #[test]
    fn a_full_one_gives_half_to_the_next() {
        let mut spread = Spread::new(3);
        assert_eq!(looks(&mut spread, 9, &[1.0, 0.0, 0.0]), [Move { from: 0, to: 1, share: 0.5 }]);
        assert_eq!(looks(&mut spread, 13, &[1.0, 0.98, 0.0]), [Move { from: 0, to: 2, share: 0.5 }]);
        assert_eq!(looks(&mut spread, 50, &[1.0, 0.98, 0.9]), [], "there is no other");
        assert_eq!(spread.active(), 3);
    }

    #[test]
    fn a_thread_is_tried_late_where_the_machine_has_no_processor_for_it() {
        let mut spread = Spread::new(2);
        let look = |spread: &mut Spread, idle| spread.next([1.0, 0.0], 1_000.0, idle);
        assert!((0..90).all(|_| look(&mut spread, 0.2).is_none()));
        assert!((0..3).any(|_| look(&mut spread, 1.0).is_some()), "now it has");
        let mut spread = Spread::new(2);
        let first = (0..200).find(|_| look(&mut spread, 0.0).is_some());
        assert!(first.is_some_and(|looks| looks > 90), "{first:?}: it may be that others make way for us");
    }

    #[test]
    fn who_has_room_gets_some_before_another_begins() {
        let mut spread = Spread::new(3);
        looks(&mut spread, 9, &[1.0, 0.0, 0.0]);
        let moves = looks(&mut spread, 12, &[1.0, 0.2, 0.0]);
        assert!(moves.iter().all(|each| (each.from, each.to) == (0, 1) && each.share < 0.5), "{moves:?}");
        assert_eq!(spread.active(), 2);
    }

    #[test]
    fn all_come_back_when_there_is_little_to_do_for_a_while() {
        let mut spread = Spread::new(2);
        looks(&mut spread, 9, &[1.0, 0.0]);
        assert_eq!(looks(&mut spread, 100, &[0.4, 0.4]), [], "more than one should do alone");
        assert_eq!(looks(&mut spread, 10, &[0.2, 0.1]), [], "not for long yet");
        assert_eq!(looks(&mut spread, 20, &[0.2, 0.1]), [Move { from: 1, to: 0, share: 1.0 }]);
        assert_eq!((spread.active(), looks(&mut spread, 100, &[0.3, 0.0])), (1, vec![]));
    }

    #[test]
    fn a_thread_with_which_not_more_is_done_is_given_back() {
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
    fn a_thread_with_which_less_is_done_is_given_back_soon() {
        let mut spread = Spread::new(2);
        assert_eq!(vain_looks(&mut spread, 9, &[1.0, 0.0]).len(), 1);
        let back = (1..=20).find(|_| spread.next([1.0, 1.0], 800.0, 4.0).is_some());
        assert!(back.is_some_and(|looks| looks <= 6), "{back:?}");
        assert_eq!(spread.active(), 1);
    }

    #[test]
    fn a_thread_that_leaves_room_is_kept_though_not_more_is_done() {
        let mut spread = Spread::new(2);
        vain_looks(&mut spread, 20, &[0.8, 0.0]);
        assert_eq!(vain_looks(&mut spread, 8, &[0.95, 0.0]).len(), 1);
        assert_eq!(vain_looks(&mut spread, 100, &[0.55, 0.56]), []);
        assert_eq!(spread.active(), 2);
    }

    #[test]
    fn one_connection_that_fills_a_thread_is_not_sent_about_for_ever() {
        let mut spread = Spread::new(2);
        looks(&mut spread, 9, &[1.0, 0.0]);
        let moves = vain_looks(&mut spread, 600, &[1.0, 0.1]);
        assert!((3..20).contains(&moves.len()), "{}", moves.len());
    }
}
