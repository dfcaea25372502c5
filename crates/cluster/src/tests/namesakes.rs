//! Processes that find another one with their name.

use std::time::Duration;

use super::contract::healthy;
use super::plant::{MS, NODES, node};
use crate::event::{Action, Input, Namesake, Notice, PromotionRefused, Swapped};
use crate::machine::{Machine, Step};
use crate::node::Node;
use crate::record::{Mark, Record};
use crate::settings::{Agreement, Settings};

const NOW: Duration = Duration::from_secs(1);
fn settings(nonce: u64, directory: u64) -> Settings {
    Settings { is_sync_always: true, directory, ..Settings::new(Node(0), Agreement::Engine, nonce) }
}

/// Feeds a machine, and returns its actions.
fn feed(machine: &mut Machine, input: Input) -> Vec<Action> {
    let mut actions = Vec::new();
    machine.handle(NOW, input, &mut actions);
    actions
}

/// A leader without any other node, and its record.
fn leader() -> (Machine, Record) {
    let mut machine = Machine::new(settings(1, 1), None, NOW);
    feed(&mut machine, Input::Tick);
    feed(&mut machine, Input::RecordRead(Ok(None)));
    feed(&mut machine, Input::Swapped(Swapped::Done));
    feed(&mut machine, Input::MarkWritten);
    feed(&mut machine, Input::BrokerOpened);
    feed(&mut machine, Input::Swapped(Swapped::Done));
    feed(&mut machine, Input::MarkWritten);
    assert!(machine.may_act(NOW));
    let record = machine.record().expect("it leads");
    assert_eq!((record.epoch, record.leader_directory), (2, 1));
    (machine, record)
}

/// A machine that has just read this record.
fn started(settings: Settings, mark: Option<Mark>, record: Record) -> (Machine, Vec<Action>) {
    let mut machine = Machine::new(settings, mark, NOW);
    feed(&mut machine, Input::Tick);
    let actions = feed(&mut machine, Input::RecordRead(Ok(Some(record))));
    (machine, actions)
}

#[test]
fn restarted_leader_opens_its_broker_at_its_first_read() {
    let (_, record) = leader();
    let mark = Some(Mark { record, is_same_boot: true });
    // A record of an earlier version names no directory.
    for record in [record, Record { leader_directory: 0, ..record }] {
        let (machine, actions) = started(settings(2, 1), mark, record);
        assert!(actions.contains(&Action::OpenBroker), "{actions:?}");
        assert_eq!(machine.status(NOW).namesake, None);
    }
}

#[test]
fn process_does_not_lead_by_a_record_of_another_directory() {
    let (_, record) = leader();
    // Its mark is of the epoch in which no node acts, or it has none.
    let nominated = Record { epoch: 1, leader_directory: 2, ..record };
    for mark in [None, Some(Mark { record: nominated, is_same_boot: true })] {
        let (mut machine, actions) = started(settings(2, 2), mark, record);
        assert_eq!(actions, [Action::Notice(Notice::Namesake(Namesake::Named))]);
        assert_eq!((machine.status(NOW).step, machine.is_named()), (Step::Barred, false));
        // It says so once. It is no leader for others, so that it says no farewell.
        let next = Record { epoch: 3, ..record };
        let actions = feed(&mut machine, Input::RecordRead(Ok(Some(next))));
        assert!(actions.iter().all(|action| *action == Action::Read), "{actions:?}");
    }
}

#[test]
fn leader_with_a_copied_directory_never_leads_again() {
    let (mut machine, record) = leader();
    let next = Record { epoch: 3, nonce: 77, ..record };
    let actions = feed(&mut machine, Input::RecordRead(Ok(Some(next))));
    assert!(actions.contains(&Action::StopBroker) && !machine.may_act(NOW), "{actions:?}");
    feed(&mut machine, Input::BrokerClosed);
    let status = machine.status(NOW);
    assert_eq!((status.step, status.namesake), (Step::Barred, Some(Namesake::HasCopy)));
    for epoch in 4..8 {
        let actions = feed(&mut machine, Input::RecordRead(Ok(Some(Record { epoch, ..next }))));
        assert!(!actions.contains(&Action::OpenBroker), "{actions:?}");
    }
    let forced = feed(&mut machine, Input::Force { has_store: true, accept_loss: true });
    assert!(forced.contains(&Action::Promotion(Err(PromotionRefused::Namesake))), "{forced:?}");
}

#[test]
fn process_whose_namesake_answers_creates_no_cluster() {
    for agreement in [Agreement::Engine, Agreement::Manual { first: Node(0) }] {
        let mut machine = Machine::new(Settings { agreement, ..settings(1, 1) }, None, NOW);
        feed(&mut machine, Input::Tick);
        assert_eq!(
            feed(&mut machine, Input::NamesakeFound)[..],
            [Action::Notice(Notice::Namesake(Namesake::Answers))],
            "once"
        );
        assert_eq!(feed(&mut machine, Input::NamesakeFound), []);
        let mut actions = Vec::new();
        if agreement == Agreement::Engine {
            machine.handle(NOW, Input::RecordRead(Ok(None)), &mut actions);
        }
        machine.handle(NOW * 60, Input::Tick, &mut actions);
        assert!(actions.iter().all(|action| *action == Action::Read), "{actions:?}");
    }
}

#[test]
fn copy_obeys_a_record_that_was_told_without_directories() {
    let manual = Settings { node: Node(1), agreement: Agreement::Manual { first: Node(0) }, ..settings(1, 2) };
    let mut machine = Machine::new(manual, None, NOW);
    feed(&mut machine, Input::Tick);
    let joins = Record {
        epoch: 5,
        leader: Node(0),
        follower: None,
        joiner: Some(Node(1)),
        nonce: 7,
        leader_directory: 1,
        copy_directory: 2,
    };
    let follows = Record { epoch: 6, nonce: 8, follower: Some(Node(1)), joiner: None, ..joins };
    let untold = |record: Record| Record { leader_directory: 0, copy_directory: 0, ..record };
    let answers = |is_marked| Action::AnswerBeacon { number: 1, is_marked };

    // A node of an earlier version has dropped the numbers.
    let actions = feed(&mut machine, Input::PeerRecord(untold(joins)));
    assert!(actions.contains(&Action::WriteMark(untold(joins))), "{actions:?}");
    let actions = feed(&mut machine, Input::Beacon { number: 1, record: joins });
    assert!(actions.contains(&answers(false)), "{actions:?}");
    // The earlier form changes nothing any more.
    feed(&mut machine, Input::PeerRecord(untold(joins)));
    assert_eq!(machine.record(), Some(joins));
    assert!(feed(&mut machine, Input::MarkWritten).contains(&Action::WriteMark(joins)));
    let started = feed(&mut machine, Input::MarkWritten);
    assert!(started.contains(&Action::StartCopy { leader: Node(0), session: 5 }), "{started:?}");

    assert!(feed(&mut machine, Input::PeerRecord(untold(follows))).contains(&Action::WriteMark(untold(follows))));
    let actions = feed(&mut machine, Input::Beacon { number: 1, record: follows });
    assert!(actions.contains(&answers(false)), "{actions:?}");
    assert!(feed(&mut machine, Input::MarkWritten).contains(&Action::WriteMark(follows)));
    feed(&mut machine, Input::MarkWritten);
    let actions = feed(&mut machine, Input::Beacon { number: 1, record: follows });
    assert!(actions.contains(&answers(true)), "{actions:?}");
}

#[test]
fn process_leaves_the_place_of_another_directory() {
    let manual = Settings { node: Node(1), agreement: Agreement::Manual { first: Node(0) }, ..settings(1, 2) };
    let mut machine = Machine::new(manual, None, NOW);
    feed(&mut machine, Input::Tick);
    let record = Record {
        epoch: 5,
        leader: Node(0),
        follower: None,
        joiner: Some(Node(1)),
        nonce: 7,
        leader_directory: 1,
        copy_directory: 3,
    };
    feed(&mut machine, Input::PeerRecord(Record { leader_directory: 0, copy_directory: 0, ..record }));
    assert_eq!(machine.status(NOW).step, Step::Joining);
    let actions = feed(&mut machine, Input::Beacon { number: 1, record });
    assert!(actions.contains(&Action::Seal), "{actions:?}");
    assert_eq!((machine.status(NOW).step, machine.record()), (Step::Spare, Some(record)));
    // Another record of this epoch stays refused.
    feed(&mut machine, Input::PeerRecord(Record { nonce: 9, ..record }));
    assert_eq!(machine.record(), Some(record));
}

#[test]
fn node_whose_namesake_answers_is_neither_leader_nor_copy() {
    for seed in 0..50 {
        let (mut plant, leader, follower) = healthy(seed);
        let third = NODES - leader - follower;
        for (found, next) in [(follower, third), (leader, third)] {
            plant.feed(found, Input::NamesakeFound);
            plant.run(30_000 * MS);
            let record = plant.record.expect("a leader");
            assert!(!plant.may_act(found), "{}", plant.summary());
            assert_ne!(record.follower.or(record.joiner), Some(node(found)), "{}", plant.summary());
            assert_eq!(plant.copies(), if found == follower { 2 } else { 1 }, "{}", plant.summary());
            assert!(plant.nodes[next].machine.is_some());
        }
        assert_eq!(plant.violation, None);
    }
}
