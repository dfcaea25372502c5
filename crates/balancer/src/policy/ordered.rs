//! The ordered variant of a policy: messages of one key stay with their member while earlier ones are outstanding.
//!
//! Between its bursts a key moves to whoever is best, so keys are balanced as messages are, with hardly any out of
//! order ("flowlets", as in CONGA). While the key has unacknowledged messages, or for 5 ms beyond the predicted end
//! of its last one that nobody acknowledges, it stays; unless the member is less available than another, or would
//! not begin with the message within a second: nobody can keep a key in order that is hotter than one worker. A key
//! that had to move so is kept in order again once the messages that it left behind are done with.

use crate::{
    dispatch::Dispatch,
    group_view::View,
    key_pins::{KeyPins, KeySlot, Pin},
    load::Availability,
    nanos::Nanos,
    pick::{self, Table},
    policy::adaptive,
    rng::Rng,
};

/// A seat for a message with a key.
#[derive(Clone, Copy)]
struct Chosen {
    index: usize,
    /// It is where earlier messages are.
    is_kept: bool,
}

/// Chooses a seat and books a message on it. `None` if there is no seat.
pub(crate) fn pick(
    table: Table<'_>,
    pins: &KeyPins,
    slot: KeySlot,
    view: &View,
    dispatch: &Dispatch,
    rng: &mut Rng,
) -> Option<usize> {
    let seats = table.seats;
    let mut seen = pins.load(slot);
    // As often as other pickers for this slot are faster: giving up would break the order.
    loop {
        let Chosen { index, is_kept } = choose(table, seen, view, dispatch, rng)?;
        pick::book(seats, index, view, dispatch);
        let hot = seats.loads()[index].hot();
        let wait_ns = adaptive::weigh(hot, view, dispatch.at.0).wait;
        let finish = dispatch.at.0.saturating_add(hot.delay_ns()).saturating_add(wait_ns);
        match pins.replace(slot, seen, seen.with_one(table.state.ids[index], dispatch, finish)) {
            Ok(()) => {
                pick::settle(table, index, !is_kept);
                return Some(index);
            }
            Err(is) => seen = is,
        }
        hot.no_longer_outstanding(1, dispatch.bytes.into());
        hot.take_back(1);
    }
}

fn choose(table: Table<'_>, pin: Pin, view: &View, dispatch: &Dispatch, rng: &mut Rng) -> Option<Chosen> {
    let rank_of = |index: usize| table.seats.loads()[index].rank();
    let kept = holder(table, pin, view, dispatch.at).map(|index| Chosen { index, is_kept: true });
    if let Some(kept) = kept.filter(|kept| rank_of(kept.index) == Availability::Ready as u64) {
        return Some(kept);
    }
    let free = pick::preview(table, dispatch, rng).map(|index| Chosen { index, is_kept: false })?;
    Some(kept.filter(|kept| rank_of(kept.index) <= rank_of(free.index)).unwrap_or(free))
}

/// The seat that a message's key is held at, if it has one and the group keeps order.
pub(crate) fn held_at(table: Table<'_>, dispatch: &Dispatch) -> Option<usize> {
    let pin = table.state.pins.as_ref()?.load(dispatch.key_slot()?);
    holder(table, pin, &table.view.at(dispatch.at, table.seats), dispatch.at)
}

/// The seat that the pin holds the key at.
fn holder(table: Table<'_>, pin: Pin, view: &View, now: Nanos) -> Option<usize> {
    if pin.unacknowledged() == 0 && !pin.is_held_at(now) {
        return None;
    }
    let index = table.state.ids.iter().position(|&id| pin.is_of(id))?;
    let hot = table.seats.loads()[index].hot();
    // A member with nothing outstanding has none of the key's either, whatever became of the word about them.
    let is_held = pin.is_held_at(now) || hot.outstanding().messages > 0;
    let is_bearable = adaptive::weigh(hot, view, now.0).wait <= WAIT_MAX_NS;
    (is_held && is_bearable).then_some(index)
}

const WAIT_MAX_NS: u64 = 1_000_000_000;
