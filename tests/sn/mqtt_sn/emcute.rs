//! Clients that ignore REGISTER, as RIOT's emcute and asymcute do.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use tenbin_codec::QoS;

use crate::mqtt_sn::sensor::QOS_1;
use crate::mqtt_sn::shares::{address, stands};
use crate::support::{PATIENCE, RawClient, share};

/// A client that gets its topic ids by SUBACK alone.
struct Emcute {
    socket: UdpSocket,
    /// Ids of its subscriptions.
    topics: Vec<[u8; 2]>,
    message_id: u16,
    /// Whether it refuses messages on unknown ids, as emcute does.
    refuses: bool,
    received: Vec<String>,
}

impl Emcute {
    fn connect(gateway: SocketAddr, client_id: &str, refuses: bool) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(gateway).expect("an address");
        socket.set_read_timeout(Some(PATIENCE)).expect("a time");
        let mut client = Self { socket, topics: Vec::new(), message_id: 0x1233, refuses, received: Vec::new() };
        client.send(0x04, &[&[0x04, 1, 0x01, 0x68], client_id.as_bytes()].concat());
        assert_eq!(client.wait_for(0x05), [3, 0x05, 0]);
        client
    }

    fn subscribe(&mut self, name: &str, qos: u8) {
        self.message_id += 1;
        let id = self.message_id.to_be_bytes();
        self.send(0x12, &[&[qos], &id[..], name.as_bytes()].concat());
        let suback = self.wait_for(0x13);
        assert_eq!((&suback[5..7], suback[7]), (&id[..], 0), "SUBACK");
        self.topics.push([suback[3], suback[4]]);
    }

    fn send(&self, kind: u8, body: &[u8]) {
        let length = u8::try_from(body.len() + 2).expect("short");
        self.socket.send(&[&[length, kind], body].concat()).expect("a gateway");
    }

    /// Handles datagrams until one of this type.
    fn wait_for(&mut self, kind: u8) -> Vec<u8> {
        loop {
            let datagram = self.handle_next().expect("a datagram in time");
            if datagram.get(1) == Some(&kind) {
                return datagram;
            }
        }
    }

    fn handle_next(&mut self) -> Option<Vec<u8>> {
        let mut buffer = [0; 1500];
        let size = self.socket.recv(&mut buffer).ok()?;
        let datagram = buffer[..size].to_vec();
        let body = if datagram[0] == 1 { &datagram[3..] } else { &datagram[1..] };
        match body[0] {
            0x0C => {
                let is_known = self.topics.contains(&[body[2], body[3]]);
                let is_supported = body[1] & !(QOS_1 | 0x02 | 0x10) == 0;
                let code = if !is_supported { 3 } else { u8::from(!is_known) * 2 };
                if code == 0 {
                    self.received.push(String::from_utf8(body[6..].to_vec()).expect("text"));
                }
                if (code == 0 && body[1] & QOS_1 != 0) || (code != 0 && self.refuses) {
                    self.send(0x0D, &[&body[2..6], &[code]].concat());
                }
            }
            0x16 => self.send(0x17, b""),
            0x18 => panic!("it is disconnected"),
            // REGISTER and others.
            _ => {}
        }
        Some(datagram)
    }

    /// Handles datagrams until it has this number of messages.
    fn take(&mut self, messages: usize) -> &[String] {
        let until = Instant::now() + PATIENCE;
        while self.received.len() < messages && Instant::now() < until {
            self.handle_next();
        }
        &self.received
    }
}

/// 12 of 12 messages, small and large, at each QoS.
#[test]
fn client_that_ignores_register_gets_its_messages() {
    for (broker, gateway) in stands() {
        let at = address(&broker, gateway.as_ref());
        let mut publisher = broker.v5("publisher");
        for (number, (size, qos, refuses)) in
            [(4, 0, true), (4, QOS_1, true), (300, 0, true), (300, QOS_1, true), (4, 0, false), (4, QOS_1, false)]
                .into_iter()
                .enumerate()
        {
            let mut client = Emcute::connect(at, &format!("node-{number}"), refuses);
            let topic = format!("plant/{number}");
            client.subscribe(&topic, qos);
            let payloads: Vec<String> = (0..12).map(|number| format!("{number:0size$}")).collect();
            for payload in &payloads {
                publisher.publish(&topic, payload, QoS::AtLeastOnce);
            }
            assert_eq!(client.take(12), payloads, "{size} bytes, QoS {qos}, refuses unknown ids: {refuses}");
        }
    }
}

/// A share group does not wait for such a member.
#[test]
fn member_that_ignores_register_gets_its_share() {
    for (broker, gateway) in stands() {
        let mut node = Emcute::connect(address(&broker, gateway.as_ref()), "node", true);
        node.subscribe(&share("pumps", "jobs"), QOS_1);
        node.socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a time");
        let mut member: RawClient = broker.v5("member");
        member.subscribe(&share("pumps", "jobs"), QoS::AtLeastOnce);
        let mut publisher = broker.v5("publisher");
        let begun = Instant::now();
        let mut jobs = Vec::new();
        for number in 0..12 {
            publisher.publish("jobs", &number.to_string(), QoS::AtLeastOnce);
        }
        while jobs.len() + node.received.len() < 12 {
            assert!(begun.elapsed() < PATIENCE, "{jobs:?} {:?}", node.received);
            node.handle_next();
            if let Ok(tenbin_codec::Packet::Publish(publish)) = member.try_receive(Duration::from_millis(20)) {
                member.acknowledge(&publish);
                jobs.push(String::from_utf8(publish.payload.to_vec()).expect("text"));
            }
        }
        assert!(!node.received.is_empty(), "it has its share");
        let mut all: Vec<u32> = jobs.iter().chain(&node.received).map(|of| of.parse().expect("a number")).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..12));
    }
}
