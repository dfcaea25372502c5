//! When each kind acknowledges: three messages come at once, each of 300 ms of work.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tenbin_codec::{
    ConnAck, Decoded, Decoder, PACKET_SIZE_MAX, Packet, PacketId, ProtocolVersion, QoS, ReasonCode, SubAck,
};

use super::kind::{self, Acknowledges, Kind};
use super::worker::Worker;
use crate::support::{PATIENCE, at_qos, encode};

const WORK: Duration = Duration::from_millis(300);
const MESSAGES: u16 = 3;

/// The broker's side of one connection.
struct Served {
    stream: TcpStream,
    decoder: Decoder,
    input: BytesMut,
    version: ProtocolVersion,
}

impl Served {
    fn accept(listener: &TcpListener) -> Self {
        let (stream, _) = listener.accept().expect("it listens");
        stream.set_nodelay(true).expect("a socket of ours");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
        let decoder = Decoder::server(PACKET_SIZE_MAX);
        Self { stream, decoder, input: BytesMut::new(), version: ProtocolVersion::V5 }
    }

    fn receive(&mut self) -> Packet {
        loop {
            match self.decoder.decode(&mut self.input).expect("a legal packet") {
                Decoded::Packet(packet) => return packet,
                Decoded::NeedMore(_) => {}
            }
            let mut chunk = [0; 4096];
            let read = self.stream.read(&mut chunk).expect("a packet");
            assert!(read > 0, "the worker closes");
            self.input.extend_from_slice(&chunk[..read]);
        }
    }

    fn send(&mut self, packets: &[Packet]) {
        let bytes: Vec<_> = packets.iter().flat_map(|packet| encode(packet, self.version)).collect();
        self.stream.write_all(&bytes).expect("it reads");
    }
}

/// Times of PUBACK after the worker was sent the messages.
pub(super) fn observe(kind: &Kind) -> Vec<Duration> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it listens");
    let _worker = Worker::start(kind, address, "worker", 1, &[]);
    let mut served = Served::accept(&listener);
    let mut sent = None;
    let mut acknowledged = Vec::new();
    while acknowledged.len() < usize::from(MESSAGES) {
        match served.receive() {
            Packet::Connect(connect) => {
                served.version = connect.version;
                served.send(&[Packet::ConnAck(Box::new(ConnAck::new(false, ReasonCode::Success)))]);
            }
            Packet::Subscribe(subscribe) => {
                let granted = SubAck {
                    packet_id: subscribe.packet_id,
                    properties: Default::default(),
                    reasons: vec![ReasonCode::GrantedQoS1],
                };
                let message = |number: u16| {
                    let mut message = at_qos("work", &format!("{number} 0 {}", WORK.as_micros()), QoS::AtLeastOnce);
                    message.packet_id = PacketId::new(number);
                    Packet::Publish(message)
                };
                served.send(&[Packet::SubAck(granted)]);
                // Some libraries drop a message that comes before they have seen SUBACK.
                std::thread::sleep(Duration::from_millis(200));
                sent = Some(Instant::now());
                served.send(&(1..=MESSAGES).map(message).collect::<Vec<_>>());
            }
            Packet::PubAck(_) => acknowledged.push(sent.expect("messages were sent").elapsed()),
            _ => {} // reports
        }
    }
    acknowledged
}

/// Asserts that the first acknowledgement comes before or after the work of its message.
fn acknowledges_as_declared(kind: &Kind) {
    if !kind.is_installed() {
        return;
    }
    let times = observe(kind);
    let is_early = times[0] < WORK;
    assert_eq!(is_early, kind.acknowledges == Acknowledges::BeforeWork, "{}: {times:?}", kind.name);
}

#[test]
fn paho_for_python_acknowledges_after_on_message() {
    acknowledges_as_declared(&kind::PAHO_PYTHON_FOREVER);
    acknowledges_as_declared(&kind::PAHO_PYTHON_START);
}

#[test]
fn mqtt_js_acknowledges_when_handle_message_calls_back() {
    acknowledges_as_declared(&kind::MQTT_JS_HANDLE_MESSAGE);
}

#[test]
fn mqtt_js_acknowledges_before_async_work_of_on_message() {
    acknowledges_as_declared(&kind::MQTT_JS_ON_MESSAGE);
    acknowledges_as_declared(&kind::MQTT_JS_ON_MESSAGE_REPORTS);
}

#[test]
fn hivemq_acknowledges_before_its_callback_returns() {
    acknowledges_as_declared(&kind::HIVEMQ_BLOCKING);
}

#[test]
fn hivemq_acknowledges_manually_after_the_work() {
    acknowledges_as_declared(&kind::HIVEMQ_MANUAL);
}

#[test]
fn paho_for_go_acknowledges_after_its_handler() {
    acknowledges_as_declared(&kind::PAHO_GO);
}

#[test]
fn mosquitto_sub_acknowledges_before_the_shell_works() {
    acknowledges_as_declared(&kind::MOSQUITTO_SUB);
}
