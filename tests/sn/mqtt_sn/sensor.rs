//! An MQTT-SN client in lockstep: it sends a datagram, and waits for the next one.

use std::net::{SocketAddr, UdpSocket};

use crate::support::PATIENCE;

pub(crate) struct Sensor {
    socket: UdpSocket,
    message_id: u16,
    /// MsgId of the last message that came.
    last_received: [u8; 2],
    /// Its topic id.
    pub(crate) last_topic: [u8; 2],
}

/// Flags of CONNECT, PUBLISH and SUBSCRIBE.
pub(crate) const CLEAN: u8 = 0x04;
pub(crate) const WILL: u8 = 0x08;
pub(crate) const RETAIN: u8 = 0x10;
pub(crate) const QOS_1: u8 = 0x20;
pub(crate) const QOS_2: u8 = 0x40;
const DUP: u8 = 0x80;

impl Sensor {
    /// A client that has connected, with this Duration.
    pub(crate) fn connect(gateway: SocketAddr, client_id: &str, flags: u8, seconds: u16) -> Self {
        let mut sensor = Self::open(gateway);
        assert_eq!(sensor.try_connect(client_id, flags, seconds), 0, "{client_id} is accepted");
        sensor
    }

    pub(crate) fn open(gateway: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(gateway).expect("an address");
        socket.set_read_timeout(Some(PATIENCE)).expect("a time");
        Self { socket, message_id: 0, last_received: [0; 2], last_topic: [0; 2] }
    }

    /// Sends CONNECT, and its Will if it has one. Returns the Return Code.
    pub(crate) fn try_connect(&mut self, client_id: &str, flags: u8, seconds: u16) -> u8 {
        self.send(0x04, &[&[flags, 1][..], &seconds.to_be_bytes(), client_id.as_bytes()].concat());
        if flags & WILL != 0 {
            assert_eq!(self.receive(), [0x06], "WILLTOPICREQ");
            self.send(0x07, b"\x00gone");
            assert_eq!(self.receive(), [0x08], "WILLMSGREQ");
            self.send(0x09, client_id.as_bytes());
        }
        let answer = self.receive();
        assert_eq!(answer[0], 0x05, "CONNACK: {answer:?}");
        answer[1]
    }

    /// Registers a topic name. Returns its id.
    pub(crate) fn register(&mut self, name: &str) -> [u8; 2] {
        let id = self.next_id();
        self.send(0x0A, &[&[0, 0], &id[..], name.as_bytes()].concat());
        let answer = self.receive_answer();
        assert_eq!((answer[0], answer[5]), (0x0B, 0), "REGACK: {answer:?}");
        [answer[1], answer[2]]
    }

    /// Publishes, and waits for the acknowledgement. Returns the Return Code.
    pub(crate) fn publish(&mut self, topic: [u8; 2], flags: u8, payload: &str) -> u8 {
        let id = if flags & (QOS_1 | QOS_2) == 0 { [0; 2] } else { self.next_id() };
        self.send(0x0C, &[&[flags], &topic[..], &id, payload.as_bytes()].concat());
        if flags & QOS_1 != 0 {
            let answer = self.receive_answer();
            assert_eq!((answer[0], &answer[3..5]), (0x0D, &id[..]), "PUBACK: {answer:?}");
            return answer[5];
        }
        if flags & QOS_2 != 0 {
            assert_eq!(self.receive_answer(), [&[0x0F], &id[..]].concat(), "PUBREC");
            self.send(0x10, &id);
            assert_eq!(self.receive_answer(), [&[0x0E], &id[..]].concat(), "PUBCOMP");
        }
        0
    }

    /// Subscribes to a topic filter. Returns the topic id.
    pub(crate) fn subscribe(&mut self, filter: &str, qos: u8) -> [u8; 2] {
        let id = self.next_id();
        self.send(0x12, &[&[qos], &id[..], filter.as_bytes()].concat());
        let answer = self.receive_answer();
        assert_eq!((answer[0], answer[6]), (0x13, 0), "SUBACK: {answer:?}");
        [answer[2], answer[3]]
    }

    /// Waits for the next message, and acknowledges it and the registration of its topic. `None` = PINGRESP came.
    pub(crate) fn next_message(&mut self) -> Option<String> {
        self.next_message_and_registers().0
    }

    /// As [`Sensor::next_message`], and returns the number of registrations before it. Copies of all messages are
    /// acknowledged again: a gateway repeats its messages to a client that a busy machine keeps from answering.
    pub(crate) fn next_message_and_registers(&mut self) -> (Option<String>, usize) {
        let (mut registers, mut unreleased) = (0, None);
        let mut last_register = Vec::new();
        loop {
            let datagram = self.receive();
            match datagram[0] {
                0x0A => {
                    registers += usize::from(last_register != datagram);
                    self.send(0x0B, &[&datagram[1..5], &[0]].concat());
                    last_register = datagram;
                }
                0x0C => {
                    let (flags, id) = (datagram[1], [datagram[4], datagram[5]]);
                    let is_copy = flags & DUP != 0 && self.last_received == id;
                    let text = String::from_utf8(datagram[6..].to_vec()).expect("text");
                    self.last_received = id;
                    self.last_topic = [datagram[2], datagram[3]];
                    if flags & QOS_1 != 0 {
                        self.send(0x0D, &[&datagram[2..4], &id, &[0]].concat());
                    }
                    if flags & QOS_2 != 0 {
                        self.send(0x0F, &id);
                        unreleased = unreleased.or((!is_copy).then_some(text));
                    } else if !is_copy {
                        return (Some(text), registers);
                    }
                }
                0x10 => {
                    self.send(0x0E, &datagram[1..3]);
                    if unreleased.is_some() {
                        return (unreleased, registers);
                    }
                }
                // The gateway wants to know that the client is at its address.
                0x16 => self.send(0x17, b""),
                0x17 => return (None, registers),
                other => panic!("{other:#x}: {datagram:?}"),
            }
        }
    }

    /// Disconnects, and waits for the answer.
    #[allow(dead_code, reason = "only one of the test binaries needs it")]
    pub(crate) fn disconnect(&mut self) {
        self.send(0x18, b"");
        assert_eq!(self.receive_answer(), [0x18], "DISCONNECT");
    }

    /// Answers all datagrams that are there, without waiting, and returns the messages among them.
    #[allow(dead_code, reason = "only one of the test binaries needs it")]
    pub(crate) fn attend(&mut self) -> Vec<String> {
        let mut messages = Vec::new();
        while let Some(datagram) = self.try_receive() {
            match datagram[0] {
                0x0A => self.send(0x0B, &[&datagram[1..5], &[0]].concat()),
                0x16 => self.send(0x17, b""),
                0x0C => {
                    self.send(0x0D, &[&datagram[2..6], &[0]].concat());
                    if datagram[1] & DUP == 0 {
                        messages.push(String::from_utf8(datagram[6..].to_vec()).expect("text"));
                    }
                }
                other => panic!("{other:#x}: {datagram:?}"),
            }
        }
        messages
    }

    /// Falls asleep for a duration in seconds.
    pub(crate) fn sleep(&mut self, seconds: u16) {
        self.send(0x18, &seconds.to_be_bytes());
        assert_eq!(self.receive_answer()[0], 0x18, "DISCONNECT");
    }

    /// Wakes, and returns the messages until PINGRESP.
    pub(crate) fn wake(&mut self, client_id: &str) -> Vec<String> {
        self.send(0x16, client_id.as_bytes());
        std::iter::from_fn(|| self.next_message()).collect()
    }

    pub(crate) fn send(&mut self, kind: u8, body: &[u8]) {
        let length = u8::try_from(body.len() + 2).expect("a short message");
        self.socket.send(&[&[length, kind], body].concat()).expect("a gateway");
    }

    /// The next datagram behind the questions for the proof of the address, which are answered.
    fn receive_answer(&mut self) -> Vec<u8> {
        loop {
            let datagram = self.receive();
            match datagram[0] {
                0x0A if datagram[5..] == *b"~" => self.send(0x0B, &[&datagram[1..5], &[0]].concat()),
                0x16 => self.send(0x17, b""),
                _ => return datagram,
            }
        }
    }

    /// Type and body of the next datagram.
    pub(crate) fn receive(&mut self) -> Vec<u8> {
        let mut buffer = [0; 1500];
        let size = self.socket.recv(&mut buffer).expect("a datagram");
        // The long length begins with 1.
        let (length, start) = match buffer {
            [1, high, low, ..] => (u16::from_be_bytes([high, low]).into(), 3),
            [length, ..] => (usize::from(length), 1),
        };
        assert_eq!(length, size);
        buffer[start..size].to_vec()
    }

    /// The next datagram, if one is there.
    #[allow(dead_code, reason = "only one of the test binaries looks without waiting")]
    pub(crate) fn try_receive(&mut self) -> Option<Vec<u8>> {
        self.socket.set_nonblocking(true).expect("a socket");
        let is_there = self.socket.peek(&mut [0]).is_ok();
        self.socket.set_nonblocking(false).expect("a socket");
        is_there.then(|| self.receive())
    }

    fn next_id(&mut self) -> [u8; 2] {
        self.message_id += 1;
        self.message_id.to_be_bytes()
    }
}
