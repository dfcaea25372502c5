//! A panicking hook ends the connection on whose task it runs, and nothing else.

use std::sync::atomic::{AtomicBool, Ordering};

use tenbin_broker::hooks::{
    Client, Dropped, Ending, Events, Granted, Hooks, Outgoing, Packet, PacketType, Publication, ReasonCode,
    Subscribing, Verdict,
};
use tenbin_codec::{PingReq, ProtocolVersion, QoS, Subscribe};

use crate::hooks::recorder::Recorder;
use crate::hooks::stage::Stage;
use crate::support::{RawClient, encode, lasting, message, subscription};

/// Panics once at one event of the client "clumsy".
struct Panics {
    at: Events,
    has_panicked: AtomicBool,
    recorder: Recorder,
}

impl Panics {
    fn panic_at(&self, event: Events, client: &Client) {
        if self.at == event && client.id().as_str() == "clumsy" && !self.has_panicked.swap(true, Ordering::Relaxed) {
            panic!("as the test wants");
        }
    }
}

impl Hooks for Panics {
    fn wants(&self) -> Events {
        self.at | Events::DISCONNECTED
    }

    fn session_establish(&self, client: &Client, _granted: &mut Granted) {
        self.panic_at(Events::SESSION_ESTABLISH, client);
    }

    fn session_established(&self, client: &Client, _present: bool) {
        self.panic_at(Events::SESSION_ESTABLISHED, client);
    }

    fn disconnected(&self, client: &Client, ending: &Ending) {
        self.recorder.note("disconnected", format!("{} {:?}", client.id(), ending.reason));
    }

    fn packet_read(&self, client: &Client, packet: &Packet) -> Verdict {
        if packet.packet_type() == PacketType::PingReq {
            self.panic_at(Events::PACKET_READ, client);
        }
        Verdict::Go
    }

    fn packet_processed(&self, client: &Client, kind: PacketType, _result: Result<(), ReasonCode>) {
        if kind == PacketType::PingReq {
            self.panic_at(Events::PACKET_PROCESSED, client);
        }
    }

    fn packet_encode(&self, client: &Client, packet: &mut Outgoing) {
        if packet.packet().packet_type() == PacketType::PingResp {
            self.panic_at(Events::PACKET_ENCODE, client);
        }
    }

    fn packet_sent(&self, client: &Client, kind: PacketType, _bytes: usize) {
        if kind == PacketType::PingResp {
            self.panic_at(Events::PACKET_SENT, client);
        }
    }

    fn subscribe(&self, client: &Client, _subscription: &mut Subscribing) -> Verdict {
        self.panic_at(Events::SUBSCRIBE, client);
        Verdict::Go
    }

    fn publish(&self, client: &Client, _message: &mut Publication) -> Verdict {
        self.panic_at(Events::PUBLISH, client);
        Verdict::Go
    }

    fn published(&self, client: &Client, _message: &Publication, _receivers: usize) {
        self.panic_at(Events::PUBLISHED, client);
    }

    fn dropped(&self, message: &Dropped<'_>) {
        assert_ne!(message.topic, "lost", "as the test wants");
    }
}

#[test]
fn panicking_hook_ends_only_its_connection() {
    let events = [
        Events::SESSION_ESTABLISH,
        Events::SESSION_ESTABLISHED,
        Events::PACKET_READ,
        Events::PACKET_PROCESSED,
        Events::PACKET_ENCODE,
        Events::PACKET_SENT,
        Events::SUBSCRIBE,
        Events::PUBLISH,
        Events::PUBLISHED,
        Events::DROPPED,
    ];
    for event in events {
        let recorder = Recorder::default();
        let panics = Panics { at: event, has_panicked: AtomicBool::new(false), recorder: recorder.clone() };
        let stage = Stage::start("", |builder| builder.hooks(panics));
        let mut sleeper = stage.connect_with(lasting(ProtocolVersion::V5, "sleeper"));
        sleeper.subscribe("lost", QoS::AtMostOnce);
        sleeper.disconnect();
        let mut other = stage.connect("other");
        other.subscribe("news", QoS::AtMostOnce);

        let mut clumsy = stage.connect("clumsy");
        make_it_panic(&mut clumsy);
        let last = clumsy.read_to_end().pop();
        let reason = last.map(|packet| match packet {
            Packet::Disconnect(disconnect) => disconnect.reason,
            other => panic!("{other:?} instead of DISCONNECT at {event:?}"),
        });
        assert_eq!(reason, Some(ReasonCode::ImplementationSpecificError), "{event:?}");
        recorder.wait_for("disconnected clumsy Some(ImplementationSpecificError)");

        let mut again = stage.connect("clumsy-again");
        assert_eq!(again.publish("news", "1", QoS::AtLeastOnce), ReasonCode::Success);
        assert_eq!(other.drain_payloads(), ["1"], "{event:?}");
        assert_eq!(recorder.count("disconnected other"), 0);
    }
}

/// Sends packets for all the events. The broker may have closed already.
fn make_it_panic(client: &mut RawClient) {
    let packet_id = client.next_id();
    let subscriptions = vec![subscription("anything", QoS::AtMostOnce)];
    let subscribe = Subscribe { packet_id, subscription_identifier: None, user_properties: Vec::new(), subscriptions };
    let publications = ["lost", "somewhere"].map(|topic| Packet::Publish(message(topic, "1")));
    let packets = [Packet::Subscribe(subscribe)].into_iter().chain(publications);
    for packet in packets.chain([Packet::PingReq(PingReq::PLAIN)]) {
        client.try_send_bytes(&encode(&packet, ProtocolVersion::V5));
    }
}
