//! Members that left an ordered group while messages of its keys were in flight to them.

use std::sync::Arc;

use crate::{
    key_pins::{KeyPins, Pin},
    load::{Availability, MemberLoad},
    standing::MemberId,
};

/// Former members that hold keys, sorted by the half of the id that a pin has.
///
/// A key stays with such a member until its messages are acknowledged, or the member goes offline. It gets no new
/// messages. So messages of the key wait. Each change of the members drops entries that hold no key any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Departed(Box<[(MemberId, Arc<MemberLoad>)]>);

impl Departed {
    /// Returns those `former` members that hold keys.
    pub(crate) fn of(pins: &KeyPins, former: impl Iterator<Item = (MemberId, Arc<MemberLoad>)>) -> Self {
        let mut former: Vec<_> = former.filter(|(_, load)| may_hold(load)).collect();
        if !former.is_empty() {
            let holders = pins.holders();
            former.retain(|(id, _)| holders.binary_search(&Pin::half_of(*id)).is_ok());
            former.sort_unstable_by_key(|(id, _)| Pin::half_of(*id));
        }
        Self(former.into())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(MemberId, Arc<MemberLoad>)> {
        self.0.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, member: MemberId) -> bool {
        self.find(Pin::half_of(member)).is_some()
    }

    /// Returns the former member that holds this pin by messages in flight. Sent messages of QoS 0 hold nothing.
    pub(crate) fn holder(&self, pin: Pin) -> Option<MemberId> {
        if self.is_empty() || pin.unacknowledged() == 0 {
            return None;
        }
        let (id, load) = self.find(pin.half())?;
        may_hold(load).then_some(*id)
    }

    fn find(&self, half: u64) -> Option<&(MemberId, Arc<MemberLoad>)> {
        let place = self.0.binary_search_by_key(&half, |(id, _)| Pin::half_of(*id)).ok()?;
        self.0.get(place)
    }
}

/// Returns whether the client is connected and has messages in flight. The count is of all its groups.
fn may_hold(load: &MemberLoad) -> bool {
    load.availability() != Availability::Offline && load.hot().outstanding().messages > 0
}
