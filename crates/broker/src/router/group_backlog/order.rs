//! The order of a group backlog: publishers take turns, or messages keep the order of arrival.

use std::num::NonZeroU64;

use tenbin_session::Delivery;

use super::super::held_key::ordering_key;
use super::super::share_group::SharedGroup;
use super::Queued;
use crate::values::FairBy;

/// The order of the messages in memory.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The oldest message is next.
    #[default]
    Arrival,
    /// Publishers take turns.
    Turns,
}

impl Order {
    /// The flow of a message in [`crate::backlog::FairHead`].
    fn flow(self, delivery: &Delivery) -> u64 {
        match self {
            Self::Arrival => 0,
            // The hash of the publisher, since the message has no ordering key.
            Self::Turns => delivery.share_key.map_or(0, NonZeroU64::get),
        }
    }
}

impl Queued {
    /// Adds a message to those in memory.
    pub(super) fn append(&mut self, delivery: Delivery) {
        let has_key = has_key(&delivery);
        if self.queue.is_empty() {
            self.order = if has_key { Order::Arrival } else { self.fair_by.into() };
        } else if has_key && self.order == Order::Turns {
            self.set_order(Order::Arrival);
        }
        let flow = self.order.flow(&delivery);
        self.queue.append(delivery, flow);
    }

    #[cold]
    fn set_order(&mut self, order: Order) {
        if self.order != order {
            self.order = order;
            self.queue.regroup(|delivery| order.flow(delivery));
        }
    }
}

impl SharedGroup {
    /// Sets the rule for the order of the backlog, and returns whether it differs.
    pub(in super::super) fn set_fair_by(&self, fair_by: FairBy) -> bool {
        self.change_queued(|queued| {
            let is_changed = std::mem::replace(&mut queued.fair_by, fair_by) != fair_by;
            if is_changed && !queued.queue.iter().any(has_key) {
                queued.set_order(fair_by.into());
            }
            is_changed
        })
    }
}

impl From<FairBy> for Order {
    fn from(fair_by: FairBy) -> Self {
        match fair_by {
            FairBy::Publisher => Self::Turns,
            FairBy::Off => Self::Arrival,
        }
    }
}

/// Whether a message has an ordering key, which hides its publisher. A group without a key has such messages after a
/// reload that removed the key.
fn has_key(delivery: &Delivery) -> bool {
    ordering_key(delivery.share_key).is_some()
}

#[cfg(test)]
mod tests {
    use tenbin_balancer::{Policy, Rng};
    use tenbin_codec::QoS;

    use super::super::super::held_key::{of_client, of_key};
    use super::super::super::share_group::tests::{Stage, payloads};
    use super::*;
    use crate::values::GroupRules;

    /// Adds messages to the backlog: publisher, or ordering key if marked, and payload.
    fn wait(stage: &Stage, messages: &[(u64, &'static str)]) {
        for &(share_key, payload) in messages {
            let delivery = stage.published_as(payload, QoS::AtLeastOnce);
            stage.waits(Delivery { share_key: NonZeroU64::new(share_key), ..delivery });
        }
    }

    /// Messages of a member that connects now.
    fn drained(stage: &Stage) -> Vec<String> {
        let member = stage.member(1, QoS::AtLeastOnce, false);
        member.attach(u32::MAX, None);
        stage.group.dispatch_waiting(stage.now, &mut Rng::new(1));
        let drained = payloads(&member);
        assert_eq!((stage.group.waiting(), stage.group.queues.budget.messages()), (0, 0));
        drained
    }

    fn rules(fair_by: FairBy) -> GroupRules {
        GroupRules { fair_by, ..Policy::RoundRobin.into() }
    }

    const LOUD: u64 = 2;
    const QUIET: u64 = 4;

    #[test]
    fn publishers_of_waiting_messages_take_turns() {
        let stage = Stage::with(None);
        wait(&stage, &[(LOUD, "a0"), (LOUD, "a1"), (LOUD, "a2"), (QUIET, "b0"), (QUIET, "b1")]);
        assert_eq!(drained(&stage), ["a0", "b0", "a1", "b1", "a2"]);
    }

    #[test]
    fn messages_with_ordering_keys_keep_the_order_of_arrival() {
        let [key, other] = [of_key(6), of_key(8)];
        assert_eq!(of_client(LOUD), LOUD);
        let stage = Stage::with(None);
        wait(
            &stage,
            &[(LOUD, "a0"), (LOUD, "a1"), (QUIET, "b0"), (key, "k0"), (other, "l0"), (key, "k1"), (QUIET, "b1")],
        );
        assert_eq!(drained(&stage), ["a0", "b0", "a1", "k0", "l0", "k1", "b1"]);
    }

    #[test]
    fn reload_changes_the_order_of_waiting_messages() {
        let stage = Stage::with(None);
        stage.group.set_rules(rules(FairBy::Off));
        let messages = [(LOUD, "a0"), (LOUD, "a1"), (QUIET, "b0")];
        wait(&stage, &messages);
        assert!(stage.group.set_rules(rules(FairBy::Publisher)) && !stage.group.set_rules(rules(FairBy::Publisher)));
        wait(&stage, &[(QUIET, "b1")]);
        assert_eq!(drained(&stage), ["a0", "b0", "a1", "b1"]);

        let stage = Stage::with(None);
        wait(&stage, &messages);
        stage.group.set_rules(rules(FairBy::Off));
        wait(&stage, &[(LOUD, "a2"), (QUIET, "b1")]);
        assert_eq!(drained(&stage), ["a0", "b0", "a1", "a2", "b1"]);
    }

    #[test]
    fn redelivered_messages_precede_all_turns() {
        let stage = Stage::with(None);
        wait(&stage, &[(QUIET, "b1"), (LOUD, "a1")]);
        stage.group.begin_redelivery();
        let returned = ["a0", "b0"].map(|payload| stage.published_as(payload, QoS::AtLeastOnce));
        stage.group.give_to_others(returned.into_iter(), stage.now, &mut Rng::new(1));
        stage.group.end_redelivery(stage.now, &mut Rng::new(1));
        assert_eq!(drained(&stage), ["a0", "b0", "b1", "a1"]);
    }
}
