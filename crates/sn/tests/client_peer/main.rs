//! The client's side: against messages written by hand, and against the gateway's peer over a lossy link.

mod lossy;

use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use tenbin_sn::{ClientEvent, ClientOptions, ClientPeer, ClientTopic, ClientWill, Datagrams, RequestId};
use tenbin_sn_codec::v1_2::{Message, QoS, ReturnCode, ShortName};

const RETRY: Duration = Duration::from_secs(10);

/// A client whose gateway is the test.
struct Rig {
    client: ClientPeer,
    now: Instant,
    out: Datagrams,
}

impl Rig {
    #[allow(clippy::disallowed_methods, reason = "any start of the virtual time will do")]
    fn new(change: impl FnOnce(&mut ClientOptions)) -> Self {
        let mut options = ClientOptions::new("c");
        change(&mut options);
        let now = Instant::now();
        Self { client: ClientPeer::new(options, now), now, out: Datagrams::default() }
    }

    fn connected(change: impl FnOnce(&mut ClientOptions)) -> Self {
        let mut rig = Self::new(change);
        rig.client.connect(rig.now, &mut rig.out);
        rig.sent();
        rig.gateway(b"\x03\x05\x00");
        assert_eq!(rig.events(), [ClientEvent::Connected]);
        rig
    }

    fn gateway(&mut self, datagram: &[u8]) {
        let message = Message::decode(datagram).expect("a legal message");
        self.client.handle_message(&message, self.now, &mut self.out);
    }

    fn publish(&mut self, topic: &str, qos: QoS, payload: &'static [u8]) -> RequestId {
        self.client.publish(topic.into(), qos, false, Bytes::from_static(payload), self.now, &mut self.out)
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(deadline) = self.client.poll_timeout().filter(|&deadline| deadline <= end) {
            self.now = self.now.max(deadline);
            self.client.handle_timeout(self.now, &mut self.out);
            assert_ne!(self.client.poll_timeout(), Some(deadline), "a deadline that stays");
        }
        self.now = end;
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        let sent = self.out.iter().map(<[u8]>::to_vec).collect();
        self.out.clear();
        sent
    }

    fn events(&mut self) -> Vec<ClientEvent> {
        std::iter::from_fn(|| self.client.poll_event()).collect()
    }
}

#[test]
fn client_answers_the_will_dialogue() {
    let will = ClientWill {
        topic: "gone".to_owned(),
        message: Bytes::from_static(b"bye"),
        qos: QoS::AtLeastOnce,
        retain: true,
    };
    let mut rig = Rig::new(|options| options.will = Some(will));
    rig.client.connect(rig.now, &mut rig.out);
    rig.gateway(b"\x02\x06");
    rig.gateway(b"\x02\x08");
    assert_eq!(rig.sent(), [&b"\x07\x04\x0C\x01\x00\x3Cc"[..], b"\x07\x07\x30gone", b"\x05\x09bye"]);
    rig.gateway(b"\x03\x05\x01");
    assert_eq!(rig.events(), [ClientEvent::Refused(ReturnCode::Congestion)]);
}

#[test]
fn name_is_registered_once_and_requests_keep_their_order() {
    let mut rig = Rig::connected(|_| {});
    let first = rig.publish("a/b", QoS::AtMostOnce, b"1");
    let second = rig.publish("a/b", QoS::AtLeastOnce, b"2");
    let third = rig.publish("a/b", QoS::AtMostOnce, b"3");
    assert_eq!(rig.sent(), [b"\x09\x0A\x00\x00\x00\x01a/b"]);
    rig.gateway(b"\x07\x0B\x00\x07\x00\x01\x00");
    assert_eq!(rig.sent(), [b"\x08\x0C\x00\x00\x07\x00\x001", b"\x08\x0C\x20\x00\x07\x00\x022"]);
    rig.gateway(b"\x07\x0D\x00\x07\x00\x02\x00");
    assert_eq!(rig.sent(), [b"\x08\x0C\x00\x00\x07\x00\x003"]);
    let done = [first, second, third].map(|id| ClientEvent::Done(id, ReturnCode::Accepted));
    assert_eq!(rig.events(), done);
}

#[test]
fn rejected_topic_id_is_registered_again_once() {
    let mut rig = Rig::connected(|_| {});
    let id = rig.publish("a/b", QoS::AtLeastOnce, b"1");
    rig.gateway(b"\x07\x0B\x00\x07\x00\x01\x00");
    assert_eq!(rig.sent()[1..], [b"\x08\x0C\x20\x00\x07\x00\x021"]);
    rig.gateway(b"\x07\x0D\x00\x07\x00\x02\x02");
    assert_eq!(rig.sent(), [b"\x09\x0A\x00\x00\x00\x02a/b"]);
    rig.gateway(b"\x07\x0B\x00\x08\x00\x02\x00");
    assert_eq!(rig.sent(), [b"\x08\x0C\xA0\x00\x08\x00\x021"], "a copy: the broker may have it");
    rig.gateway(b"\x07\x0D\x00\x08\x00\x02\x02");
    assert_eq!(rig.events(), [ClientEvent::Done(id, ReturnCode::InvalidTopicId)]);
}

#[test]
fn registered_name_needs_no_second_register() {
    let mut rig = Rig::connected(|_| {});
    let register = |rig: &mut Rig| rig.client.register("a/b", rig.now, &mut rig.out);
    let (first, second) = (register(&mut rig), register(&mut rig));
    rig.gateway(b"\x07\x0B\x00\x07\x00\x01\x00");
    rig.publish("a/b", QoS::AtMostOnce, b"1");
    assert_eq!(rig.sent(), [&b"\x09\x0A\x00\x00\x00\x01a/b"[..], b"\x08\x0C\x00\x00\x07\x00\x001"]);
    assert_eq!(rig.events()[..2], [first, second].map(|id| ClientEvent::Done(id, ReturnCode::Accepted)));
    rig.client.forget_topic_ids();
    register(&mut rig);
    assert_eq!(rig.sent(), [b"\x09\x0A\x00\x00\x00\x02a/b"]);
}

#[test]
fn will_is_updated_by_topic_then_message_and_kept() {
    let mut rig = Rig::connected(|_| {});
    let will = ClientWill {
        topic: "gone".to_owned(),
        message: Bytes::from_static(b"bye"),
        qos: QoS::AtLeastOnce,
        retain: true,
    };
    let id = rig.client.update_will(Some(will), rig.now, &mut rig.out);
    rig.gateway(b"\x03\x1D\x00"); // It answers another message.
    assert_eq!(rig.sent(), [b"\x07\x1A\x30gone"]);
    rig.gateway(b"\x03\x1B\x00");
    assert_eq!(rig.sent(), [b"\x05\x1Cbye"]);
    assert!(rig.events().is_empty());
    rig.gateway(b"\x03\x1D\x00");
    assert_eq!(rig.events(), [ClientEvent::Done(id, ReturnCode::Accepted)]);
    rig.gateway(b"\x02\x18");
    rig.client.connect(rig.now, &mut rig.out);
    rig.gateway(b"\x02\x06");
    assert_eq!(rig.sent(), [&b"\x07\x04\x0C\x01\x00\x3Cc"[..], b"\x07\x07\x30gone"]);
    rig.gateway(b"\x03\x05\x00");
    let refused = rig.client.update_will(None, rig.now, &mut rig.out);
    assert_eq!(rig.sent(), [b"\x02\x1A"]);
    rig.gateway(b"\x03\x1B\x03");
    assert_eq!(rig.events().pop(), Some(ClientEvent::Done(refused, ReturnCode::NotSupported)));
}

#[test]
fn unanswered_messages_are_repeated_until_the_gateway_is_lost() {
    let mut rig = Rig::connected(|options| options.keep_alive = Duration::ZERO);
    let short = ClientTopic::Short(ShortName::new("xy").expect("two bytes"));
    rig.client.publish(short, QoS::ExactlyOnce, true, Bytes::from_static(b"1"), rig.now, &mut rig.out);
    assert_eq!(rig.sent(), [b"\x08\x0C\x52xy\x00\x011"]);
    rig.pass(RETRY);
    assert_eq!(rig.sent(), [b"\x08\x0C\xD2xy\x00\x011"]);
    rig.gateway(b"\x04\x0F\x00\x01");
    rig.pass(4 * RETRY);
    assert_eq!(rig.sent(), [b"\x04\x10\x00\x01"; 5]);
    assert!(rig.events().is_empty());
    rig.pass(RETRY);
    assert_eq!(rig.events(), [ClientEvent::Lost]);
    rig.client.connect(rig.now, &mut rig.out);
    rig.gateway(b"\x03\x05\x00");
    assert_eq!(rig.sent()[1], b"\x04\x10\x00\x01", "the request goes on");
}

#[test]
fn silent_client_pings() {
    let mut rig = Rig::connected(|_| {});
    rig.pass(Duration::from_secs(49));
    assert!(rig.sent().is_empty());
    rig.pass(Duration::from_secs(1));
    assert_eq!(rig.sent(), [b"\x02\x16"], "one may be lost before the keep alive of 60 s is over");
    rig.gateway(b"\x02\x17");
    rig.pass(Duration::from_secs(50) + 4 * RETRY);
    assert_eq!(rig.sent(), [b"\x02\x16"; 5]);
    rig.pass(RETRY);
    assert_eq!(rig.events(), [ClientEvent::Lost]);
}

#[test]
fn unknown_topic_id_is_refused_and_qos_2_taken_once() {
    let mut rig = Rig::connected(|_| {});
    rig.gateway(b"\x09\x0C\x20\x00\x05\x00\x01hi");
    assert_eq!(rig.sent(), [b"\x07\x0D\x00\x05\x00\x01\x02"]);
    rig.gateway(b"\x09\x0A\x00\x05\x00\x01a/b");
    rig.sent();
    for copy in [b"\x09\x0C\x40\x00\x05\x00\x01hi", b"\x09\x0C\xC0\x00\x05\x00\x01hi"] {
        rig.gateway(copy);
        assert_eq!(rig.sent(), [b"\x04\x0F\x00\x01"]);
    }
    rig.gateway(b"\x04\x10\x00\x01");
    rig.gateway(b"\x09\x0C\x40\x00\x05\x00\x01hi");
    let (topic, payload) = (ClientTopic::from("a/b"), Bytes::from_static(b"hi"));
    assert_eq!(rig.events(), [ClientEvent::Message { topic, payload, qos: QoS::ExactlyOnce, retain: false }]);
}

#[test]
fn other_message_with_a_known_id_is_no_copy() {
    let mut rig = Rig::connected(|options| options.clean_session = false);
    rig.gateway(b"\x09\x0A\x00\x05\x00\x01a/b");
    // A broker that lost its sessions counts from 1 again, with a message under way or without.
    for (publish, is_released) in [
        (b"\x08\x0C\x40\x00\x05\x00\x01a", true),
        (b"\x08\x0C\x40\x00\x05\x00\x01b", false),
        (b"\x08\x0C\x40\x00\x05\x00\x01c", true),
    ] {
        rig.gateway(publish);
        if is_released {
            rig.gateway(b"\x04\x10\x00\x01");
        }
    }
    rig.gateway(b"\x08\x0C\xC0\x00\x05\x00\x01a");
    let payloads = rig.events().into_iter().filter_map(|event| match event {
        ClientEvent::Message { payload, .. } => Some(payload),
        _ => None,
    });
    assert_eq!(payloads.collect::<Vec<_>>(), ["a", "b", "c"]);
}

#[test]
fn client_sleeps_wakes_and_returns_in_its_session() {
    let mut rig = Rig::connected(|options| options.clean_session = true);
    assert!(!rig.client.wake(rig.now, &mut rig.out) && rig.client.sleep(600, rig.now, &mut rig.out));
    rig.gateway(b"\x02\x18");
    rig.publish("a/b", QoS::AtMostOnce, b"1");
    rig.pass(100 * RETRY);
    assert!(rig.client.wake(rig.now, &mut rig.out));
    rig.gateway(b"\x02\x17");
    assert_eq!(rig.events(), [ClientEvent::Asleep, ClientEvent::Slept]);
    assert_eq!(rig.sent(), [&b"\x04\x18\x02\x58"[..], b"\x03\x16c"]);
    rig.client.connect(rig.now, &mut rig.out);
    assert_eq!(rig.sent(), [b"\x03\x16c"], "does the gateway know the session?");
    rig.gateway(b"\x02\x17");
    rig.gateway(b"\x03\x05\x00");
    assert_eq!(rig.sent(), [&b"\x07\x04\x00\x01\x00\x3Cc"[..], b"\x09\x0A\x00\x00\x00\x01a/b"]);
    rig.client.disconnect(rig.now, &mut rig.out);
    rig.gateway(b"\x02\x18");
    assert_eq!(rig.events(), [ClientEvent::Connected, ClientEvent::Disconnected]);
    assert_eq!(rig.client.poll_timeout(), None);
}

#[test]
fn sleeper_that_the_gateway_forgot_is_told_at_its_wake() {
    for becomes_active in [false, true] {
        let mut rig = Rig::connected(|_| {});
        rig.client.sleep(600, rig.now, &mut rig.out);
        rig.gateway(b"\x02\x18");
        rig.pass(RETRY);
        if becomes_active {
            rig.client.connect(rig.now, &mut rig.out);
        } else {
            rig.client.wake(rig.now, &mut rig.out);
        }
        rig.gateway(b"\x02\x18");
        assert_eq!(rig.events(), [ClientEvent::Asleep, ClientEvent::Disconnected]);
    }
}

#[test]
fn refused_message_at_qos_0_makes_the_next_one_register() {
    let mut rig = Rig::connected(|_| {});
    rig.publish("a/b", QoS::AtMostOnce, b"1");
    rig.gateway(b"\x07\x0B\x00\x07\x00\x01\x00");
    rig.sent();
    rig.publish("a/b", QoS::AtMostOnce, b"2");
    rig.gateway(b"\x07\x0D\x00\x07\x00\x00\x02");
    rig.sent();
    rig.publish("a/b", QoS::AtMostOnce, b"3");
    assert_eq!(rig.sent()[0][1], 0x0A, "REGISTER");
}

#[test]
fn lasting_congestion_ends_the_request_not_the_connection() {
    let mut rig = Rig::connected(|options| options.keep_alive = Duration::ZERO);
    let id = rig.publish("a/b", QoS::AtLeastOnce, b"1");
    let next = rig.publish("xy", QoS::AtMostOnce, b"2");
    for _ in 0..5 {
        rig.gateway(b"\x07\x0B\x00\x00\x00\x01\x01");
        rig.pass(RETRY);
    }
    assert_eq!(rig.events()[0], ClientEvent::Done(id, ReturnCode::Congestion));
    assert!(rig.client.is_active() && id != next);
}

/// Time in which a release may belong to the message before.
const RELEASE_TIME: Duration = Duration::from_millis(500);

#[test]
fn copy_of_the_network_is_passed_on_once_at_qos_2() {
    let mut rig = Rig::connected(|options| options.keep_alive = Duration::ZERO);
    rig.gateway(b"\x09\x0A\x00\x05\x00\x01a/b");
    rig.sent();
    let (publish, release) = (b"\x08\x0C\x40\x00\x05\x00\x01a", b"\x04\x10\x00\x01");
    rig.gateway(publish);
    rig.gateway(release);
    rig.sent();
    assert_eq!(rig.events().len(), 1);
    rig.gateway(publish);
    assert_eq!(rig.sent(), [b"\x04\x0E\x00\x01"], "PUBREC would bring another PUBREL of the message before");
    rig.gateway(release);
    assert_eq!(rig.sent(), [b"\x04\x0E\x00\x01"], "PUBCOMP");
    rig.pass(RELEASE_TIME);
    assert_eq!(rig.sent(), [b"\x04\x0E\x00\x01", b"\x04\x0F\x00\x01"], "PUBCOMP once more, and PUBREC");
    assert!(rig.events().is_empty());
}

#[test]
fn equal_message_with_an_equal_id_is_a_new_one_once_released() {
    let mut rig = Rig::connected(|options| options.keep_alive = Duration::ZERO);
    rig.gateway(b"\x09\x0A\x00\x05\x00\x01a/b");
    let mut came = |datagram: &[u8], is_released, pause| {
        rig.pass(Duration::from_secs(pause));
        rig.gateway(datagram);
        rig.pass(RELEASE_TIME);
        if is_released {
            rig.gateway(b"\x04\x10\x00\x01");
        }
        rig.events().iter().filter(|event| matches!(event, ClientEvent::Message { .. })).count()
    };
    assert_eq!(came(b"\x08\x0C\x40\x00\x05\x00\x01a", true, 0), 1);
    assert_eq!(came(b"\x08\x0C\x40\x00\x05\x00\x01a", false, 1), 0, "a copy of the network");
    assert_eq!(came(b"\x08\x0C\xC0\x00\x05\x00\x01a", false, 10), 0, "a repetition");
    for pause in [3, 0, 1] {
        let count = came(b"\x08\x0C\x40\x00\x05\x00\x01a", true, pause);
        assert_eq!(count, 1, "a broker that takes the lowest free id");
    }
}

#[test]
fn equal_qos_2_messages_with_ids_of_a_pool_all_come() {
    let mut rig = Rig::connected(|options| options.keep_alive = Duration::ZERO);
    rig.gateway(b"\x09\x0A\x00\x05\x00\x01a/b");
    let mut came = |message_id: u8| {
        rig.gateway(&[8, 0x0C, 0x40, 0, 5, 0, message_id, b'a']);
        rig.pass(RELEASE_TIME);
        rig.gateway(&[4, 0x10, 0, message_id]);
        rig.events().iter().filter(|event| matches!(event, ClientEvent::Message { .. })).count()
    };
    for _ in 0..6 {
        for message_id in 1..=4 {
            assert_eq!(came(message_id), 1, "MsgId {message_id}");
        }
    }
}

#[test]
fn wake_lasts_as_long_as_messages_come() {
    let mut rig = Rig::connected(|options| options.keep_alive = Duration::ZERO);
    rig.client.sleep(600, rig.now, &mut rig.out);
    rig.gateway(b"\x02\x18");
    rig.client.wake(rig.now, &mut rig.out);
    rig.sent();
    for _ in 0..20 {
        rig.pass(RETRY * 3 / 4);
        rig.gateway(b"\x08\x0C\x22xy\x00\x011");
        assert_eq!(rig.sent(), [b"\x07\x0Dxy\x00\x01\x00"], "no PINGREQ");
    }
    rig.events();
    rig.pass(4 * RETRY);
    assert_eq!(rig.sent(), [b"\x03\x16c"; 4]);
    rig.pass(RETRY);
    assert_eq!(rig.events(), [ClientEvent::Lost]);
}

proptest! {
    #[test]
    fn any_datagrams_leave_a_client_that_can_connect(
        datagrams in proptest::collection::vec((0_u8..0x20, proptest::collection::vec(0_u8..9, 0..9), 0_u64..90), 0..40),
    ) {
        let mut rig = Rig::connected(|_| {});
        rig.publish("a/b", QoS::ExactlyOnce, b"1");
        for (kind, body, seconds) in datagrams {
            let datagram = [&[body.len() as u8 + 2, kind][..], &body].concat();
            if Message::decode(&datagram).is_ok() {
                rig.gateway(&datagram);
            }
            rig.pass(Duration::from_secs(seconds));
            if body.len() == 8 {
                rig.client.sleep(600, rig.now, &mut rig.out);
            }
            rig.sent();
        }
        rig.client.disconnect(rig.now, &mut rig.out);
        rig.pass(10 * RETRY);
        rig.events();
        rig.client.connect(rig.now, &mut rig.out);
        rig.gateway(b"\x03\x05\x00");
        prop_assert_eq!(rig.events(), [ClientEvent::Connected]);
    }
}
