use std::net::TcpListener;
use std::time::Duration;

use tenbin_codec::{ConnAck, Packet, Publish, ReasonCode};
use tenbin_loadgen::run::{CutWhose, Cuts, Version};

use crate::peer::Peer;
use crate::stage::{ack, ids, run, success};

/// Time for the steps of a test before a cut, and after it: there is one cut in each run.
const CUT_EVERY: Duration = Duration::from_secs(4);

#[test]
fn mqtt_4_4_0_1_unacknowledged_is_resent_after_a_cut() {
    let (outcome, ()) = run(
        |plan| {
            plan.publishers.messages = Some(5);
            plan.connection.session_expiry = Some(Duration::from_secs(60));
            let (every, away) = (CUT_EVERY, Duration::from_millis(50));
            plan.cuts = Some(Cuts { every, whose: CutWhose::Publishers, away });
        },
        |listener| {
            let (mut first, connect) = Peer::welcome(&listener, success());
            assert!(connect.clean_start && connect.properties.session_expiry_interval == Some(60));
            let sent: Vec<_> = (0..3).map(|_| first.receive_publish()).collect();
            first.send(&Packet::PubAck(ack(&sent[1], ReasonCode::Success)));
            let fourth = first.receive_publish();
            assert_eq!(first.rest(), [], "cut without DISCONNECT, while there is a fifth to send");

            let (mut second, connect) = Peer::welcome(&listener, ConnAck::new(true, ReasonCode::Success));
            assert!(!connect.clean_start);
            for unacknowledged in [&sent[0], &sent[2], &fourth] {
                let again = second.receive_publish();
                assert_eq!(again, Publish { dup: true, ..unacknowledged.clone() });
                second.send(&Packet::PubAck(ack(&again, ReasonCode::Success)));
            }
            let fifth = second.receive_publish();
            second.send(&Packet::PubAck(ack(&fifth, ReasonCode::Success)));
            let rest = second.rest();
            let [Packet::Disconnect(disconnect)] = &rest[..] else { panic!("{rest:?}") };
            let properties = disconnect.properties.as_ref().expect("the session is to end");
            assert_eq!(properties.session_expiry_interval, Some(0));
        },
    );
    let outcome = outcome.unwrap();
    assert_eq!((outcome.published.messages, outcome.connections.cut, outcome.connections.lost), (5, 1, 0));
    assert_eq!(outcome.connections.sessions_present, 1);
}

#[test]
fn mqtt_4_4_0_1_pubrel_is_sent_again_and_publish_is_not() {
    run(
        |plan| {
            plan.publishers.qos = 2;
            plan.connection.session_expiry = Some(Duration::MAX);
            let (every, away) = (CUT_EVERY, Duration::ZERO);
            plan.cuts = Some(Cuts { every, whose: CutWhose::Publishers, away });
        },
        |listener| {
            let (mut first, connect) = Peer::welcome(&listener, success());
            assert_eq!(connect.properties.session_expiry_interval, Some(u32::MAX));
            let sent: Vec<_> = (0..3).map(|_| first.receive_publish()).collect();
            let pubrec = ack(&sent[0], ReasonCode::Success);
            first.send(&Packet::PubRec(pubrec.clone()));
            assert_eq!(first.receive(), Some(Packet::PubRel(pubrec.clone())));
            assert_eq!(first.rest(), []);

            let (mut second, _) = Peer::welcome(&listener, ConnAck::new(true, ReasonCode::Success));
            assert_eq!(second.receive(), Some(Packet::PubRel(pubrec.clone())));
            for publish in &sent[1..] {
                assert_eq!(second.receive_publish(), Publish { dup: true, ..publish.clone() });
            }
            second.send(&Packet::PubComp(pubrec));
            let fourth = second.receive_publish();
            assert!(!fourth.dup);
            for publish in [&sent[1], &sent[2], &fourth] {
                second.send(&Packet::PubRec(ack(publish, ReasonCode::Success)));
                assert!(matches!(second.receive(), Some(Packet::PubRel(_))));
                second.send(&Packet::PubComp(ack(publish, ReasonCode::Success)));
            }
            assert_eq!(second.rest().len(), 1);
        },
    )
    .0
    .unwrap();
}

#[test]
fn in_flight_messages_are_lost_with_their_session() {
    let (outcome, ()) = run(
        |plan| {
            let (every, away) = (CUT_EVERY, Duration::ZERO);
            plan.cuts = Some(Cuts { every, whose: CutWhose::Publishers, away });
        },
        |listener| {
            let (mut first, _) = Peer::welcome(&listener, success());
            let sent: Vec<_> = (0..3).map(|_| first.receive_publish()).collect();
            assert_eq!(ids(&sent), [1, 2, 3]);
            assert_eq!(first.rest(), []);
            let (mut second, connect) = Peer::welcome(&listener, success());
            assert!(connect.clean_start);
            let fourth = second.receive_publish();
            assert!(!fourth.dup);
            second.send(&Packet::PubAck(ack(&fourth, ReasonCode::Success)));
            assert_eq!(second.rest().len(), 1);
        },
    );
    assert_eq!(outcome.unwrap().published.messages, 1);
}

#[test]
fn a_session_of_an_earlier_run_is_forgotten_at_3_1_1_too() {
    run(
        |plan| {
            plan.connection.version = Version::V311;
            plan.connection.session_expiry = Some(Duration::from_secs(60));
            plan.publishers.messages = Some(0);
        },
        |listener| {
            // The session is present: the client discards it and connects again.
            let forget = |listener: &TcpListener| {
                let (mut peer, connect) = Peer::welcome(listener, success());
                assert!(connect.clean_start && connect.will.is_none());
                assert!(matches!(peer.rest()[..], [Packet::Disconnect(_)]));
            };
            let (mut stale, connect) = Peer::welcome(&listener, ConnAck::new(true, ReasonCode::Success));
            assert!(!connect.clean_start);
            assert!(matches!(stale.rest()[..], [Packet::Disconnect(_)]));
            forget(&listener);
            let (mut fresh, connect) = Peer::welcome(&listener, success());
            assert!(!connect.clean_start);
            assert!(matches!(fresh.rest()[..], [Packet::Disconnect(_)]));
            // At the end the client discards its session.
            forget(&listener);
        },
    )
    .0
    .unwrap();
}
