use std::time::Duration;

use tenbin_codec::{NewSession, Packet, QoS, ReasonCode};
use tenbin_sn::{Action, DropCause, End, Verdict};
use tenbin_sn_codec::v1_2::{self, Connect, Disconnect, Message, MessageId, PingReq, RegAck, ReturnCode, Topic};

use crate::rig::{RETRY, Rig, connack, connack_with, connect, from_broker, gateway, id, ok, to_broker};

/// Size of the smallest CONNECT.
const CONNECT_SIZE: usize = 7;
const PING: Message<'static> = Message::PingReq(PingReq { client_id: None });

/// A client that has sent CONNECT only, at a gateway that trusts no address.
fn unproven() -> Rig {
    let mut rig = Rig::accept(&gateway(|settings| settings.trusts_addresses = false), connect("c"), None);
    rig.open();
    rig.broker(connack(ReasonCode::Success));
    rig
}

fn bytes(datagrams: &[Vec<u8>]) -> usize {
    datagrams.iter().map(Vec::len).sum()
}

/// The last REGISTER: topic id, MsgId and name.
fn register(sent: &[Vec<u8>]) -> (u16, MessageId, String) {
    let registers = sent.iter().rev().filter_map(|datagram| match Message::decode(datagram) {
        Ok(Message::Register(register)) => Some(register),
        _ => None,
    });
    let register = registers.take(1).next().unwrap_or_else(|| panic!("no REGISTER: {sent:?}"));
    (register.topic_id, register.message_id.expect("a MsgId"), register.topic.to_owned())
}

/// A client of a session that exists, which gets no message before its proof.
fn unproven_in_session() -> Rig {
    let mut rig = Rig::accept(&gateway(|settings| settings.trusts_addresses = false), connect("c"), None);
    rig.open();
    rig.broker(connack_with(true, |_| {}));
    rig
}

fn regack(rig: &mut Rig, topic_id: u16, message_id: MessageId, code: ReturnCode) {
    rig.client(Message::RegAck(RegAck { topic_id, message_id: Some(message_id), code }));
}

#[test]
fn unproven_client_gets_three_times_its_bytes_at_most() {
    let mut rig = unproven();
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, b"01234567"));
    rig.pass(4 * RETRY);
    let sent = rig.sent();
    assert!(sent.len() >= 2, "CONNACK and REGISTER");
    assert!(bytes(&sent) <= 3 * CONNECT_SIZE, "{sent:?}");
    assert!(rig.drops(DropCause::Unproven) > 0);

    let gateway = gateway(|settings| settings.trusts_addresses = false);
    let mut rig = Rig::accept(&gateway, Connect { will: true, ..connect("c") }, None);
    rig.pass(60 * RETRY);
    assert!(bytes(&rig.sent()) <= 3 * CONNECT_SIZE);
    assert_eq!(rig.action, Action::End(End::NoAnswer));
}

/// A forger may send anything, but not the MsgId of a REGISTER that it does not get.
#[test]
fn forged_messages_prove_nothing() {
    let mut rig = unproven();
    let mut received = CONNECT_SIZE;
    let mut sent = 0;
    for round in 0..2000_u16 {
        let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][usize::from(round) % 3];
        if rig.peer.accepts_packets() {
            rig.broker(from_broker(
                ["a/b", "xy", "pre/defined"][usize::from(round / 3) % 3],
                qos,
                round + 1,
                &[7; 400],
            ));
        }
        let (ack, code) = (round + 1, ReturnCode::Accepted);
        for datagram in [
            b"\x02\x16".to_vec(),
            b"\x02\x17".to_vec(),
            [&b"\x07\x0D\x00\x01"[..], &ack.to_be_bytes(), &[0]].concat(),
            [&b"\x07\x0B\x00\x01"[..], &round.wrapping_mul(31).max(1).to_be_bytes(), &[code as u8]].concat(),
            [&b"\x04\x0F"[..], &ack.to_be_bytes()].concat(),
        ] {
            received += datagram.len();
            rig.datagram(&datagram);
        }
        sent += bytes(&rig.sent());
        rig.packets();
        assert!(!rig.peer.is_proven() && sent <= 3 * received, "round {round}: {sent} for {received}");
    }
}

#[test]
fn unconfirmed_client_leaves_no_new_session_behind() {
    let ends = |session_present, clean_session, is_confirmed, is_evicted| {
        let connect = Connect { clean_session, ..connect("c") };
        let mut rig = Rig::accept(&gateway(|settings| settings.trusts_addresses = false), connect, None);
        rig.open();
        rig.broker(connack_with(session_present, |_| {}));
        if is_confirmed {
            rig.client(Message::PingResp);
        }
        if is_evicted {
            rig.evict()
        } else {
            rig.pass(Duration::from_secs(90))
        }
        let end = if is_evicted { End::Closed } else { End::KeepAlive };
        assert_eq!((rig.action, rig.sent().len()), (Action::End(end), 1), "CONNACK only");
        match &rig.packets()[..] {
            [] => false,
            [Packet::Disconnect(disconnect)] => {
                let expiry = disconnect.properties.as_ref().and_then(|properties| properties.session_expiry_interval);
                assert_eq!((disconnect.reason, expiry), (ReasonCode::DisconnectWithWill, Some(0)));
                true
            }
            other => panic!("{other:?}"),
        }
    };
    for is_evicted in [true, false] {
        assert!(ends(false, false, false, is_evicted), "a forged CONNECT");
        assert!(!ends(true, false, false, is_evicted), "an old session");
        assert!(!ends(false, false, true, is_evicted), "a client that is there");
        assert!(ends(false, true, false, is_evicted) && ends(false, true, true, is_evicted), "Clean Session");
    }
}

#[test]
fn unproven_client_of_a_session_gets_its_messages_after_regack() {
    for (topic, is_registered) in [("a/b", true), ("xy", false), ("pre/defined", false)] {
        let mut rig = unproven_in_session();
        rig.client(Message::Connect(connect("c")));
        rig.sent();
        rig.broker(from_broker(topic, QoS::AtMostOnce, 0, b"0"));
        rig.broker(from_broker(topic, QoS::AtLeastOnce, 1, b"1"));
        let sent = rig.sent();
        let (topic_id, message_id, name) = register(&sent);
        assert_eq!((sent.len(), name.as_str()), (1, "~"), "REGISTER alone, of no topic");
        regack(&mut rig, topic_id, message_id, ReturnCode::Accepted);
        assert!(rig.peer.is_proven());
        if is_registered {
            assert_eq!(rig.sent(), [b"\x09\x0A\x00\x01\x00\x01a/b"], "the topic has an id of its own");
            regack(&mut rig, 1, id(1), ReturnCode::Accepted);
        }
        assert_eq!(rig.sent().len(), 2, "{topic}: both messages");
        rig.broker(from_broker(topic, QoS::AtMostOnce, 0, b"2"));
        assert_eq!(rig.sent().len(), 1);
        // The id of the question is no topic's.
        rig.packets();
        rig.client(Message::Publish(to_broker(Topic::Normal(topic_id), v1_2::QoS::AtMostOnce, 0, b"up")));
        assert!(rig.packets().is_empty());
    }
}

#[test]
fn refused_question_proves_the_address_and_leaves_the_topic() {
    for code in [ReturnCode::NotSupported, ReturnCode::Congestion, ReturnCode::InvalidTopicId] {
        let mut rig = unproven_in_session();
        rig.sent();
        rig.broker(from_broker("xy", QoS::AtMostOnce, 0, b"0"));
        let (topic_id, message_id, _) = register(&rig.sent());
        regack(&mut rig, topic_id, message_id, code);
        assert!(rig.peer.is_proven());
        rig.broker(from_broker("xy", QoS::AtMostOnce, 0, b"1"));
        assert_eq!(rig.sent(), [b"\x08\x0C\x02xy\x00\x000", b"\x08\x0C\x02xy\x00\x001"]);
    }
}

/// Neither sleep nor another address gives a forger more guesses.
#[test]
fn client_that_guesses_is_lost() {
    let mut rig = unproven();
    rig.sent();
    rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"0"));
    for round in 1..=5 {
        assert_eq!(rig.action, Action::Continue, "{round}");
        regack(&mut rig, round, id(round), ReturnCode::Accepted);
        if round < 5 {
            rig.client(Message::Disconnect(Disconnect { duration: Some(600) }));
            rig.peer.rebind();
            rig.wake();
        }
    }
    assert_eq!(rig.action, Action::End(End::NoAnswer));
}

/// A question that does not fit is no unanswered one: the client is not lost for it.
#[test]
fn question_without_room_is_asked_for_until_there_is_some() {
    let mut rig = unproven();
    rig.sent();
    rig.client(Message::Disconnect(Disconnect { duration: Some(6000) }));
    rig.sent();
    rig.broker(from_broker("plant/1", QoS::AtMostOnce, 0, b"0"));
    // A wake of three bytes allows nine: the question, and no repetition.
    rig.peer.rebind();
    rig.wake();
    assert_eq!(register(&rig.sent()).2, "~");
    rig.pass(RETRY);
    assert_eq!(rig.sent(), [b"\x02\x16"], "PINGREQ in place of a repetition");
    rig.pass(7 * RETRY);
    assert_eq!(rig.action, Action::Continue);
    rig.wake();
    rig.pass(2 * RETRY);
    let (topic_id, message_id, _) = register(&rig.sent());
    regack(&mut rig, topic_id, message_id, ReturnCode::Accepted);
    assert!(rig.peer.is_proven());
}

/// Each MsgId allows one guess; the next one comes with the repetition.
#[test]
fn guessed_regack_makes_the_register_void() {
    let mut rig = unproven();
    rig.sent();
    rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"0"));
    let (topic_id, message_id, _) = register(&rig.sent());
    let guess = id(if message_id.get() == 1 { 2 } else { 1 });
    regack(&mut rig, topic_id, guess, ReturnCode::Accepted);
    regack(&mut rig, topic_id, message_id, ReturnCode::Accepted);
    assert!(!rig.peer.is_proven() && rig.sent().is_empty());
    rig.pass(RETRY);
    let (topic_id, next, _) = register(&rig.sent());
    assert_ne!(next, message_id);
    regack(&mut rig, topic_id, next, ReturnCode::Accepted);
    assert!(rig.peer.is_proven());
    assert_eq!(rig.sent().len(), 1);
}

#[test]
fn msgids_of_unproven_clients_differ() {
    let gateway = gateway(|settings| settings.trusts_addresses = false);
    let ids: std::collections::BTreeSet<_> = (0..50)
        .map(|_| {
            let mut rig = Rig::accept(&gateway, connect("c"), None);
            rig.open();
            rig.broker(connack(ReasonCode::Success));
            rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"0"));
            register(&rig.sent()).1
        })
        .collect();
    assert!(ids.len() > 40, "{ids:?}");
}

#[test]
fn question_takes_no_place_in_the_topic_table() {
    let mut rig = Rig::accept(
        &gateway(|settings| {
            settings.trusts_addresses = false;
            settings.topics_maximum = 1;
        }),
        connect("c"),
        None,
    );
    rig.open();
    rig.broker(connack(ReasonCode::Success));
    rig.sent();
    assert_eq!(rig.register("a/b"), 1);
    rig.broker(from_broker("xy", QoS::AtMostOnce, 0, b"0"));
    let sent = rig.sent();
    let (topic_id, message_id, name) = register(&sent);
    assert_eq!((name.as_str(), &sent[1][..]), ("~", &b"\x08\x0C\x02xy\x00\x000"[..]));
    regack(&mut rig, topic_id, message_id, ReturnCode::Accepted);
    assert!(rig.peer.is_proven() && rig.sent().is_empty());
}

/// As RIOT's emcute and asymcute: they ignore REGISTER, answer PINGREQ, and refuse a PUBLISH on an unknown id.
#[test]
fn refusal_of_an_unknown_id_proves_the_address() {
    let mut rig = unproven_in_session();
    rig.sent();
    rig.broker(from_broker("xy", QoS::AtMostOnce, 0, &[7; 600]));
    let (topic_id, _, _) = register(&rig.sent());
    rig.pass(Duration::from_secs(1));
    assert_eq!(rig.sent(), [b"\x02\x16"], "PINGREQ behind the question");
    rig.client(Message::PingResp);
    let sent = rig.sent();
    let Ok(Message::Publish(question)) = Message::decode(&sent[0]) else { panic!("no PUBLISH: {sent:?}") };
    let id = question.topic.field();
    assert_ne!(id, topic_id, "a client may know the id of the REGISTER");
    assert_eq!((question.qos, question.data.len()), (Some(v1_2::QoS::AtLeastOnce), 0));
    let code = ReturnCode::InvalidTopicId;
    rig.client(Message::PubAck(v1_2::PubAck { topic_id: id, message_id: question.message_id, code }));
    assert!(rig.peer.is_proven());
    assert_eq!(rig.sent().len(), 1, "the message");
}

/// A new session gets messages within three times its bytes without any proof; PINGREQ brings the bytes.
#[test]
fn client_that_answers_no_question_gets_small_messages() {
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let mut rig = unproven();
        let (mut received, mut messages, mut sent_bytes) = (CONNECT_SIZE, 0, 0);
        for number in 1..=12 {
            rig.broker(from_broker("xy", qos, number, b"21.5 degrees"));
            for _ in 0..40 {
                let sent = rig.sent();
                sent_bytes += bytes(&sent);
                assert!(sent_bytes <= 3 * received, "{sent_bytes} for {received}");
                for datagram in sent {
                    let answer = match Message::decode(&datagram) {
                        Ok(Message::PingReq(_)) => Message::PingResp,
                        Ok(Message::Publish(publish)) if publish.data.is_empty() => continue,
                        Ok(Message::Publish(publish)) => {
                            messages += 1;
                            let (topic_id, message_id) = (publish.topic.field(), publish.message_id);
                            if qos == QoS::AtMostOnce {
                                continue;
                            }
                            assert!(number > 2 || message_id != MessageId::new(number), "it can be guessed");
                            Message::PubAck(v1_2::PubAck { topic_id, message_id, code: ReturnCode::Accepted })
                        }
                        _ => continue,
                    };
                    let mut encoded = Vec::new();
                    answer.encode(&mut encoded);
                    received += encoded.len();
                    rig.client(answer);
                }
                if messages == number {
                    break;
                }
                rig.pass(Duration::from_millis(200));
            }
            assert_eq!(messages, number, "{qos:?}");
        }
        assert_eq!(rig.peer.is_proven(), qos == QoS::AtLeastOnce, "two PUBACKs prove the address");
        assert_eq!(rig.action, Action::Continue);
    }
}

#[test]
fn qos_2_message_before_the_proof_has_the_id_of_the_broker() {
    let mut rig = unproven();
    rig.broker(from_broker("xy", QoS::ExactlyOnce, 0x1234, b"on"));
    let sent = rig.sent();
    let is_it = |datagram: &Vec<u8>| matches!(Message::decode(datagram), Ok(Message::Publish(publish)) if publish.message_id == MessageId::new(0x1234));
    assert!(sent.iter().any(is_it), "the client knows it again on its next connection: {sent:?}");
}

/// The broker has a session with the client id: the client waits for it with its requests, and proves its address.
#[test]
fn session_that_exists_waits_for_the_proof() {
    let gateway = gateway(|settings| settings.trusts_addresses = false);
    let mut rig = Rig::accept(&gateway, connect("c"), None);
    assert!(NewSession::is_required(&rig.open().properties.user_properties));
    rig.broker(connack(ReasonCode::ClientIdentifierNotValid));
    assert_eq!((rig.action, rig.sent().len()), (Action::End(End::SessionExists), 0));
    let mut candidate = rig.make_candidate();
    let sent = rig.sent();
    assert_eq!(sent[0], b"\x03\x05\x00", "CONNACK, which a stock client waits for");
    let (topic_id, message_id, _) = register(&sent);
    let subscribe = b"\x08\x12\x20\x00\x01a/b";
    assert_eq!(rig.candidate_gets(&mut candidate, subscribe), Verdict::Waits);
    let [high, low] = topic_id.to_be_bytes();
    let [id_high, id_low] = message_id.get().to_be_bytes();
    let guess = [7, 0x0B, high, low, id_high, id_low ^ 1, 0];
    let answer = [7, 0x0B, high, low, id_high, id_low, 0];
    assert_eq!(rig.candidate_gets(&mut candidate, &guess), Verdict::Waits);
    assert_eq!(rig.candidate_gets(&mut candidate, &answer), Verdict::Waits, "a guess makes the MsgId void");
    let at = candidate.poll_timeout();
    assert_eq!(rig.candidate_waits(&mut candidate, at), Verdict::Waits);
    let (topic_id, message_id, _) = register(&rig.sent());
    let [high, low] = topic_id.to_be_bytes();
    let [id_high, id_low] = message_id.get().to_be_bytes();
    assert_eq!(rig.candidate_gets(&mut candidate, &[7, 0x0B, high, low, id_high, id_low, 3]), Verdict::Proven);

    let mut rig = Rig::accept_proven(&gateway, candidate);
    assert!(rig.sent().is_empty());
    assert!(!NewSession::is_required(&rig.open().properties.user_properties));
    rig.broker(connack_with(true, |_| {}));
    assert!(rig.sent().is_empty(), "it has CONNACK");
    assert!(matches!(&rig.packets()[..], [Packet::Subscribe(_)]), "the request that has waited");
}

/// Without an answer nothing happens, but a DISCONNECT to the client at the end.
#[test]
fn candidate_that_does_not_answer_ends() {
    let gateway = gateway(|settings| settings.trusts_addresses = false);
    let mut rig = Rig::accept(&gateway, connect("c"), None);
    rig.open();
    rig.broker(connack(ReasonCode::ClientIdentifierNotValid));
    let mut candidate = rig.make_candidate();
    let mut verdict = Verdict::Waits;
    while verdict == Verdict::Waits {
        let at = candidate.poll_timeout();
        verdict = rig.candidate_waits(&mut candidate, at);
    }
    assert_eq!(verdict, Verdict::Unproven);
    assert!(bytes(&rig.sent()) <= 3 * CONNECT_SIZE);
}

#[test]
fn repeated_connect_does_not_confirm() {
    let mut rig = unproven();
    rig.sent();
    for _ in 0..3 {
        rig.client(Message::Connect(connect("c")));
    }
    assert_eq!(rig.sent().len(), 3);
    assert!(!rig.peer.is_confirmed());
    rig.client(PING);
    assert!(rig.peer.is_confirmed() && !rig.peer.is_proven());
}

/// A sleeper that has proven its address, with a QoS 1 message under way and one that waits, moves and wakes.
#[test]
fn client_proves_each_new_address() {
    for by_connect in [false, true] {
        let mut rig = unproven();
        rig.sent();
        rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, b"first"));
        let (topic_id, message_id, _) = register(&rig.sent());
        regack(&mut rig, topic_id, message_id, ReturnCode::Accepted);
        assert_eq!(rig.sent().len(), 1, "under way");
        rig.client(Message::Disconnect(Disconnect { duration: Some(600) }));
        rig.sent();
        rig.broker(from_broker("xy", QoS::AtMostOnce, 0, b"second"));
        rig.peer.rebind();
        if by_connect {
            rig.client(Message::Connect(connect("c")));
        } else {
            rig.wake();
        }
        let mut sent = rig.sent();
        if by_connect {
            assert_eq!(sent.remove(0), b"\x03\x05\x00");
        }
        while sent == [b"\x02\x16"] {
            rig.client(Message::PingResp);
            sent = rig.sent();
        }
        let (topic_id, message_id, _) = register(&sent);
        assert_eq!((sent.len(), rig.peer.is_proven()), (1, false), "no message");
        regack(&mut rig, topic_id, message_id, ReturnCode::Accepted);
        let sent = rig.sent();
        let is_dup =
            |datagram: &[u8]| matches!(Message::decode(datagram), Ok(Message::Publish(publish)) if publish.dup);
        assert_eq!(sent.len(), 2, "the first again, and the second");
        assert!(is_dup(&sent[0]) && !is_dup(&sent[1]));
        rig.packets();
        rig.client(Message::PubAck(v1_2::PubAck {
            topic_id: u16::from_be_bytes(*b"xy"),
            message_id: MessageId::new(1),
            code: ReturnCode::Accepted,
        }));
        assert!(rig.packets().contains(&Packet::PubAck(ok(1))));
    }
}

#[test]
fn probe_asks_the_client_for_a_sign_of_life() {
    let mut rig = Rig::active(|_| {});
    rig.pass(Duration::from_secs(5));
    let asked = rig.now;
    rig.probe();
    assert_eq!(rig.sent(), [b"\x02\x16"]);
    assert!(rig.peer.last_received() < asked);
    rig.pass(Duration::from_secs(1));
    rig.client(Message::PingResp);
    assert!(rig.peer.last_received() > asked);
    assert!(rig.sent().is_empty());
}
