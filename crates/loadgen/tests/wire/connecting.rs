use tenbin_codec::{ConnAck, Packet, QoS, ReasonCode, Secret};
use tenbin_loadgen::run::{Audience, Plan, WillOptions};

use crate::peer::Peer;
use crate::stage::{PATIENCE, ack, audience, run, success};

#[test]
fn a_silent_connection_is_kept_alive_as_the_broker_wants_it() {
    let mut connack = success();
    connack.properties.server_keep_alive = Some(1);
    let (outcome, ()) = run(
        |plan| plan.connection.keep_alive = 600,
        |listener| {
            let (mut publisher, connect) = Peer::welcome(&listener, connack);
            assert_eq!(connect.keep_alive, 600);
            let sent: Vec<_> = (0..3).map(|_| publisher.receive_publish()).collect();
            for _ in 0..2 {
                assert!(matches!(publisher.receive(), Some(Packet::PingReq(_))));
                publisher.send(&Packet::PingResp);
            }
            sent.iter().for_each(|publish| publisher.send(&Packet::PubAck(ack(publish, ReasonCode::Success))));
            let last = publisher.receive_publish();
            publisher.send(&Packet::PubAck(ack(&last, ReasonCode::Success)));
            publisher.rest();
        },
    );
    assert_eq!(outcome.unwrap().published.messages, 4);
}

#[test]
fn connect_says_what_the_plan_says() {
    let (_, connect) = run(
        |plan| {
            plan.connection.user_name = Some("user".into());
            plan.connection.password = Some(Secret::new("secret".to_owned()));
            plan.connection.keep_alive = 33;
            plan.connection.will = Some(WillOptions { topic: "gone".into(), qos: 1 });
            plan.publishers.messages = Some(0);
        },
        |listener| {
            // The subscriber that counts the Wills.
            let mut subscriber = Peer::subscriber(&listener, QoS::AtLeastOnce);
            let (mut publisher, connect) = Peer::welcome(&listener, success());
            publisher.rest();
            subscriber.rest();
            connect
        },
    );
    assert_eq!(connect.client_id.as_str(), "wire-pub-0");
    assert_eq!(connect.user_name.as_ref().map(AsRef::as_ref), Some("user"));
    assert_eq!((connect.password, connect.keep_alive), (Some("secret".into()), 33));
    let will = connect.will.expect("publishers have one");
    assert_eq!((will.topic.to_string().as_str(), will.qos), ("gone", QoS::AtLeastOnce));
}

#[test]
fn an_audience_has_a_keep_alive_of_its_own() {
    let (_, keep_alive) = run(
        |plan| {
            plan.connection.keep_alive = 600;
            plan.publishers.count = 0;
            plan.audiences = vec![Audience { keep_alive: Some(33), ..audience(1) }];
            plan.schedule.subscriber_timeout = std::time::Duration::from_millis(1);
        },
        |listener| {
            let (mut subscriber, connect) = Peer::welcome(&listener, success());
            subscriber.answer_subscribe(ReasonCode::GrantedQoS1);
            subscriber.rest();
            connect.keep_alive
        },
    );
    assert_eq!(keep_alive, 33);
}

#[test]
fn refusal_in_connack_or_suback_is_named() {
    let refuse = |plan: fn(&mut Plan), connack: ConnAck, suback: Option<ReasonCode>| {
        let (outcome, ()) = run(plan, |listener| {
            let (mut peer, _) = Peer::welcome(&listener, connack);
            if let Some(reason) = suback {
                peer.answer_subscribe(reason);
            }
            peer.rest();
        });
        let error = outcome.expect_err("it was refused").to_string();
        let (_, what) = error.split_once(": ").expect("where: what");
        what.to_owned()
    };
    let refused = ConnAck::new(false, ReasonCode::BadUserNameOrPassword);
    assert_eq!(refuse(|_| {}, refused, None), "wire-pub-0: refused: Bad User Name or Password (0x86)");

    let share = |plan: &mut Plan| plan.audiences = vec![Audience { share: Some("g".into()), ..audience(1) }];
    let error = refuse(share, success(), Some(ReasonCode::NotAuthorized));
    assert_eq!(error, "wire-sub-0: subscription to $share/g/wire: Not authorized (0x87)");
    let error = refuse(share, success(), Some(ReasonCode::Success));
    assert_eq!(error, "wire-sub-0: subscription to $share/g/wire at QoS 1: QoS 0 granted");

    let mut connack = success();
    connack.properties.maximum_qos = Some(QoS::AtMostOnce);
    assert_eq!(refuse(|_| {}, connack, None), "wire-pub-0: QoS 1 is not taken");
    let mut connack = success();
    connack.properties.retain_available = Some(false);
    assert_eq!(
        refuse(|plan| plan.publishers.retain = true, connack, None),
        "wire-pub-0: retained messages are not taken"
    );
    let mut connack = success();
    connack.properties.maximum_packet_size = std::num::NonZeroU32::new(20);
    assert_eq!(refuse(|_| {}, connack, None), "wire-pub-0: packets of 31 bytes are not taken, 20 at most");
}

#[test]
fn malformed_packets_end_the_run_and_name_the_client() {
    for (nonsense, complaint) in [
        (&b"\x30\xFF\xFF\xFF\xFF\x01"[..], "malformed packet"),
        (b"\x30\x02\x00\x09", "malformed PUBLISH"),
        (b"\x36\x04\x00\x01t\x00", "malformed PUBLISH"),
        (b"\x62\x01\x00", "malformed PUBREL"),
        (b"\x00\x00", "malformed packet"),
        (b"\x10\x00", "unexpected CONNECT"),
        (b"\x40\x02\x00\x01", "unexpected PUBACK"),
        (b"\xE0\x02\x8B\x00", "DISCONNECT: Server shutting down (0x8B)"),
    ] {
        let (outcome, ()) = run(
            |plan| {
                plan.publishers.count = 0;
                plan.audiences = vec![audience(1)];
                plan.schedule.subscriber_timeout = PATIENCE;
            },
            |listener| {
                let mut subscriber = Peer::subscriber(&listener, QoS::AtLeastOnce);
                subscriber.send_bytes(nonsense);
                subscriber.rest();
            },
        );
        let error = outcome.expect_err(complaint).to_string();
        assert_eq!(error, format!("wire-sub-0 lost its connection: {complaint}"));
    }
}
