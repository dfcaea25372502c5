use tenbin_codec::{Ack, Connect, Packet, ProtocolVersion, QoS, ReasonCode, WriteBuffer};

use super::stage::{Stage, TOPIC};
use crate::support::{RawClient, at_qos, text};

/// Publishes every `step`th message from `first` on, at most [`IN_FLIGHT`] of them unacknowledged.
pub(crate) fn run(stage: &Stage, first: usize, step: usize) {
    let connect = Connect::new(ProtocolVersion::V5, text(&format!("publisher {first}")));
    let mut client = RawClient::connect(stage.address, connect).0;
    let mut numbers = (first..stage.messages).step_by(step).peekable();
    let mut in_flight = 0;
    while numbers.peek().is_some() || in_flight > 0 {
        // Half the window in one write, whenever that much is free.
        if in_flight <= IN_FLIGHT / 2 && numbers.peek().is_some() {
            let batch: Vec<_> = numbers.by_ref().take(IN_FLIGHT / 2).collect();
            stage.wait_for_room(batch.len());
            let mut out = WriteBuffer::new();
            for number in &batch {
                let mut publish = at_qos(TOPIC, &number.to_string(), stage.qos);
                publish.packet_id = Some(client.next_id());
                Packet::Publish(publish).encode(ProtocolVersion::V5, &mut out);
            }
            client.send_bytes(&out.to_bytes());
            in_flight += batch.len();
        }
        match client.receive() {
            Packet::PubAck(ack) | Packet::PubComp(ack) => {
                // Never "no matching subscribers": members with a session are always there.
                assert_eq!(ack.reason, ReasonCode::Success);
                in_flight -= 1;
            }
            Packet::PubRec(ack) => {
                assert_eq!((ack.reason, stage.qos), (ReasonCode::Success, QoS::ExactlyOnce));
                client.send(&Packet::PubRel(Ack::new(ack.packet_id, ReasonCode::Success)));
            }
            other => panic!("{other:?} instead of an acknowledgement"),
        }
    }
    client.disconnect();
}

/// Messages whose handshake is not complete.
const IN_FLIGHT: usize = 100;
