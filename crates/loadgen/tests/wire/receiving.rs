use std::io::Write;
use std::time::Duration;

use tenbin_codec::{Packet, Publish, QoS, ReasonCode};
use tenbin_loadgen::run::{Audience, Verdict};

use crate::peer::Peer;
use crate::stage::{PATIENCE, ack, audience, now_ns, run, success};

#[test]
fn mqtt_4_3_3_10_resend_before_pubrel_is_one_arrival() {
    let (outcome, ()) = run(
        |plan| {
            plan.publishers.messages = Some(1);
            plan.audiences = vec![audience(2)];
        },
        |listener| {
            let mut subscriber = Peer::subscriber(&listener, QoS::ExactlyOnce);
            let (mut publisher, _) = Peer::welcome(&listener, success());
            let message = publisher.receive_publish();
            let id = ack(&message, ReasonCode::Success);
            let message = Publish { qos: QoS::ExactlyOnce, ..message };
            for dup in [false, true, true] {
                subscriber.send(&Packet::Publish(Publish { dup, ..message.clone() }));
                assert_eq!(subscriber.receive(), Some(Packet::PubRec(id.clone())));
            }
            subscriber.send(&Packet::PubRel(id.clone()));
            assert_eq!(subscriber.receive(), Some(Packet::PubComp(id.clone())));
            // Released, its Packet Identifier is new again.
            subscriber.send(&Packet::Publish(message));
            assert_eq!(subscriber.receive(), Some(Packet::PubRec(id.clone())));
            publisher.send(&Packet::PubAck(id));
            assert_eq!([publisher.rest().len(), subscriber.rest().len()], [1, 1]);
        },
    );
    let copy = Verdict { duplicated: 1, duplicated_unmarked: 1, ..Verdict::default() };
    let expected = Verdict { expected: 1, received: 1, exact: true, ..copy };
    assert_eq!(outcome.unwrap().verdict, expected);
}

#[test]
fn a_copy_at_qos_1_is_acknowledged_and_counted() {
    let (outcome, ()) = run(
        |plan| {
            plan.publishers.messages = Some(1);
            plan.audiences = vec![audience(1)];
        },
        |listener| {
            let mut subscriber = Peer::subscriber(&listener, QoS::AtLeastOnce);
            let (mut publisher, _) = Peer::welcome(&listener, success());
            let message = publisher.receive_publish();
            for dup in [false, true, false] {
                subscriber.send(&Packet::Publish(Publish { dup, ..message.clone() }));
                assert_eq!(subscriber.receive(), Some(Packet::PubAck(ack(&message, ReasonCode::Success))));
            }
            publisher.send(&Packet::PubAck(ack(&message, ReasonCode::Success)));
            assert_eq!([publisher.rest().len(), subscriber.rest().len()], [1, 1]);
        },
    );
    let verdict = outcome.unwrap().verdict;
    assert_eq!((verdict.received, verdict.duplicated, verdict.duplicated_unmarked), (1, 2, 1));
}

#[test]
fn mqtt_3_8_4_2_messages_before_suback_are_acknowledged() {
    let (outcome, ()) = run(
        |plan| {
            plan.publishers.count = 0;
            plan.audiences = vec![audience(1)];
        },
        |listener| {
            let (mut subscriber, _) = Peer::welcome(&listener, success());
            let Some(Packet::Subscribe(subscribe)) = subscriber.receive() else { panic!("SUBSCRIBE was expected") };
            let payload = |id: u8| [&now_ns().to_be_bytes()[..], &[0; 11], &[id]].concat();
            let publish = |id: u8| [&[0x32, 29, 0, 4, b'w', b'i', b'r', b'e', 0, id, 0][..], &payload(id)].concat();
            subscriber.send_bytes(&[publish(1), publish(2)].concat());
            // In another segment, followed by a message.
            std::thread::sleep(Duration::from_millis(50));
            let suback = [&[0x90, 4][..], &subscribe.packet_id.get().to_be_bytes(), &[0, 1]].concat();
            subscriber.send_bytes(&[suback, publish(3)].concat());
            for id in 1..=3 {
                let Some(Packet::PubAck(puback)) = subscriber.receive() else { panic!("PUBACK was expected") };
                assert_eq!(puback.packet_id.get(), id);
            }
            subscriber.rest();
        },
    );
    assert_eq!(outcome.unwrap().received.messages, 3);
}

#[test]
fn copies_and_foreign_messages_do_not_hide_missing_ones() {
    let (outcome, ()) = run(
        |plan| {
            plan.audiences = vec![audience(1)];
            plan.schedule.subscriber_timeout = PATIENCE;
        },
        |listener| {
            let mut subscriber = Peer::subscriber(&listener, QoS::AtLeastOnce);
            let (mut publisher, _) = Peer::welcome(&listener, success());
            let sent: Vec<_> = (0..3).map(|_| publisher.receive_publish()).collect();
            let foreign = Publish { payload: b"of somebody else".to_vec().into(), retain: true, ..sent[0].clone() };
            for early in [&foreign, &foreign, &sent[0], &sent[0], &sent[0], &foreign] {
                subscriber.send(&Packet::Publish(early.clone()));
            }
            sent.iter().for_each(|publish| publisher.send(&Packet::PubAck(ack(publish, ReasonCode::Success))));
            let last = publisher.receive_publish();
            publisher.send(&Packet::PubAck(ack(&last, ReasonCode::Success)));
            // Longer than the wait after all messages have arrived.
            std::thread::sleep(Duration::from_millis(300));
            for late in [&sent[1], &sent[2], &last] {
                subscriber.send(&Packet::Publish(late.clone()));
            }
            assert_eq!([publisher.rest().len(), subscriber.rest().len()], [1, 6 + 3 + 1]);
        },
    );
    let verdict = outcome.unwrap().verdict;
    assert_eq!((verdict.received, verdict.lost, verdict.duplicated, verdict.foreign), (4, 0, 2, 3));
}

#[test]
fn message_at_two_members_does_not_hide_a_missing_one() {
    let (outcome, ()) = run(
        |plan| {
            plan.publishers.messages = Some(2);
            plan.audiences = vec![Audience { share: Some("g".into()), count: 2, ..audience(1) }];
        },
        |listener| {
            let mut members = [(); 2].map(|()| Peer::subscriber(&listener, QoS::AtLeastOnce));
            let (mut publisher, _) = Peer::welcome(&listener, success());
            let sent = [publisher.receive_publish(), publisher.receive_publish()];
            members[0].send(&Packet::Publish(sent[0].clone()));
            members[1].send(&Packet::Publish(Publish { dup: true, ..sent[0].clone() }));
            sent.iter().for_each(|publish| publisher.send(&Packet::PubAck(ack(publish, ReasonCode::Success))));
            std::thread::sleep(Duration::from_millis(300));
            members[0].send(&Packet::Publish(sent[1].clone()));
            publisher.rest();
            members.iter_mut().for_each(|member| drop(member.rest()));
        },
    );
    let verdict = outcome.unwrap().verdict;
    assert_eq!((verdict.received, verdict.lost, verdict.to_another_member), (2, 0, 1));
}

#[test]
fn run_ends_despite_endless_foreign_messages() {
    let (outcome, ()) = run(
        |plan| plan.audiences = vec![audience(0)],
        |listener| {
            let mut subscriber = Peer::subscriber(&listener, QoS::AtMostOnce);
            let (mut publisher, _) = Peer::welcome(&listener, success());
            for _ in 0..4 {
                let publish = publisher.receive_publish();
                publisher.send(&Packet::PubAck(ack(&publish, ReasonCode::Success)));
                subscriber.send(&Packet::Publish(Publish { packet_id: None, qos: QoS::AtMostOnce, ..publish }));
            }
            let foreign = b"\x30\x09\x00\x04wire\x00no";
            while subscriber.stream.write_all(foreign).is_ok() {
                std::thread::sleep(Duration::from_millis(2));
            }
        },
    );
    let outcome = outcome.unwrap();
    assert_eq!((outcome.verdict.received, outcome.verdict.lost), (4, 0));
    assert!(outcome.verdict.foreign > 0 && outcome.notes.is_empty(), "{:?}", outcome.notes);
}
