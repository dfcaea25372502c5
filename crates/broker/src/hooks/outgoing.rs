use tenbin_codec::{ProtocolVersion, WriteBuffer};

use super::{Packet, UserProperty};

/// A packet that is about to be sent.
#[derive(Debug)]
pub struct Outgoing {
    packet: Packet,
    added: Vec<UserProperty>,
}

impl Outgoing {
    pub(crate) fn new(packet: Packet) -> Self {
        Self { packet, added: Vec::new() }
    }

    /// The packet, without added User Properties. Its topic is empty where an alias replaces it.
    pub fn packet(&self) -> &Packet {
        &self.packet
    }

    /// Adds a User Property behind those that the packet has.
    ///
    /// Has no effect on packets without properties: PINGRESP, and all packets of MQTT 3.1.1. The broker leaves it out if
    /// the packet would exceed the client's Maximum Packet Size.
    pub fn add_user_property(&mut self, property: UserProperty) {
        self.added.push(property);
    }

    /// Encodes the packet with the added properties; `None` if there are none, or the packet would be too large.
    pub(crate) fn changed(self, version: ProtocolVersion, packet_bytes_maximum: u32) -> Option<WriteBuffer> {
        let Self { mut packet, added } = self;
        if added.is_empty() || !version.is_v5() {
            return None;
        }
        user_properties(&mut packet)?.extend(added);
        let mut out = WriteBuffer::new();
        packet.encode(version, &mut out);
        (!out.is_empty() && out.len() <= packet_bytes_maximum as usize).then_some(out)
    }
}

/// User Properties of a packet from the broker; `None` if it has no properties.
fn user_properties(packet: &mut Packet) -> Option<&mut Vec<UserProperty>> {
    Some(match packet {
        Packet::ConnAck(connack) => &mut connack.properties.user_properties,
        Packet::Publish(publish) => &mut publish.properties.get_or_insert_default().user_properties,
        Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubRel(ack) | Packet::PubComp(ack) => {
            &mut ack.properties.get_or_insert_default().user_properties
        }
        Packet::SubAck(suback) => &mut suback.properties.user_properties,
        Packet::UnsubAck(unsuback) => &mut unsuback.properties.user_properties,
        Packet::Auth(auth) => &mut auth.properties.user_properties,
        Packet::Disconnect(disconnect) => &mut disconnect.properties.get_or_insert_default().user_properties,
        _ => return None,
    })
}
