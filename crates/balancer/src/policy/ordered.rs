//! The ordered variant of a policy: messages of one key stay with their member while earlier ones are outstanding.
//!
//! Between its bursts a key moves to whoever is best, so keys are balanced as messages are, with hardly any out of
//! order ("flowlets", as in CONGA). While the key has unacknowledged messages, or for 5 ms beyond the predicted end
//! of its last one that nobody acknowledges, it stays; unless the member is offline and another is more available. Where
//! the rules [may break the order](crate::Rules::may_break_order), a key also leaves a member that is full, or that
//! would not begin with the message within a second. A key that had to move so is kept in order again once the messages that it left behind are done
//! with. A member that drains keeps its keys until then: what it has begun of them others must not run ahead of.

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

/// Who keeps a key.
pub(crate) enum Keeper {
    /// This seat.
    Seat(usize),
    /// A seat that has its messages, and would let one more wait for too long.
    Busy,
    /// None of its messages is outstanding, as far as is known.
    Nobody,
}

/// A seat for a message with a key.
struct Chosen {
    index: usize,
    /// It is where earlier messages are.
    is_kept: bool,
    /// What the slot said, without what is known to be over.
    pin: Pin,
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
        let Chosen { index, is_kept, pin } = choose(table, seen, view, dispatch, rng)?;
        let service_ns = pick::book(seats, index, view, dispatch);
        let hot = seats.loads()[index].hot();
        let wait_ns = adaptive::weigh(hot, view, dispatch.at.0).wait;
        let finish = dispatch.at.0.saturating_add(hot.delay_ns()).saturating_add(wait_ns.min(WAIT_MAX_NS));
        match pins.replace(slot, seen, pin.with_one(table.state.ids[index], dispatch, finish)) {
            Ok(()) => {
                pick::settle(table, index, !is_kept);
                return Some(index);
            }
            Err(is) => seen = is,
        }
        seats.loads()[index].unbooked(dispatch.bytes, service_ns, dispatch.at);
    }
}

fn choose(table: Table<'_>, pin: Pin, view: &View, dispatch: &Dispatch, rng: &mut Rng) -> Option<Chosen> {
    let rank_of = |index: usize| table.seats.loads()[index].rank();
    let is_ready = |index: usize| table.seats.loads()[index].availability() == Availability::Ready;
    let is_offline = |index: usize| table.seats.loads()[index].availability() == Availability::Offline;
    let stays = |index: usize| !table.state.may_break_order && !is_offline(index);
    let free = |rng: &mut Rng| pick::preview(table, dispatch, rng);
    let (index, is_kept, pin) = match keeper(table, pin, view, dispatch.at) {
        Keeper::Seat(kept) if is_ready(kept) || stays(kept) => (kept, true, pin),
        Keeper::Seat(kept) => match free(rng)? {
            free if rank_of(free) < rank_of(kept) => (free, false, pin),
            _ => (kept, true, pin),
        },
        Keeper::Busy => (free(rng)?, false, pin),
        Keeper::Nobody => (free(rng)?, false, pin.emptied()),
    };
    Some(Chosen { index, is_kept, pin })
}

/// Who keeps the key of this pin.
pub(crate) fn keeper(table: Table<'_>, pin: Pin, view: &View, now: Nanos) -> Keeper {
    let is_held = pin.is_held_at(now);
    if pin.unacknowledged() == 0 && !is_held {
        return Keeper::Nobody;
    }
    let Some(index) = table.state.ids.iter().position(|&id| pin.is_of(id)) else { return Keeper::Nobody };
    let hot = table.seats.loads()[index].hot();
    // A member with nothing outstanding has none of the key's messages either, whatever became of the word about them.
    if !is_held && hot.outstanding().messages == 0 {
        return Keeper::Nobody;
    }
    if !table.state.may_break_order {
        return Keeper::Seat(index);
    }
    match adaptive::weigh(hot, view, now.0).wait {
        ..=WAIT_MAX_NS => Keeper::Seat(index),
        _ => Keeper::Busy,
    }
}

const WAIT_MAX_NS: u64 = 1_000_000_000;
