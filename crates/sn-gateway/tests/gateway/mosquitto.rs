//! Before the program Mosquitto, if it is installed.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tenbin_sn_codec::v1_2::{Message, PubAck, QoS, ReturnCode, Topic};

use crate::client::{Client, PATIENCE, gateway};

/// A running Mosquitto.
pub(crate) struct Mosquitto {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Mosquitto {
    pub(crate) fn start() -> Option<Self> {
        let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
        let program = ["mosquitto", "/usr/sbin/mosquitto"].into_iter().find_map(|program| {
            let port = address.port().to_string();
            Command::new(program).args(["-p", &port]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
        });
        let Some(child) = program else {
            eprintln!("skipped: mosquitto is not installed");
            return None;
        };
        let broker = Self { child, address };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "mosquitto listens");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(broker)
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn messages_pass_between_clients_at_every_qos() {
    let Some(broker) = Mosquitto::start() else { return };
    for head in ["", "mqtt = \"3.1.1\""] {
        let gateway = gateway(broker.address, head, "");
        let mut receiver = Client::new(gateway.address());
        let mut sender = Client::new(gateway.address());
        assert_eq!(receiver.connect("receiver", true), ReturnCode::Accepted);
        assert_eq!(sender.connect("sender", true), ReturnCode::Accepted);
        let received_on = receiver.subscribe("plant/temperature", QoS::ExactlyOnce);
        let topic_id = sender.register("plant/temperature");
        let large = vec![b'x'; 1000];
        for (qos, id, data) in [
            (QoS::AtMostOnce, 0, &b"20"[..]),
            (QoS::AtLeastOnce, 2, b"21"),
            (QoS::ExactlyOnce, 3, b"22"),
            (QoS::AtMostOnce, 0, &large),
        ] {
            sender.publish(Topic::Normal(topic_id), qos, id, data);
            match qos {
                QoS::AtMostOnce => {}
                QoS::AtLeastOnce => {
                    let Message::PubAck(PubAck { code, .. }) = sender.receive() else { panic!("PUBACK") };
                    assert_eq!(code, ReturnCode::Accepted);
                }
                QoS::ExactlyOnce => {
                    let Message::PubRec(id) = sender.receive() else { panic!("PUBREC") };
                    sender.send(&Message::PubRel(id));
                    assert_eq!(sender.receive(), Message::PubComp(id));
                }
            }
            let Message::Publish(publish) = receiver.receive_proven() else { panic!("PUBLISH") };
            assert_eq!((publish.qos, publish.topic, publish.data), (Some(qos), Topic::Normal(received_on), data));
            let id = publish.message_id;
            match (qos, id) {
                (QoS::AtLeastOnce, _) => {
                    let code = ReturnCode::Accepted;
                    receiver.send(&Message::PubAck(PubAck { topic_id: received_on, message_id: id, code }));
                }
                (QoS::ExactlyOnce, Some(id)) => {
                    receiver.send(&Message::PubRec(id));
                    assert_eq!(receiver.receive(), Message::PubRel(id));
                    receiver.send(&Message::PubComp(id));
                }
                _ => {}
            }
        }
        sender.disconnect();
        receiver.disconnect();
        gateway.stop();
    }
}
