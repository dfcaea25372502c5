//! Receivers that do not keep up: their messages go to disk, other clients are not affected, and no message is lost.

mod accounted;
mod policies;
mod quota;
mod racing;
mod switching;
mod unanswered;

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, at_qos};
use tenbin_codec::{Ack, Connect, Packet, PacketType, Publish, QoS, ReasonCode, WriteBuffer};

/// A configuration in which receivers count as slow from 512 KiB on.
fn config(queue: &str) -> ConfigFile {
    ConfigFile::new(&format!(
        "[queue]\nbytes_maximum = 1048576\n{queue}\n[store]\nsync = \"never\"\n[sys]\ninterval_seconds = 1\n"
    ))
}

/// `connect` with this Receive Maximum.
fn narrow(mut connect: Connect, receive_maximum: u16) -> Connect {
    connect.properties.receive_maximum = NonZeroU16::new(receive_maximum);
    connect
}

/// A message of this size that holds its number.
fn numbered(topic: &str, number: usize, bytes: usize, qos: QoS) -> Publish {
    at_qos(topic, &format!("{number:>bytes$}"), qos)
}

fn number_of(publish: &Publish) -> usize {
    let text = std::str::from_utf8(&publish.payload).expect("a number as text");
    text.trim_start().parse().expect("a number as text")
}

/// Publishes all messages in one write, then waits for their acknowledgements. Returns the Reason Codes.
fn publish_all(client: &mut RawClient, messages: Vec<Publish>) -> Vec<ReasonCode> {
    let mut out = WriteBuffer::new();
    let mut waits_for = Vec::new();
    for mut publish in messages {
        if publish.qos.is_acknowledged() {
            let id = client.next_id();
            publish.packet_id = Some(id);
            waits_for.push((publish.qos, id));
        }
        Packet::Publish(publish).encode(client.version(), &mut out);
    }
    client.send_bytes(&out.to_bytes());
    let mut reasons = Vec::new();
    for (qos, id) in waits_for {
        if qos == QoS::AtLeastOnce {
            reasons.push(client.wait_for_ack(PacketType::PubAck, id));
            continue;
        }
        reasons.push(client.wait_for_ack(PacketType::PubRec, id));
        if reasons.last().is_some_and(|reason| reason.is_error()) {
            continue; // the identifier is free [MQTT-4.3.3-9]
        }
        client.send(&Packet::PubRel(Ack::new(id, ReasonCode::Success)));
        client.wait_for_ack(PacketType::PubComp, id);
    }
    reasons
}

/// Receives and acknowledges `count` messages. Returns their numbers.
fn receive(client: &mut RawClient, count: usize) -> Vec<usize> {
    (0..count).map(|_| number_of(&client.receive_message())).collect()
}

/// Figures below `$SYS/broker/`.
struct Figures<'a>(&'a BrokerProcess);

impl<'a> Figures<'a> {
    fn of(broker: &'a BrokerProcess) -> Self {
        Self(broker)
    }

    /// Waits until a figure is right.
    fn wait_for(&self, name: &str, is_right: impl Fn(u64) -> bool) {
        let mut client = self.0.v5("");
        client.subscribe(&format!("$SYS/broker/{name}"), QoS::AtMostOnce);
        let until = Instant::now() + PATIENCE;
        let mut last = None;
        while last.is_none_or(|value| !is_right(value)) {
            assert!(Instant::now() < until, "{name} is {last:?}");
            if let Ok(Packet::Publish(publish)) = client.try_receive(Duration::from_millis(100)) {
                let text = std::str::from_utf8(&publish.payload).expect("text");
                last = Some(text.parse().expect("a number"));
            }
        }
        client.disconnect();
    }
}

/// Current value of a figure: a new reader gets all figures.
fn figure(broker: &BrokerProcess, name: &str) -> u64 {
    let mut reader = broker.v5("");
    reader.subscribe(&format!("$SYS/broker/{name}"), QoS::AtMostOnce);
    let publish = reader.receive_publish();
    let value = std::str::from_utf8(&publish.payload).expect("text").parse().expect("a number");
    reader.disconnect();
    value
}
