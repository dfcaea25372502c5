use std::num::NonZeroU16;

use tenbin_codec::{Packet, Publish, QoS, ReasonCode};
use tenbin_loadgen::run::Pace;

use crate::peer::Peer;
use crate::stage::{ack, audience, due_ns, now_ns, run, success};

#[test]
fn no_more_is_in_flight_than_the_broker_takes() {
    let mut connack = success();
    connack.properties.receive_maximum = NonZeroU16::new(2);
    let (outcome, ()) = run(
        |_| {},
        |listener| {
            let (mut publisher, _) = Peer::welcome(&listener, connack);
            let mut sent = vec![publisher.receive_publish(), publisher.receive_publish()];
            assert!(publisher.is_silent());
            while let Some(publish) = sent.pop() {
                publisher.send(&Packet::PubAck(ack(&publish, ReasonCode::Success)));
            }
            sent = vec![publisher.receive_publish(), publisher.receive_publish()];
            sent.iter().for_each(|publish| publisher.send(&Packet::PubAck(ack(publish, ReasonCode::Success))));
            assert_eq!(publisher.rest().len(), 1);
        },
    );
    assert_eq!(outcome.unwrap().published.messages, 4);
}

#[test]
fn a_closed_loop_lets_out_a_window_and_no_more() {
    let (outcome, ()) = run(
        |plan| {
            plan.publishers.pace = Pace::Closed { window: 10 };
            plan.publishers.in_flight = 1000;
            plan.publishers.messages = Some(35);
            plan.audiences = vec![audience(0)];
        },
        |listener| {
            let mut subscriber = Peer::subscriber(&listener, QoS::AtMostOnce);
            let (mut publisher, _) = Peer::welcome(&listener, success());
            let take = |count, publisher: &mut Peer| -> Vec<_> {
                let taken: Vec<_> = (0..count).map(|_| publisher.receive_publish()).collect();
                taken.iter().for_each(|publish| publisher.send(&Packet::PubAck(ack(publish, ReasonCode::Success))));
                taken
            };
            let first = take(10, &mut publisher);
            let given_ns = now_ns();
            for publish in &first[..5] {
                subscriber.send(&Packet::Publish(Publish { packet_id: None, qos: QoS::AtMostOnce, ..publish.clone() }));
            }
            // Acknowledgements are not deliveries. If the test is slow, the window was given up before.
            let second = take(5, &mut publisher);
            let given_up_ns = due_ns(&first[0]) + 200_000_000;
            assert!(second.iter().all(|publish| due_ns(publish) >= given_ns.min(given_up_ns)));
            // No more deliveries arrive: the outstanding ones are given up, and the window opens again.
            let rest = take(20, &mut publisher);
            assert!(rest.iter().all(|publish| due_ns(publish) >= given_up_ns));
            assert_eq!([publisher.rest().len(), subscriber.rest().len()], [1, 1]);
        },
    );
    let outcome = outcome.unwrap();
    assert_eq!((outcome.published.messages, outcome.verdict.lost), (35, 30));
}

#[test]
fn copies_and_foreign_messages_do_not_open_the_window() {
    let (outcome, ()) = run(
        |plan| {
            plan.publishers.pace = Pace::Closed { window: 2 };
            plan.publishers.in_flight = 1000;
            plan.publishers.messages = Some(40);
            plan.audiences = vec![audience(0)];
        },
        |listener| {
            let mut subscriber = Peer::subscriber(&listener, QoS::AtMostOnce);
            let (mut publisher, _) = Peer::welcome(&listener, success());
            // Each message arrives three times, together with a foreign one; at most two are outstanding.
            let (mut out, mut begun) = (std::collections::VecDeque::new(), 0);
            while begun < 40 {
                while out.len() < 2 && begun < 40 {
                    let publish = publisher.receive_publish();
                    publisher.send(&Packet::PubAck(ack(&publish, ReasonCode::Success)));
                    out.push_back(Publish { packet_id: None, qos: QoS::AtMostOnce, ..publish });
                    begun += 1;
                }
                // On a slow machine a window may have been given up by now, which allows more messages.
                let is_young = now_ns() < due_ns(&out[0]) + 50_000_000;
                assert!(begun == 40 || !is_young || !publisher.has_more(), "after {begun} messages");
                let Some(publish) = out.pop_front() else { break };
                for _ in 0..3 {
                    subscriber.send(&Packet::Publish(publish.clone()));
                }
                subscriber.send_bytes(b"\x30\x09\x00\x04wire\x00no");
            }
            out.into_iter().for_each(|publish| subscriber.send(&Packet::Publish(publish)));
            publisher.rest();
            subscriber.rest();
        },
    );
    let verdict = outcome.unwrap().verdict;
    assert_eq!((verdict.received, verdict.lost), (40, 0));
    assert!(verdict.duplicated > 0 && verdict.foreign > 0, "{verdict:?}");
}

#[test]
fn refused_message_is_not_published() {
    let (outcome, ()) = run(
        |_| {},
        |listener| {
            let (mut publisher, _) = Peer::welcome(&listener, success());
            for reason in [ReasonCode::QuotaExceeded, ReasonCode::Success, ReasonCode::NoMatchingSubscribers] {
                let publish = publisher.receive_publish();
                publisher.send(&Packet::PubAck(ack(&publish, reason)));
            }
            let last = publisher.receive_publish();
            publisher.send(&Packet::PubAck(ack(&last, ReasonCode::NotAuthorized)));
            assert_eq!(publisher.rest().len(), 1);
        },
    );
    let outcome = outcome.unwrap();
    assert_eq!(outcome.published.messages, 2);
    assert_eq!(outcome.notes, ["2 messages were not taken by the broker"]);
}
