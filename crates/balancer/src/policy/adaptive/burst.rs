//! Choices for messages that come together, with the members' keys computed once.

use std::collections::VecDeque;

use super::{
    READY, SCAN_MAX, Scan, Sighting, choose,
    usual::{Least, Usual},
};
use crate::{
    dispatch::Dispatch,
    group_view::{GroupView, View},
    nanos::Nanos,
    rng::Rng,
    seats::Seats,
};

/// Comparisons of members for one burst: messages that one publisher sends together.
///
/// The messages of a read have one [`Dispatch::at`]. Between their picks little changes but the chosen member, so only
/// its key is computed anew. A choice counts only if the chosen member's full key and turn are the ones compared;
/// otherwise all keys are computed anew. So a member that became worse is passed over, and a member that became better is
/// noticed with the next read.
#[derive(Debug, Default)]
pub struct Burst {
    /// Address of the seats. Those may be gone: it is only compared.
    seats: usize,
    at: Nanos,
    /// The group's figures at that time.
    view: View,
    known: Known,
    /// [Usual keys](Usual) and turns, by slot.
    compared: Vec<Compared>,
    /// Turns and their slots, the oldest first.
    rotation: VecDeque<(u64, usize)>,
}

/// Knowledge of the members in a [`Burst`].
#[derive(Debug, Default)]
enum Known {
    #[default]
    Nothing,
    /// Nothing, but the burst has a message already.
    Little,
    /// Their keys, with evidence of their work.
    Keys(Usual),
    /// Only their turns, as all wait equally long.
    Turns,
}

#[derive(Clone, Copy, Debug)]
struct Compared {
    key: u64,
    turn: u64,
}

/// As [`choose`], for a message of a burst, with the view of [`Burst::view`].
#[inline]
pub(crate) fn choose_in(
    burst: &mut Burst,
    seats: &Seats,
    view: &View,
    dispatch: &Dispatch,
    rng: &mut Rng,
) -> Option<Sighting> {
    // The first message may be the only one.
    if burst.is_first() || seats.loads().len() > SCAN_MAX {
        return choose(seats, view, dispatch, rng);
    }
    if view.has_no_speeds() {
        return burst.next_in_turn(seats).or_else(|| choose(seats, view, dispatch, rng));
    }
    let scan = Scan { view, now: dispatch.at.0 };
    if !scan.has_usual_keys() {
        return choose(seats, view, dispatch, rng);
    }
    if let Some(seen) = burst.least(seats, &scan) {
        return Some(seen);
    }
    burst.compare_all(seats, &scan);
    burst.least(seats, &scan).or_else(|| scan.weigh_all(seats))
}

impl Burst {
    /// Records that the chosen slot is booked, and has this turn.
    #[inline(always)]
    pub(crate) fn booked(&mut self, seats: &Seats, index: usize, turn: u64) {
        if self.seats != address(seats) {
            return;
        }
        match &self.known {
            Known::Keys(usual) => {
                if let Some(member) = self.compared.get_mut(index) {
                    *member = Compared { key: usual.key_of(seats.loads()[index].hot()), turn };
                }
            }
            // Another slot's turn is corrected when it comes to the front.
            Known::Turns => {
                if self.rotation.pop_front_if(|(_, first)| *first == index).is_some() {
                    self.rotation.push_back((turn, index));
                }
            }
            Known::Nothing | Known::Little => {}
        }
    }

    /// The group's figures, read once for a burst.
    #[inline(always)]
    pub(crate) fn view(&mut self, group: &GroupView, seats: &Seats, at: Nanos) -> View {
        if self.seats != address(seats) || self.at != at {
            (self.seats, self.at, self.known) = (address(seats), at, Known::Nothing);
            self.view = group.at(at, seats);
        }
        self.view
    }

    /// Whether this is the first message of the burst.
    #[inline(always)]
    fn is_first(&mut self) -> bool {
        let is_first = matches!(self.known, Known::Nothing);
        if is_first {
            self.known = Known::Little;
        }
        is_first
    }

    #[inline(never)]
    fn compare_all(&mut self, seats: &Seats, scan: &Scan<'_>) {
        let usual = Usual::new(scan.view, scan.now);
        self.compared.clear();
        usual.compare_all(seats, |key, turn| self.compared.push(Compared { key, turn }));
        self.known = Known::Keys(usual);
    }

    /// Returns the slot of the least key; of equal ones that with the oldest turn. `None` if it has changed since, or no
    /// keys are known.
    #[inline(always)]
    fn least(&self, seats: &Seats, scan: &Scan<'_>) -> Option<Sighting> {
        if !matches!(self.known, Known::Keys(_)) {
            return None;
        }
        let mut least = Least::NONE;
        for (index, member) in self.compared.iter().enumerate() {
            least.compare(member.key, member.turn, index);
        }
        if seats.loads().len() <= least.index || seats.turn(least.index) != least.turn {
            return None;
        }
        scan.confirmed(seats.loads(), least)
    }

    /// Returns the slot with the oldest turn, if it is ready. Its processing time is taken as it is: the group has no mean.
    #[inline(always)]
    fn next_in_turn(&mut self, seats: &Seats) -> Option<Sighting> {
        if !matches!(self.known, Known::Turns) || self.rotation.len() > seats.loads().len() {
            self.take_turns(seats);
        }
        for _ in 0..seats.loads().len() {
            let &(turn, index) = self.rotation.front()?;
            let is_turn = seats.turn(index);
            if is_turn == turn {
                let hot = seats.loads()[index].hot();
                let (finish, service) = (hot.finish(), hot.speed().processing_ns());
                return (hot.rank() == READY).then_some(Sighting { index, finish, service, is_by_turn: true });
            }
            // Another picker has chosen it.
            self.rotation.rotate_left(1);
            self.rotation.iter_mut().next_back().into_iter().for_each(|last| last.0 = is_turn);
        }
        None
    }

    #[inline(never)]
    fn take_turns(&mut self, seats: &Seats) {
        self.rotation.clear();
        self.rotation.extend((0..seats.loads().len()).map(|index| (seats.turn(index), index)));
        self.rotation.make_contiguous().sort_unstable();
        self.known = Known::Turns;
    }
}

fn address(seats: &Seats) -> usize {
    std::ptr::from_ref(seats).addr()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{Acknowledged, Availability, Group, LoadReport, MemberId, MemberLoad, Nanos, Policy};

    const MS: u64 = 1_000_000;

    struct Side {
        group: Group<u64>,
        loads: Vec<Arc<MemberLoad>>,
    }

    impl Side {
        fn of(members: u64) -> Self {
            let group = Group::new(Policy::Adaptive);
            let loads: Vec<_> = (0..members).map(|_| Arc::new(MemberLoad::new(Nanos(0)))).collect();
            for (id, load) in (0..).zip(&loads) {
                group.join(MemberId(id), Arc::clone(load), 1, id, Nanos(0));
            }
            Self { group, loads }
        }
    }

    fn dispatch(at: u64) -> Dispatch {
        Dispatch { at: Nanos(at), bytes: 100, is_acknowledged: true, ..Dispatch::default() }
    }

    /// A member's evidence, or a change of its availability.
    fn disturb(load: &MemberLoad, kind: u64, at: u64) {
        match kind % 5 {
            0 => load.acknowledged(&Acknowledged::one(Nanos(at.saturating_sub(kind % 50 * MS)), 100, Nanos(at))),
            1 => {
                let processing_time = Duration::from_millis(1 + kind % 40);
                load.report(&LoadReport { messages_in_queue: kind % 7, processing_time, draining: false }, Nanos(at));
            }
            2 => load.set_availability(Availability::Full),
            3 => load.set_availability(Availability::Offline),
            _ => load.set_availability(Availability::Ready),
        }
    }

    #[test]
    fn burst_chooses_as_single_picks_do() {
        for seed in 0..60 {
            let mut random = Rng::new(seed);
            let members = 1 + seed % 12;
            let (single, together) = (Side::of(members), Side::of(members));
            let (mut burst, mut rngs) = (Burst::default(), [Rng::new(7), Rng::new(7)]);
            let mut at = 100 * MS;
            for _ in 0..40 {
                at += random.next_u64() % (3 * MS);
                for _ in 0..random.next_u64() % 4 {
                    let (member, kind) = (random.next_u64() % members, random.next_u64() >> 8);
                    for side in [&single, &together] {
                        disturb(&side.loads[member as usize], kind, at);
                    }
                }
                for _ in 0..random.next_u64() % 30 {
                    let one =
                        single.group.members().pick_late(&dispatch(at), 0, &mut rngs[0]).map(|member| *member.value());
                    let other = together.group.members();
                    let other =
                        other.pick_in_burst(&dispatch(at), &mut burst, &mut rngs[1]).map(|member| *member.value());
                    assert_eq!(one, other, "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn burst_sees_what_others_do_to_the_chosen_member() {
        let Side { group, loads } = Side::of(3);
        for load in &loads {
            load.report(&LoadReport { processing_time: Duration::from_millis(10), ..LoadReport::default() }, Nanos(MS));
        }
        let (mut burst, mut rng, at) = (Burst::default(), Rng::new(1), 100 * MS);
        // A message of QoS 0 does not wait.
        let dispatch = Dispatch { is_acknowledged: false, ..dispatch(at) };
        let mut pick = || group.members().pick_in_burst(&dispatch, &mut burst, &mut rng).map(|member| *member.value());
        assert_eq!([pick(), pick()], [Some(0), Some(1)]);
        loads[2].set_availability(Availability::Full);
        assert_eq!(pick(), Some(0));
        // Another publisher picks.
        let other = group.members().pick(&dispatch, &mut Rng::new(1)).map(|member| *member.value());
        assert_eq!((other, pick()), (Some(1), Some(0)));
    }
}
