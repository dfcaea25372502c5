use std::collections::{BTreeMap, HashMap};

use tenbin_codec::PacketId;

/// Packet Identifiers of QoS 2 messages that some receivers got and others refused.
///
/// The publisher gets 0x97 and forgets the message. If that answer is lost, it sends the message again, with DUP.
/// It gets the same answer then, since another copy would be the second one for some receivers.
#[derive(Debug, Default)]
pub(crate) struct PartlyRefused {
    /// In the order of refusal.
    ids: BTreeMap<u64, PacketId>,
    turns: HashMap<PacketId, u64>,
    next_turn: u64,
}

impl PartlyRefused {
    /// Remembers a refusal, and returns identifiers that are forgotten for it. The last `most` suffice: a publisher has
    /// no more unanswered messages than the broker's Receive Maximum.
    pub(crate) fn add(&mut self, id: PacketId, most: usize) -> Vec<PacketId> {
        self.remove(id);
        self.ids.insert(self.next_turn, id);
        self.turns.insert(id, self.next_turn);
        self.next_turn += 1;
        let mut forgotten = Vec::new();
        while self.ids.len() > most {
            let Some((_, id)) = self.ids.pop_first() else { break };
            self.turns.remove(&id);
            forgotten.push(id);
        }
        forgotten
    }

    pub(crate) fn contains(&self, id: PacketId) -> bool {
        self.turns.contains_key(&id)
    }

    /// Forgets an identifier that another message has now.
    pub(crate) fn remove(&mut self, id: PacketId) {
        if let Some(turn) = self.turns.remove(&id) {
            self.ids.remove(&turn);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_refusals_are_remembered() {
        let id = |number| PacketId::new(number).unwrap();
        let mut refused = PartlyRefused::default();
        assert!((1..=3).all(|number| refused.add(id(number), 3).is_empty()));
        assert!(refused.add(id(1), 3).is_empty(), "again");
        assert_eq!(refused.add(id(4), 3), [id(2)]);
        refused.remove(id(3));
        assert_eq!([1, 2, 3, 4].map(|number| refused.contains(id(number))), [true, false, false, true]);
        refused.remove(id(1));
        refused.remove(id(4));
        assert!(refused.is_empty());
    }
}
