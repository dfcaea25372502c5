//! The members of a group: a single one, and all of them at one moment.

use std::{collections::HashSet, fmt, iter::FusedIterator, slice, sync::Arc};

use crate::{
    chooser::Choosers,
    departed::Departed,
    dispatch::{Dispatch, KeySlot},
    explain::{Candidate, Explanation},
    group_view::GroupView,
    key_pins::{FreedKeys, KeyPins},
    load::{Availability, MemberLoad},
    nanos::Nanos,
    pick::{Table, book, pick, pick_in, pick_late, preview},
    policy::{
        Burst, Policy,
        adaptive::SCAN_MAX,
        ordered::{Keeper, keeper},
        weighted_round_robin::Strides,
    },
    policy_state::PolicyState,
    rng::Rng,
    rules::{LateBinding, Rules},
    seats::Seats,
    shadow::{Shadow, ShadowFigures, ShadowRecord},
    standing::{MemberId, Standing},
    sync::PublishedGuard,
};

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
    /// The id with which the member joined.
    pub fn id(&self) -> MemberId {
        self.id
    }

    /// The caller's value for the member.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// The load of the member's client.
    pub fn load(&self) -> &Arc<MemberLoad> {
        &self.load
    }

    /// The member's weight and identity; the weight is at least 1.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// When the member first joined; joining again with the same id does not change it.
    pub fn joined_at(&self) -> Nanos {
        self.joined_at
    }
}

/// The members of a group at one moment; see [`Group::members`](crate::Group::members).
///
/// Intended for short use, e.g. one batch of messages. It keeps members that leave in this time, and their values, alive.
/// Bookings through an outdated snapshot do not update the rotation of a newer one.
pub struct Members<'a, T> {
    pub(crate) snapshot: PublishedGuard<Snapshot<T>>,
    pub(crate) view: &'a GroupView,
}

impl<T> Members<'_, T> {
    /// Chooses the member for one message and books the message on it.
    ///
    /// Its load counts one more message since the last report, one more outstanding, and `dispatch.at` as its last
    /// send. The member goes to the end of the rotation.
    ///
    /// `None` only if there is no member, or the message has to wait for a [former member](Self::held_by). Takes no lock and allocates nothing. `dispatch.at` may be the same for many
    /// picks; then equal members take turns. `rng` is for the policies that choose at random.
    pub fn pick(&self, dispatch: &Dispatch, rng: &mut Rng) -> Option<&Member<T>> {
        let table = self.table(self.snapshot.rules.policy);
        let index = match &self.snapshot.shadow {
            None => pick(table, dispatch, rng)?,
            Some(shadow) => self.pick_beside(shadow, dispatch, rng)?,
        };
        Some(&self.snapshot.members[index])
    }

    // A function, so that the usual pick does not prepare the closure.
    #[cold]
    #[inline(never)]
    fn pick_beside(&self, shadow: &Shadow, dispatch: &Dispatch, rng: &mut Rng) -> Option<usize> {
        let table = self.table(self.snapshot.rules.policy);
        shadow.pick_beside(table, dispatch, rng, false, |rng| pick(table, dispatch, rng))
    }

    /// Chooses the member for a message that may wait with the group, and books it like [`pick`](Self::pick).
    ///
    /// `None`: no member should have it now. The caller offers the messages of the group again, oldest first, after
    /// each acknowledgement, report and change of the members, and once a second. `waiting`: messages of the group that
    /// wait, without this one.
    ///
    /// Only with [`Rules::late_binding`] and [`Adaptive`](Policy::Adaptive), and for messages that need an acknowledgement and
    /// have no key in an ordered group. Otherwise like `pick`.
    #[inline]
    pub fn pick_late(&self, dispatch: &Dispatch, waiting: usize, rng: &mut Rng) -> Option<&Member<T>> {
        if dispatch.is_acknowledged && self.view.may_wait() {
            return self.pick_or_wait(dispatch, waiting, rng);
        }
        self.pick(dispatch, rng)
    }

    /// Chooses like [`pick_late`](Self::pick_late) for a new message, and reuses the comparisons of the same burst. Pass one
    /// `burst` for the messages that a publisher sends together, in any number of groups.
    #[inline]
    pub fn pick_in_burst(&self, dispatch: &Dispatch, burst: &mut Burst, rng: &mut Rng) -> Option<&Member<T>> {
        let snapshot: &Snapshot<T> = &self.snapshot;
        let Snapshot { rules, shadow, state, members, .. } = snapshot;
        let is_plain = rules.policy == Policy::Adaptive
            && shadow.is_none()
            && (state.pins.is_none() || dispatch.key_slot().is_none())
            && !(dispatch.is_acknowledged && self.view.may_wait());
        if !is_plain {
            return self.pick_late(dispatch, 0, rng);
        }
        Some(&members[pick_in(self.table(rules.policy), dispatch, burst, rng)?])
    }

    #[cold]
    fn pick_or_wait(&self, dispatch: &Dispatch, waiting: usize, rng: &mut Rng) -> Option<&Member<T>> {
        let rules = &self.snapshot.rules;
        let is_pinned = self.snapshot.state.pins.is_some() && dispatch.key.is_some();
        if rules.late_binding == LateBinding::Off || rules.policy != Policy::Adaptive || is_pinned {
            return self.pick(dispatch, rng);
        }
        let table = self.table(rules.policy);
        let act = |rng: &mut Rng| pick_late(table, rules, waiting, dispatch, rng);
        let index = match &self.snapshot.shadow {
            None => act(rng)?,
            Some(shadow) => shadow.pick_beside(table, dispatch, rng, true, act)?,
        };
        Some(&self.snapshot.members[index])
    }

    /// Chooses and books like [`pick_late`](Self::pick_late), and explains the choice. Allocates; intended for occasional
    /// samples.
    pub fn pick_explained(
        &self,
        dispatch: &Dispatch,
        waiting: usize,
        rng: &mut Rng,
    ) -> Option<(&Member<T>, Explanation)> {
        let kept = self.keeper(dispatch);
        let candidates = match self.len() {
            0..=SCAN_MAX => self.explain(dispatch),
            _ => self.some(dispatch, kept, rng.clone()),
        };
        let member = self.pick_late(dispatch, waiting, rng)?;
        let kept = kept.map(|index| self.snapshot.members[index].id);
        let explanation = Explanation::new(&self.snapshot.rules, kept, candidates, self.len(), member.id);
        Some((member, explanation))
    }

    /// Chooses and books among the members for which `wanted` holds, for a message that not every member can take.
    ///
    /// Ignores the policy: the best [`Availability`](crate::Availability) first, then the fewest pending messages, then
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

    /// Returns how many messages per second the members process together, as far as their speeds are known. Members that
    /// drain or are offline do not count. Scans all members.
    pub fn messages_per_second(&self) -> f64 {
        let hot = self.snapshot.seats.loads().iter().map(|load| load.hot());
        let at_work = hot.filter(|hot| hot.rank() <= Availability::Full as u64);
        let known = at_work.map(|hot| hot.speed().processing_ns()).filter(|&processing_ns| processing_ns > 0);
        known.map(|processing_ns| 1e9 / processing_ns as f64).sum()
    }

    /// Reports that a message with this [key](Dispatch::key) is acknowledged, or will not be sent to the member chosen
    /// for it. When no such message is left, the key may move to another member.
    ///
    /// Only for messages that need an acknowledgement, in groups with [`Rules::is_ordered`]. Call it for each, along
    /// with [`acknowledged`](MemberLoad::acknowledged) or [`taken_back`](MemberLoad::taken_back). A missing call breaks
    /// no order: the key then stays pinned until a pick finds the member without outstanding messages.
    pub fn key_done(&self, key: u64, member: MemberId) {
        if let Some(pins) = &self.snapshot.state.pins {
            pins.done(KeySlot::of(key), member);
        }
    }

    /// Unpins the keys of which `member` has only the messages in `queued`, so that these messages and later ones go to
    /// others.
    ///
    /// `queued` are the messages that the caller can take back: the key of each, and whether it needs an
    /// acknowledgement. During the call no message may enter or leave the member's queue. A key stays if other messages of it
    /// are in flight, or on their way to the member.
    ///
    /// Do not call [`key_done`](Self::key_done) for messages of the freed keys.
    pub fn free_keys(&self, member: MemberId, queued: impl IntoIterator<Item = (u64, bool)>, now: Nanos) -> FreedKeys {
        match &self.snapshot.state.pins {
            Some(pins) => FreedKeys::take(pins, member, queued.into_iter(), now),
            None => FreedKeys::ALL,
        }
    }

    /// Returns whether a message just booked on `member` follows others of its [key](Dispatch::key) there. Then it
    /// belongs there, even if the member drains. The message must need an acknowledgement.
    pub fn follows_others(&self, member: MemberId, dispatch: &Dispatch) -> bool {
        match (&self.snapshot.state.pins, dispatch.key_slot()) {
            (Some(pins), Some(slot)) => pins.load(slot).has_others(member, dispatch.at),
            _ => false,
        }
    }

    /// Returns the former member whose messages in flight hold the [key](Dispatch::key) of a message that needs an
    /// acknowledgement. The message waits until these are acknowledged or the client is offline.
    pub fn held_by(&self, dispatch: &Dispatch) -> Option<MemberId> {
        let state = &self.snapshot.state;
        let pin = state.pins.as_ref()?.load(dispatch.key_slot()?);
        state.departed.holder(pin).filter(|_| dispatch.is_acknowledged)
    }

    /// Returns whether this former member may hold keys. Call it after [`key_done`](Self::key_done): messages may wait
    /// for the key.
    pub fn has_departed(&self, member: MemberId) -> bool {
        let departed = &self.snapshot.state.departed;
        !departed.is_empty() && departed.contains(member)
    }

    /// Weighs `member` like a pick at `dispatch.at`. For display and rare decisions; not optimized for speed.
    pub fn weigh(&self, member: &Member<T>, dispatch: &Dispatch) -> Candidate {
        let view = self.view.at(dispatch.at, &self.snapshot.seats);
        let index = self.iter().position(|other| other.id == member.id);
        let turn = index.map_or(0, |index| self.snapshot.seats.turn(index));
        Candidate::of(member.id, &member.load, turn, &view, dispatch.at)
    }

    /// Weighs all members like a pick at `dispatch.at`, in join order. For display; not optimized for speed.
    pub fn explain(&self, dispatch: &Dispatch) -> Vec<Candidate> {
        self.candidates(dispatch, 0..self.len())
    }

    /// Returns the member to which earlier messages pin the key.
    fn keeper(&self, dispatch: &Dispatch) -> Option<usize> {
        let (pins, slot) = (self.snapshot.state.pins.as_ref()?, dispatch.key_slot()?);
        let view = self.view.at(dispatch.at, &self.snapshot.seats);
        match keeper(self.table(self.snapshot.rules.policy), pins.load(slot), &view, dispatch.at) {
            Keeper::Seat(index) => Some(index),
            Keeper::Busy | Keeper::Departed | Keeper::Nobody => None,
        }
    }

    /// Weighs the member that holds the key, the member that a pick with this `rng` would choose, and a sample of the
    /// group.
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

    /// Compares the shadow policy with the active one; `None` without a shadow policy.
    pub fn shadow(&self) -> Option<ShadowFigures> {
        self.snapshot.shadow.as_ref().map(|shadow| shadow.record().figures())
    }

    /// The rules of the group.
    pub fn rules(&self) -> Rules {
        self.snapshot.rules
    }

    fn table(&self, policy: Policy) -> Table<'_> {
        Table { policy, seats: &self.snapshot.seats, state: &self.snapshot.state, view: self.view }
    }

    /// Iterates over all members, in join order.
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

/// A published state of a group: its rules, its members, and beside them the data that a scan reads.
///
/// INVARIANT: `members`, `seats` and those of `shadow` have the same length and order.
#[derive(Debug)]
pub(crate) struct Snapshot<T> {
    rules: Rules,
    members: Box<[Arc<Member<T>>]>,
    seats: Seats,
    state: PolicyState,
    /// Present if the rules have a shadow policy.
    shadow: Option<Shadow>,
}

impl<T> Snapshot<T> {
    /// Creates a snapshot that follows `before`. `shadow` is the record of the rules' shadow policy.
    pub(crate) fn new(
        rules: Rules,
        roster: Vec<Seated<T>>,
        shadow: Option<Arc<ShadowRecord>>,
        before: Option<&Self>,
        choosers: &Arc<Choosers>,
    ) -> Self {
        let turns: Vec<u64> = roster.iter().map(|seated| seated.turn).collect();
        let mut state = PolicyState::new(&rules, &roster, before.map(|before| &before.state));
        state.choosers = Arc::clone(choosers);
        if let (Some(before), Some(pins), false) = (before, &state.pins, rules.may_break_order) {
            state.departed = before.departed(pins, &roster);
        }
        let shadow = shadow.map(|record| {
            let roster: Vec<_> = roster.iter().map(Seated::in_shadow).collect();
            // A new shadow starts with the group's present state.
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

    /// Returns former members that hold keys, after `roster` has replaced the members.
    fn departed(&self, pins: &KeyPins, roster: &[Seated<T>]) -> Departed {
        if self.state.departed.is_empty() && roster.len() >= self.members.len() {
            return Departed::default(); // one member at a time joins or leaves
        }
        let present: HashSet<_> = roster.iter().map(|seated| seated.member.id).collect();
        let members = self.members.iter().map(|member| (member.id, Arc::clone(&member.load)));
        let former = self.state.departed.iter().cloned().chain(members);
        Departed::of(pins, former.filter(|(id, _)| !present.contains(id)))
    }

    /// Copies the members with their present turns, for the next snapshot.
    ///
    /// A turn taken between this copy and the next publication is lost: that member may be chosen once more before its
    /// turn. Its load has the message, since both snapshots share it.
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

    /// The record of the rules' shadow policy.
    pub(crate) fn shadow(&self) -> Option<&Arc<ShadowRecord>> {
        self.shadow.as_ref().map(Shadow::record)
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// The next turns of the group and of its shadow.
    pub(crate) fn next_turns(&self) -> (u64, u64) {
        let next = self.seats.peek_turn();
        (next, self.shadow.as_ref().map_or(next, |shadow| shadow.seats().peek_turn()))
    }
}

/// A member and its state in the group, while a writer makes a snapshot.
pub(crate) struct Seated<T> {
    pub(crate) member: Arc<Member<T>>,
    pub(crate) turn: u64,
    /// See [`Strides::period_left`].
    pub(crate) period_left: u64,
    /// `turn` in the shadow's rotation.
    pub(crate) shadow_turn: u64,
    /// `period_left` in the shadow's strides.
    pub(crate) shadow_period_left: u64,
}

impl<T> Seated<T> {
    /// Starts the shadow with the group's present state.
    pub(crate) fn begin_shadow(&mut self) {
        (self.shadow_turn, self.shadow_period_left) = (self.turn, self.period_left);
    }

    /// Returns the member with the shadow's turn and period.
    fn in_shadow(&self) -> Self {
        let Self { ref member, shadow_turn: turn, shadow_period_left: period_left, .. } = *self;
        Self { member: Arc::clone(member), turn, period_left, shadow_turn: turn, shadow_period_left: period_left }
    }
}

fn period_left_of(state: &PolicyState, index: usize, turn: u64) -> u64 {
    state.strides.as_ref().map_or(Strides::first_period(turn), |strides| strides.period_left(index))
}
