//! Nodes whose broker or disk has failed.

use std::time::Duration;

use super::contract::healthy;
use super::plant::{MS, NODES, node};
use crate::event::{Action, Hello, Input, Notice, PromotionRefused, Swapped};
use crate::machine::{Machine, Step};
use crate::node::Node;
use crate::record::Mark;
use crate::settings::{Agreement, Settings};

#[test]
fn leader_whose_disk_has_failed_gets_no_copy_before_its_restart() {
    for seed in 0..50 {
        let (mut plant, leader, follower) = healthy(seed);
        let third = NODES - leader - follower;
        plant.feed(leader, Input::DiskFailed);
        plant.run(3_000 * MS);
        assert!(plant.may_act(follower), "{}", plant.summary());
        for _ in 0..400 {
            plant.run(50 * MS);
            let copy = plant.record.and_then(|record| record.follower.or(record.joiner));
            assert_ne!(copy, Some(node(leader)), "{}", plant.summary());
        }
        assert_eq!(plant.record.and_then(|record| record.follower), Some(node(third)), "{}", plant.summary());
        plant.kill(leader);
        plant.start(leader);
        plant.kill(third);
        plant.run(20_000 * MS);
        assert_eq!(plant.record.and_then(|record| record.follower), Some(node(leader)), "{}", plant.summary());
        assert_eq!(plant.violation, None);
    }
}

/// Feeds a machine, and returns its actions.
fn feed(machine: &mut Machine, input: Input) -> Vec<Action> {
    let mut actions = Vec::new();
    machine.handle(Duration::from_secs(1), input, &mut actions);
    actions
}

#[test]
fn first_leader_with_failed_broker_leads_after_its_restart() {
    let settings = Settings::new(Node(0), Agreement::Engine, 1);
    let machine = &mut Machine::new(settings, None, Duration::from_secs(1));
    feed(machine, Input::Tick);
    let created = feed(machine, Input::RecordRead(Ok(None)));
    let [Action::Swap { expected: 0, record }] = created[..] else { panic!("{created:?}") };
    assert_eq!(feed(machine, Input::Swapped(Swapped::Done)), [Action::WriteMark(record)]);
    assert!(feed(machine, Input::MarkWritten).contains(&Action::OpenBroker));
    feed(machine, Input::BrokerFailed);
    let status = machine.status(Duration::from_secs(1));
    // No follower is waited for.
    assert_eq!((status.step, status.last_error), (Step::Barred, Some(Notice::BrokerFailed)));
    assert!(matches!(machine.hello(), Hello { may_join: false, .. }));
    let forced = feed(machine, Input::Force { has_store: true, accept_loss: true });
    assert!(forced.contains(&Action::Promotion(Err(PromotionRefused::Unfit))), "{forced:?}");

    let mark = Some(Mark { record, is_same_boot: true });
    let machine = &mut Machine::new(Settings { nonce: 2, ..settings }, mark, Duration::from_secs(1));
    feed(machine, Input::Tick);
    assert!(feed(machine, Input::RecordRead(Ok(Some(record)))).contains(&Action::OpenBroker));
}
