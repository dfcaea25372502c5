//! The ordered variant of a policy: messages of one key stay with their member while earlier ones are outstanding.
//!
//! Between bursts a key moves to the best member, so keys are balanced like messages, with hardly any out of order
//! ("flowlets", as in CONGA). A key stays while it has unacknowledged messages. For QoS 0 it stays until 5 ms beyond
//! the predicted end of its last message. It leaves a member that is offline if another is more available.
//!
//! If the rules [may break the order](crate::Rules::may_break_order), a key also leaves a member that is full, or that
//! would not begin with the message within a second. Such a key is in order again once the messages left behind are
//! completed. A draining member keeps its keys until then: other members must not overtake the messages that it has
//! begun. So does a member that leaves the group while it stays connected. It gets no messages, so the next ones of its
//! keys wait.

use crate::{
    dispatch::{Dispatch, KeySlot},
    group_view::View,
    key_pins::{KeyPins, Pin},
    load::Availability,
    nanos::Nanos,
    pick::{self, Table},
    policy::{adaptive, rendezvous},
    rng::Rng,
};

/// The member to which a key is pinned.
pub(crate) enum Keeper {
    /// This slot.
    Seat(usize),
    /// A member has its messages, but the next one would wait for too long.
    Busy,
    /// A former member has its messages.
    Departed,
    /// None of its messages is outstanding, as far as known.
    Nobody,
}

/// A slot for a message with a key.
struct Chosen {
    index: usize,
    /// The key's earlier messages are with this member.
    is_kept: bool,
    /// The pin, emptied if its messages are known to be completed. `None` = the pin stays as it is.
    pin: Option<Pin>,
}

/// Chooses a slot and books a message on it. `None` if the group is empty, or the message waits for a former member.
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
    // Repeats until no other picker of this key slot is faster: giving up would break the order.
    loop {
        let Chosen { index, is_kept, pin } = choose(table, seen, view, dispatch, rng)?;
        let service_ns = pick::book(seats, index, view, dispatch);
        let Some(pin) = pin else {
            pick::settle(table, index, !is_kept);
            return Some(index);
        };
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
        Keeper::Seat(kept) if is_ready(kept) || stays(kept) => (kept, true, Some(pin)),
        Keeper::Seat(kept) => match free(rng)? {
            free if rank_of(free) < rank_of(kept) => (free, false, Some(pin)),
            _ => (kept, true, Some(pin)),
        },
        Keeper::Busy => (free(rng)?, false, Some(pin)),
        Keeper::Departed if dispatch.is_acknowledged => return None,
        // QoS 0 does not wait. Its messages of a key stay together, beside the pin.
        Keeper::Departed => (rendezvous::choose(table.seats, &table.state.identities, dispatch.key?)?, true, None),
        Keeper::Nobody => (free(rng)?, false, Some(pin.emptied())),
    };
    Some(Chosen { index, is_kept, pin })
}

/// Returns the member to which the key of this pin is pinned.
pub(crate) fn keeper(table: Table<'_>, pin: Pin, view: &View, now: Nanos) -> Keeper {
    let is_held = pin.is_held_at(now);
    if pin.unacknowledged() == 0 && !is_held {
        return Keeper::Nobody;
    }
    let Some(index) = table.state.ids.iter().position(|&id| pin.is_of(id)) else {
        return table.state.departed.holder(pin).map_or(Keeper::Nobody, |_| Keeper::Departed);
    };
    let hot = table.seats.loads()[index].hot();
    // A member without outstanding messages has none of the key's either, even if a `key_done` call is missing.
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
