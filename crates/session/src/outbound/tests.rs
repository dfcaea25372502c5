use proptest::prelude::*;

use super::*;

const OPEN: Stage = Stage::Released { shared: None, stored: None };

/// Open identifiers in sending order, and the last assigned one: everything that a peer can observe.
struct Model {
    open: Vec<PacketId>,
    /// Indexed by identifier.
    used: Vec<bool>,
    last: u16,
}

impl Model {
    fn new() -> Self {
        Self { open: Vec::new(), used: vec![false; 1 << 16], last: 0 }
    }

    fn is_used(&mut self, id: PacketId) -> &mut bool {
        &mut self.used[usize::from(id.get())]
    }

    /// Assigns the next unused identifier.
    fn give(&mut self) -> Option<PacketId> {
        if self.open.len() == IDS as usize {
            return None;
        }
        loop {
            self.last = self.last % u16::MAX + 1;
            let id = PacketId::new(self.last).unwrap();
            if !std::mem::replace(self.is_used(id), true) {
                self.open.push(id);
                return Some(id);
            }
        }
    }

    fn close(&mut self, nth: usize) -> PacketId {
        let id = self.open.remove(nth);
        *self.is_used(id) = false;
        id
    }
}

fn open_of(outbound: &Outbound) -> Vec<PacketId> {
    let mut from = 0;
    let next = || {
        let (sequence, id) = outbound.next_open(from)?;
        from = sequence + 1;
        Some(id)
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn reopened_identifier_that_was_not_given_lately_is_the_newest() {
    let id = |id| PacketId::new(id).unwrap();
    let mut outbound = Outbound::default();
    assert!(outbound.reopen(id(9), OPEN));
    assert!(!outbound.reopen(id(9), OPEN), "it is open");
    assert_eq!((outbound.open_next(OPEN), outbound.open_next(OPEN)), (Some(id(10)), Some(id(11))));
    assert!(outbound.close(id(10)));
    assert!(outbound.reopen(id(10), OPEN));
    assert_eq!(open_of(&outbound), [9, 10, 11].map(id));
    let mut outbound = Outbound::default();
    outbound.begin_after(id(9));
    assert_eq!(outbound.open_next(OPEN), Some(id(10)));
    outbound.begin_after(id(9));
    outbound.begin_after(id(10));
    assert_eq!(outbound.open_next(OPEN), Some(id(11)));
    assert!(outbound.reopen(id(3), OPEN));
    assert_eq!(outbound.open_next(OPEN), Some(id(12)));
    assert_eq!(open_of(&outbound), [3, 10, 11, 12].map(id));
}

#[derive(Debug, Clone)]
enum Step {
    /// Send messages that stay unacknowledged.
    Hold(usize),
    /// Send messages that are acknowledged at once.
    Pass(usize),
    /// Acknowledge messages: start as a fraction of the open ones, and number.
    Close(f64, usize),
    /// Send until only this many identifiers are unused.
    Fill(usize),
    /// Restore the session from its open messages.
    Restore,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1usize..400).prop_map(Step::Hold),
        4 => prop_oneof![4 => 1usize..500, 1 => 60_000usize..70_000].prop_map(Step::Pass),
        4 => (0.0..1.0, prop_oneof![1usize..4, 1usize..500]).prop_map(|(from, count)| Step::Close(from, count)),
        1 => (0usize..3).prop_map(Step::Fill),
        1 => Just(Step::Restore),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mqtt_2_2_1_4_each_identifier_given_is_the_next_unused(steps in prop::collection::vec(step(), 1..24)) {
        let (mut outbound, mut model) = (Outbound::default(), Model::new());
        for step in steps {
            match step {
                Step::Hold(count) => for _ in 0..count {
                    prop_assert_eq!(outbound.open_next(OPEN), model.give());
                },
                // The model searches for each identifier, so this bounds the work.
                Step::Pass(count) => for _ in 0..if model.open.len() < 10_000 { count } else { count.min(100) } {
                    let id = outbound.open_next(OPEN);
                    prop_assert_eq!(id, model.give());
                    let Some(id) = id else { break };
                    prop_assert!(outbound.close(id));
                    prop_assert!(!outbound.close(id));
                    model.open.pop();
                    *model.is_used(id) = false;
                },
                Step::Close(from, count) => for _ in 0..count {
                    let nth = (from * model.open.len() as f64) as usize;
                    if nth < model.open.len() {
                        prop_assert!(outbound.close(model.close(nth)));
                    }
                },
                Step::Fill(left) => while outbound.free() as usize > left {
                    prop_assert_eq!(outbound.open_next(OPEN), model.give());
                },
                Step::Restore => {
                    let mut stored: Vec<_> = model.open.iter().map(|&id| outbound.sent_id(id).unwrap()).collect();
                    stored.sort_by_key(|id| id.packet_id.get());
                    SentId::sort(&mut stored, |id| *id);
                    outbound = Outbound::default();
                    for id in stored {
                        prop_assert!(outbound.restore(id, OPEN));
                        prop_assert!(!outbound.restore(id, OPEN));
                    }
                    model.last = model.open.last().map_or(0, |id| id.get());
                }
            }
            prop_assert_eq!(&open_of(&outbound), &model.open);
            prop_assert_eq!(outbound.messages(), model.open.len());
            prop_assert_eq!(usize::from(outbound.free()), IDS as usize - model.open.len());
            for id in (1..=u16::MAX).step_by(97).filter_map(PacketId::new) {
                prop_assert_eq!(outbound.stage(id).is_some(), *model.is_used(id));
                prop_assert_eq!(outbound.sequence(id).is_some(), *model.is_used(id));
            }
        }
    }
}

#[test]
fn all_65535_identifiers_can_be_open_and_any_one_given_again() {
    let mut outbound = Outbound::default();
    let ids = (0..65_535).map(|_| outbound.open_next(Stage::Request).unwrap()).collect::<Vec<_>>();
    assert_eq!(outbound.open_next(Stage::Request), None);
    for id in [ids[1], ids[65_534], ids[0], ids[40_000]] {
        assert!(outbound.close(id));
        assert_eq!(outbound.open_next(Stage::Request), Some(id));
        assert_eq!(outbound.open_next(Stage::Request), None);
    }
    outbound.drop_requests();
    assert_eq!((outbound.free(), outbound.next_open(0)), (u16::MAX, None));
}

#[test]
fn one_open_identifier_keeps_the_window_short() {
    let mut outbound = Outbound::default();
    let held = outbound.open_next(OPEN).unwrap();
    for _ in 0..200_000 {
        let id = outbound.open_next(OPEN).unwrap();
        assert_ne!(id, held);
        assert!(outbound.close(id));
        assert!(outbound.window.len() <= 2 * WINDOW, "{}", outbound.window.len());
    }
    assert_eq!(open_of(&outbound), [held]);
    assert!(outbound.close(held));
    assert!(outbound.overdue.is_none());
}

#[test]
fn withdrawn_messages_keep_sending_order_past_a_wrap() {
    let mut outbound = Outbound::default();
    let held = [outbound.open_next(OPEN).unwrap(), outbound.open_next(Stage::Request).unwrap()];
    let pass = |outbound: &mut Outbound, count| {
        for _ in 0..count {
            let id = outbound.open_next(OPEN).unwrap();
            outbound.close(id);
        }
    };
    pass(&mut outbound, 70_000);
    let late = outbound.open_next(OPEN).unwrap();
    pass(&mut outbound, 1_000);
    assert_eq!(open_of(&outbound), [held[0], held[1], late]);
    outbound.drop_requests();
    assert_eq!(open_of(&outbound), [held[0], late]);
}

#[test]
fn unknown_identifiers_are_not_open() {
    let mut outbound = Outbound::default();
    let id = outbound.open_next(Stage::Request).unwrap();
    assert!(outbound.stage(PacketId::new(9).unwrap()).is_none());
    assert!(!outbound.close(PacketId::new(9).unwrap()));
    assert!(outbound.close(id));
    assert!(!outbound.close(id));
}
