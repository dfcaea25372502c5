//! Leaders of a run, as the nodes themselves told: changes of the leader, and leaders beside each other.

use super::figure::Figure;
use super::measured::Figures;
use super::windows::Window;
use crate::units::Time;

/// Time in which a node said without a break that it leads and serves clients in an epoch.
///
/// Times are from the end of the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Led {
    /// Number of the node.
    pub node: usize,
    /// Epoch in which it leads.
    pub epoch: u64,
    /// When its first answer came: it led before.
    pub first_answered: Time,
    /// When it was asked for its last answer: it led later.
    pub last_asked: Time,
}

impl Led {
    /// When this node surely led although `other` surely led before in the same or a later epoch; `None` if it did not.
    ///
    /// No clock decides: the question for one answer came after the other answer.
    fn beside(&self, other: &Self) -> Option<Time> {
        let (is_same, is_after) = (self.epoch == other.epoch, self.last_asked > other.first_answered);
        let is_outdated = self.epoch < other.epoch && is_after;
        (self.node != other.node && (is_same || is_outdated)).then_some(self.last_asked.max(other.first_answered))
    }
}

/// Moments at which another node took the lead.
fn changes(led: &[Led]) -> Vec<Time> {
    let mut in_order: Vec<_> = led.iter().collect();
    in_order.sort_by_key(|led| led.first_answered);
    let changed = in_order.windows(2).filter(|pair| pair[0].node != pair[1].node);
    changed.map(|pair| pair[1].first_answered).collect()
}

/// Moments at which a node led beside another one.
fn two_leaders(led: &[Led]) -> Vec<Time> {
    led.iter().filter_map(|one| led.iter().filter_map(|other| one.beside(other)).min()).collect()
}

/// Adds the figures of leaders for each window. Without any leader there are none.
pub(crate) fn add(figures: &mut Figures, led: &[Led], windows: &[Window]) {
    if led.is_empty() {
        return;
    }
    for (figure, moments) in [(Figure::LeaderChanges, changes(led)), (Figure::TwoLeaders, two_leaders(led))] {
        for window in windows {
            let is_inside = |at: &&Time| window.times.iter().any(|times| times.contains(at));
            figures.set(window.phase.clone(), figure, moments.iter().filter(is_inside).count() as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::windows::{Effect, Phase, windows};

    fn led(node: usize, epoch: u64, from: u64, to: u64) -> Led {
        Led { node, epoch, first_answered: Time::from_secs(from), last_asked: Time::from_secs(to) }
    }

    #[test]
    fn a_takeover_is_a_change_and_no_second_leader() {
        let all = [led(0, 3, 0, 20), led(1, 4, 21, 40), led(0, 6, 45, 60)];
        assert_eq!(changes(&all), [Time::from_secs(21), Time::from_secs(45)]);
        assert_eq!(two_leaders(&all), []);
        assert_eq!(changes(&[led(0, 3, 0, 20), led(0, 5, 22, 60)]), [], "it leads again itself");
    }

    #[test]
    fn an_outdated_leader_beside_the_new_one_is_found() {
        let stale = [led(0, 3, 0, 20), led(1, 4, 21, 40), led(0, 3, 25, 25)];
        assert_eq!(two_leaders(&stale), [Time::from_secs(25)]);
        let overlapping = [led(0, 3, 0, 22), led(1, 4, 21, 40)];
        assert_eq!(two_leaders(&overlapping), [Time::from_secs(22)]);
        // It was asked before the new leader answered, so that its answer may be older.
        assert_eq!(two_leaders(&[led(0, 3, 0, 21), led(1, 4, 21, 40)]), []);
    }

    #[test]
    fn an_epoch_has_one_leader_at_any_time() {
        let found = two_leaders(&[led(0, 3, 0, 10), led(1, 3, 20, 30)]);
        assert_eq!(found, [Time::from_secs(20), Time::from_secs(30)], "one for each of them");
    }

    #[test]
    fn figures_are_dated_to_their_windows() {
        let effect = Effect { action: "stop".to_owned(), begin: Time::from_secs(20), end: Time::from_secs(25) };
        let windows = windows(&[effect], Time::from_secs(10), Time::from_secs(60));
        let mut figures = Figures::default();
        add(&mut figures, &[], &windows);
        assert_eq!(figures, Figures::default());
        add(&mut figures, &[led(0, 3, 0, 20), led(1, 4, 21, 60), led(0, 3, 25, 26)], &windows);
        let get = |phase: &str, figure| figures.get(&phase.parse::<Phase>().unwrap(), figure);
        assert_eq!(
            ["before", "during stop", "after stop", ""].map(|phase| get(phase, Figure::TwoLeaders)),
            [Some(0.0), Some(0.0), Some(1.0), Some(1.0)]
        );
        assert_eq!(get("during stop", Figure::LeaderChanges), Some(1.0));
    }
}
