//! The members of a group: one of them, and all of them at one moment.

use std::{fmt, iter::FusedIterator, slice, sync::Arc};

use crate::{
    dispatch::Dispatch,
    explain::{Candidate, Explanation},
    group_view::GroupView,
    key_pins::{FreedKeys, KeySlot},
    load::MemberLoad,
    nanos::Nanos,
    pick::{Table, book, pick, preview},
    policy::{
        Policy,
        adaptive::SCAN_MAX,
        ordered::{Keeper, keeper},
        weighted_round_robin::Strides,
    },
    policy_state::PolicyState,
    rng::Rng,
    rules::Rules,
    seats::Seats,
    shadow::{Shadow, ShadowFigures, ShadowRecord},
    standing::Standing,
    sync::PublishedGuard,
};

/// Names a member within its groups. The caller assigns it, one per client session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// A member of a group, with the value that the caller attached to it.
#[derive(Debug)]
pub struct Member<T> {
    pub(crate) id: MemberId,
    pub(crate) value: T,
    pub(crate) load: Arc<MemberLoad>,
    pub(crate) standing: Standing,
    pub(crate) joined_at: Nanos,
}

impl<T> Member<T> {
    /// The name under which the member joined.
    pub fn id(&self) -> MemberId {
        self.id
    }

    /// What the caller attached to the member at joining.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// The load of the member's client.
    pub fn load(&self) -> &Arc<MemberLoad> {
        &self.load
    }

    /// What it brought along beside its load; the weight is at least 1.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// When the member joined; joining again under the same name does not change it.
    pub fn joined_at(&self) -> Nanos {
        self.joined_at
    }
}

/// The members of a group as they were when this was taken, in join order; see
/// [`Group::members`](crate::Group::members).
///
/// Made for short use, e.g. one batch of messages: it keeps members which leave meanwhile, and their values,
/// alive; and turns taken through an outdated one are unknown to those who took a newer one.
pub struct Members<'a, T> {
    pub(crate) snapshot: PublishedGuard<Snapshot<T>>,
    pub(crate) view: &'a GroupView,
}

impl<T> Members<'_, T> {
    /// Chooses the member for one message and books the message on it: its load counts one message more since the
    /// last report and one more outstanding, `dispatch.at` as its last send, and its turn in this group is over.
    ///
    /// `None` only if there is no member. Takes no lock and allocates nothing. `dispatch.at` may be the same for
    /// many picks; then members of equal merit take turns. `rng` is for the policies that choose at random.
    pub fn pick(&self, dispatch: &Dispatch, rng: &mut Rng) -> Option<&Member<T>> {
        let table = self.table(self.snapshot.rules.policy);
        let index = match &self.snapshot.shadow {
            None => pick(table, dispatch, rng)?,
            Some(shadow) => shadow.pick_beside(table, dispatch, rng)?,
        };
        Some(&self.snapshot.members[index])
    }

    /// Chooses and books like [`pick`](Self::pick), and tells what the choice was made from. Allocates; made for a
    /// choice now and then.
    pub fn pick_explained(&self, dispatch: &Dispatch, rng: &mut Rng) -> Option<(&Member<T>, Explanation)> {
        let kept = self.keeper(dispatch);
        let candidates = match self.len() {
            0..=SCAN_MAX => self.explain(dispatch),
            _ => self.some(dispatch, kept, rng.clone()),
        };
        let member = self.pick(dispatch, rng)?;
        let kept = kept.map(|index| self.snapshot.members[index].id);
        let explanation = Explanation::new(&self.snapshot.rules, kept, candidates, self.len(), member.id);
        Some((member, explanation))
    }

    /// Chooses and books among the members that `wanted` says, for a message that not every member can take. Not
    /// by the policy: the best [`Availability`](crate::Availability) first, then the fewest pending messages, then
    /// the oldest turn.
    pub fn pick_where(&self, dispatch: &Dispatch, wanted: impl Fn(&Member<T>) -> bool) -> Option<&Member<T>> {
        let seats = &self.snapshot.seats;
        let members = self.snapshot.members.iter().enumerate().filter(|(_, member)| wanted(member));
        let merit = |index: usize| (seats.loads()[index].rank(), seats.loads()[index].pending(), seats.turn(index));
        let (index, member) = members.min_by_key(|(index, _)| merit(*index))?;
        seats.take_turn(index, seats.next_turn());
        if let Some(shadow) = &self.snapshot.shadow {
            shadow.take_turn(index);
        }
        book(seats, index, &self.view.at(dispatch.at, seats), dispatch);
        Some(member)
    }

    /// A message with this [key](Dispatch::key) that has to be acknowledged, and for which this member was chosen, is
    /// acknowledged or will not be sent to it after all; once all of them are, the key may move to another member.
    ///
    /// To be called for each beside [`acknowledged`](MemberLoad::acknowledged) or
    /// [`taken_back`](MemberLoad::taken_back), where [`Rules::is_ordered`]. A missing call breaks no order: the key
    /// stays where it is until it is seen there while the member has nothing outstanding.
    pub fn key_done(&self, key: u64, member: MemberId) {
        if let Some(pins) = &self.snapshot.state.pins {
            pins.done(KeySlot::of(key), member);
        }
    }

    /// Takes from `member` the keys of which it has no messages but `queued`, so that these and those that follow go to
    /// others. `queued` is what it was chosen for and the caller can take back: the key of each, and whether it has to be
    /// acknowledged; nothing may be sent to it, nor come in, meanwhile. A key of which it has others, that it is sent
    /// already or that are on their way to it, stays with it.
    ///
    /// [`key_done`](Self::key_done) is not to be called for messages of the keys that were taken.
    pub fn free_keys(&self, member: MemberId, queued: impl IntoIterator<Item = (u64, bool)>, now: Nanos) -> FreedKeys {
        match &self.snapshot.state.pins {
            Some(pins) => FreedKeys::take(pins, member, queued.into_iter(), now),
            None => FreedKeys::ALL,
        }
    }

    /// Whether a message that a pick has just booked on `member`, and that has to be acknowledged, follows others of
    /// its [key](Dispatch::key) there: then that is where it belongs, though the member may want nothing new.
    pub fn follows_others(&self, member: MemberId, dispatch: &Dispatch) -> bool {
        match (&self.snapshot.state.pins, dispatch.key_slot()) {
            (Some(pins), Some(slot)) => pins.load(slot).has_others(member, dispatch.at),
            _ => false,
        }
    }

    /// `member` as a pick at `dispatch.at` would weigh it. Made for display and for rare questions, not for speed.
    pub fn weigh(&self, member: &Member<T>, dispatch: &Dispatch) -> Candidate {
        let view = self.view.at(dispatch.at, &self.snapshot.seats);
        let index = self.iter().position(|other| other.id == member.id);
        let turn = index.map_or(0, |index| self.snapshot.seats.turn(index));
        Candidate::of(member.id, &member.load, turn, &view, dispatch.at)
    }

    /// All members as a pick at `dispatch.at` would weigh them, in join order. Made for display, not for speed.
    pub fn explain(&self, dispatch: &Dispatch) -> Vec<Candidate> {
        self.candidates(dispatch, 0..self.len())
    }

    /// Whom earlier messages of the key keep it with.
    fn keeper(&self, dispatch: &Dispatch) -> Option<usize> {
        let (pins, slot) = (self.snapshot.state.pins.as_ref()?, dispatch.key_slot()?);
        let view = self.view.at(dispatch.at, &self.snapshot.seats);
        match keeper(self.table(self.snapshot.rules.policy), pins.load(slot), &view, dispatch.at) {
            Keeper::Seat(index) => Some(index),
            Keeper::Busy | Keeper::Nobody => None,
        }
    }

    /// Who keeps the key, whom a pick with these numbers would choose, and others spread over the group.
    fn some(&self, dispatch: &Dispatch, kept: Option<usize>, mut rng: Rng) -> Vec<Candidate> {
        let (len, count) = (self.len(), Explanation::CANDIDATES_MAX);
        let first = rng.clone().below(len);
        let mut indices: Vec<_> = (0..count).map(|number| (first + number * len / count) % len).collect();
        indices.extend(preview(self.table(self.snapshot.rules.policy), dispatch, &mut rng));
        indices.extend(kept);
        indices.sort_unstable();
        indices.dedup();
        self.candidates(dispatch, indices.into_iter())
    }

    fn candidates(&self, dispatch: &Dispatch, indices: impl Iterator<Item = usize>) -> Vec<Candidate> {
        let seats = &self.snapshot.seats;
        let view = self.view.at(dispatch.at, seats);
        let candidate = |index: usize| {
            let member = &self.snapshot.members[index];
            Candidate::of(member.id, &member.load, seats.turn(index), &view, dispatch.at)
        };
        indices.map(candidate).collect()
    }

    /// How the shadow of these rules compares with the policy that acts; `None` if there is no shadow.
    pub fn shadow(&self) -> Option<ShadowFigures> {
        self.snapshot.shadow.as_ref().map(|shadow| shadow.record().figures())
    }

    /// What the group chooses by.
    pub fn rules(&self) -> Rules {
        self.snapshot.rules
    }

    fn table(&self, policy: Policy) -> Table<'_> {
        Table { policy, seats: &self.snapshot.seats, state: &self.snapshot.state, view: self.view }
    }

    /// All members, in join order.
    pub fn iter(&self) -> Iter<'_, T> {
        Iter(self.snapshot.members.iter())
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.snapshot.members.len()
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: fmt::Debug> fmt::Debug for Members<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

impl<'a, T> IntoIterator for &'a Members<'_, T> {
    type Item = &'a Member<T>;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

/// Iterates over the members of a group in join order; see [`Members::iter`].
#[derive(Debug)]
pub struct Iter<'a, T>(slice::Iter<'a, Arc<Member<T>>>);

impl<'a, T> Iterator for Iter<'a, T> {
    type Item = &'a Member<T>;

    fn next(&mut self) -> Option<&'a Member<T>> {
        self.0.next().map(|member| &**member)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<T> ExactSizeIterator for Iter<'_, T> {}
impl<T> FusedIterator for Iter<'_, T> {}

/// What a group publishes: its rules, its members, and apart from them what a scan reads of them.
///
/// INVARIANT: `members`, `seats` and those of `shadow` have the same length and order.
#[derive(Debug)]
pub(crate) struct Snapshot<T> {
    rules: Rules,
    members: Box<[Arc<Member<T>>]>,
    seats: Seats,
    state: PolicyState,
    /// If the rules have one.
    shadow: Option<Shadow>,
}

impl<T> Snapshot<T> {
    /// `shadow` is that of the rules; `before` the snapshot that this one follows.
    pub(crate) fn new(
        rules: Rules,
        roster: Vec<Seated<T>>,
        shadow: Option<Arc<ShadowRecord>>,
        before: Option<&Self>,
    ) -> Self {
        let turns: Vec<u64> = roster.iter().map(|seated| seated.turn).collect();
        let state = PolicyState::new(&rules, &roster, before.map(|before| &before.state));
        let shadow = shadow.map(|record| {
            let roster: Vec<_> = roster.iter().map(Seated::in_shadow).collect();
            // A new one begins where the group is.
            let next_turn = before.map_or(0, |before| before.next_turns().1);
            let before = before.and_then(|before| before.shadow.as_ref());
            let before = before.filter(|before| Arc::ptr_eq(before.record(), &record)).map(Shadow::state);
            match before {
                Some(before) => Shadow::new(&roster, record, Some(before), next_turn),
                None => Shadow::new(&roster, record, Some(&state.copied()), next_turn),
            }
        });
        let members: Box<[_]> = roster.into_iter().map(|seated| seated.member).collect();
        let loads = members.iter().map(|member| Arc::clone(&member.load)).collect();
        let seats = Seats::new(loads, &turns);
        seats.go_on_from(before.map_or(0, |before| before.seats.peek_turn()));
        Self { rules, seats, state, members, shadow }
    }

    /// The members with their turns as they are now, to make the next snapshot of.
    ///
    /// A turn taken between this copy and the publication of the next snapshot is lost with the old one: that
    /// member may be chosen once more before its turn. Its load, which is shared by both, has the message.
    pub(crate) fn roster(&self) -> Vec<Seated<T>> {
        let seated = |(index, member)| {
            let turn = self.seats.turn(index);
            let period_left = period_left_of(&self.state, index, turn);
            let (shadow_turn, shadow_period_left) = match &self.shadow {
                Some(shadow) => {
                    let turn = shadow.seats().turn(index);
                    (turn, period_left_of(shadow.state(), index, turn))
                }
                None => (turn, period_left),
            };
            Seated { member: Arc::clone(member), turn, period_left, shadow_turn, shadow_period_left }
        };
        self.members.iter().enumerate().map(seated).collect()
    }

    pub(crate) fn rules(&self) -> Rules {
        self.rules
    }

    /// What the shadow of these rules has recorded.
    pub(crate) fn shadow(&self) -> Option<&Arc<ShadowRecord>> {
        self.shadow.as_ref().map(Shadow::record)
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// The next turn to give out, and that of the shadow.
    pub(crate) fn next_turns(&self) -> (u64, u64) {
        let next = self.seats.peek_turn();
        (next, self.shadow.as_ref().map_or(next, |shadow| shadow.seats().peek_turn()))
    }
}

/// A member and what is its own in the group, while a writer makes a snapshot.
pub(crate) struct Seated<T> {
    pub(crate) member: Arc<Member<T>>,
    pub(crate) turn: u64,
    /// See [`Strides::period_left`].
    pub(crate) period_left: u64,
    /// `turn` by the policy that does not act.
    pub(crate) shadow_turn: u64,
    /// `period_left` by it.
    pub(crate) shadow_period_left: u64,
}

impl<T> Seated<T> {
    /// The shadow begins where the group is.
    pub(crate) fn begin_shadow(&mut self) {
        (self.shadow_turn, self.shadow_period_left) = (self.turn, self.period_left);
    }

    /// The member as the shadow has it.
    fn in_shadow(&self) -> Self {
        let Self { ref member, shadow_turn: turn, shadow_period_left: period_left, .. } = *self;
        Self { member: Arc::clone(member), turn, period_left, shadow_turn: turn, shadow_period_left: period_left }
    }
}

fn period_left_of(state: &PolicyState, index: usize, turn: u64) -> u64 {
    state.strides.as_ref().map_or(Strides::first_period(turn), |strides| strides.period_left(index))
}
