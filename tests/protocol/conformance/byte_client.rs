use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::support::{BrokerProcess, PATIENCE};

/// A connection that knows nothing of MQTT except the length of a packet.
pub(crate) struct ByteClient {
    stream: TcpStream,
    input: Vec<u8>,
}

impl ByteClient {
    /// Opens a connection and sends nothing.
    pub(crate) fn open(broker: &BrokerProcess) -> Self {
        let stream = TcpStream::connect(broker.address()).expect("the broker listens");
        stream.set_nodelay(true).expect("a socket of ours");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
        Self { stream, input: Vec::new() }
    }

    /// Opens a connection, sends this packet first, and returns the answer.
    pub(crate) fn connect(broker: &BrokerProcess, connect: &[u8]) -> (Self, Vec<u8>) {
        let mut client = Self::open(broker);
        client.send(connect);
        let connack = client.receive();
        (client, connack)
    }

    /// Connects with MQTT 5.0, Clean Start and no properties.
    pub(crate) fn v5(broker: &BrokerProcess, client_id: &str) -> Self {
        let (client, connack) = Self::connect(broker, &connect_v5(0x02, &[], &[&string(client_id)]));
        assert_eq!((connack[0], connack[3]), (0x20, 0x00), "CONNACK {connack:02X?}");
        client
    }

    /// Connects with MQTT 3.1.1 and Clean Session.
    pub(crate) fn v311(broker: &BrokerProcess, client_id: &str) -> Self {
        let (client, connack) = Self::connect(broker, &connect_v311(0x02, &[&string(client_id)]));
        assert_eq!(connack, [0x20, 2, 0, 0]);
        client
    }

    /// Sends bytes. A connection closed by the broker is no error here: the missing answer shows it.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Returns the next packet, or `None` when the broker closes.
    pub(crate) fn receive_or_end(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = end_of_packet(&self.input) {
                return Some(self.input.drain(..end).collect());
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    assert!(self.input.is_empty(), "half a packet: {:?}", self.input);
                    return None;
                }
                Ok(read) => self.input.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error} where a packet or the end should come"),
            }
        }
    }

    /// Returns the next packet.
    pub(crate) fn receive(&mut self) -> Vec<u8> {
        self.receive_or_end().expect("a packet and not the end")
    }

    /// Asserts that this packet arrives next.
    #[track_caller]
    pub(crate) fn expect(&mut self, packet: &[u8]) {
        assert_eq!(hexadecimal(&self.receive()), hexadecimal(packet));
    }

    /// Returns all packets until the broker closes.
    pub(crate) fn receive_to_end(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.receive_or_end()).collect()
    }

    /// Returns all packets that earlier requests cause: sends PINGREQ until its answer arrives alone. The first answer
    /// is not enough: acknowledgements may follow the PINGRESP of a PINGREQ that was read together with their message.
    pub(crate) fn all_waiting(&mut self) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        for round in 0.. {
            self.send(&[0xC0, 0]);
            let before = packets.len();
            packets.extend(std::iter::from_fn(|| Some(self.receive()).filter(|packet| packet[0] != 0xD0)));
            if round > 0 && packets.len() == before {
                break;
            }
        }
        packets
    }

    /// Subscribes at 5.0 with these options to one filter, which the broker must grant.
    pub(crate) fn subscribe(&mut self, filter: &str, options: u8) {
        self.send(&packet(0x82, &[&[0, 1, 0], &string(filter), &[options]]));
        self.expect(&[0x90, 4, 0, 1, 0, options & 3]);
    }
}

/// Builds a Control Packet of these parts, with its Remaining Length.
pub(crate) fn packet(first: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    [&[first], &variable(body.len())[..], &body].concat()
}

/// CONNECT of 5.0 without Keep Alive; `properties` without their length.
pub(crate) fn connect_v5(flags: u8, properties: &[u8], payload: &[&[u8]]) -> Vec<u8> {
    let payload = payload.concat();
    let properties = [&variable(properties.len()), properties].concat();
    packet(0x10, &[b"\0\x04MQTT\x05", &[flags, 0, 0], &properties, &payload])
}

/// CONNECT of 3.1.1 without Keep Alive.
pub(crate) fn connect_v311(flags: u8, payload: &[&[u8]]) -> Vec<u8> {
    packet(0x10, &[b"\0\x04MQTT\x04", &[flags, 0, 0], &payload.concat()])
}

/// A string, or binary data, behind its length.
pub(crate) fn string(content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    let length = u16::try_from(content.len()).expect("a length of two bytes");
    [&length.to_be_bytes(), content].concat()
}

/// A Variable Byte Integer.
pub(crate) fn variable(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let byte = (value % 128) as u8;
        value /= 128;
        bytes.push(if value > 0 { byte | 0x80 } else { byte });
        if value == 0 {
            return bytes;
        }
    }
}

/// The body of a packet, behind its fixed header.
pub(crate) fn body(packet: &[u8]) -> &[u8] {
    let length = packet[1..].iter().take_while(|&&byte| byte >= 0x80).count() + 1;
    &packet[1 + length..]
}

/// The Reason Code of an acknowledgement of 5.0, which may be left out.
pub(crate) fn ack_reason(packet: &[u8]) -> u8 {
    body(packet).get(2).copied().unwrap_or(0)
}

/// The Reason Code of a DISCONNECT of 5.0.
#[track_caller]
pub(crate) fn disconnect_reason(packet: &[u8]) -> u8 {
    assert_eq!(packet[0], 0xE0, "{packet:02X?} instead of DISCONNECT");
    body(packet).first().copied().unwrap_or(0)
}

fn end_of_packet(bytes: &[u8]) -> Option<usize> {
    let mut length = 0;
    for (place, byte) in bytes.get(1..)?.iter().take(4).enumerate() {
        length |= usize::from(byte & 0x7F) << (7 * place);
        if byte & 0x80 == 0 {
            let end = 2 + place + length;
            return (bytes.len() >= end).then_some(end);
        }
    }
    None
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X} ")).collect()
}
