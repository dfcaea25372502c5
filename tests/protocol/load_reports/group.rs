use tenbin_codec::{PacketType, ProtocolVersion, Publish, QoS};

use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, at_qos, number_of, share};

/// Two members of one group that chooses by their reports, and a publisher.
pub(crate) struct Group {
    pub(crate) broker: BrokerProcess,
    pub(crate) members: [RawClient; 2],
    pub(crate) publisher: RawClient,
}

/// Carrier of a load report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    PingReq,
    PubAck,
    PubRec,
    PubComp,
    /// At this QoS.
    Publish(QoS),
}

impl Carrier {
    pub(crate) const ALL: [Self; 7] = [
        Self::PingReq,
        Self::PubAck,
        Self::PubRec,
        Self::PubComp,
        Self::Publish(QoS::AtMostOnce),
        Self::Publish(QoS::AtLeastOnce),
        Self::Publish(QoS::ExactlyOnce),
    ];
}

impl Group {
    pub(crate) fn new() -> Self {
        Self::of(ProtocolVersion::V5)
    }

    pub(crate) fn of(version: ProtocolVersion) -> Self {
        let config = ConfigFile::logging_all();
        let arguments = ["--policy", "thesis_score", "--log", "debug", "--config", config.path()];
        let broker = BrokerProcess::start(&arguments);
        let members = [0, 1].map(|number| {
            let mut member = broker.client(version, &format!("worker {number}"));
            member.subscribe(&share("workers", "work"), QoS::AtLeastOnce);
            member.subscribe(&format!("mail/{number}"), QoS::ExactlyOnce);
            member
        });
        let publisher = broker.v5("publisher");
        Self { broker, members, publisher }
    }

    /// Sends `json` as a load report of `member` and waits until the broker has processed it.
    pub(crate) fn report(&mut self, member: usize, carrier: Carrier, json: &[u8]) {
        match carrier {
            Carrier::PingReq => {
                self.members[member].send_bytes(&packet(0xC0, &[&[0], json].concat()));
                self.members[member].wait_for(PacketType::PingResp);
            }
            Carrier::PubAck => {
                let message = self.mail(member, QoS::AtLeastOnce);
                self.members[member].send_bytes(&ack(0x40, &message, json));
            }
            Carrier::PubRec | Carrier::PubComp => {
                let message = self.mail(member, QoS::ExactlyOnce);
                let reported = |at: Carrier| if carrier == at { json } else { &b""[..] };
                self.members[member].send_bytes(&ack(0x50, &message, reported(Carrier::PubRec)));
                self.members[member].wait_for(PacketType::PubRel);
                self.members[member].send_bytes(&ack(0x70, &message, reported(Carrier::PubComp)));
            }
            Carrier::Publish(qos) => {
                let report = Publish { payload: json.to_vec().into(), ..at_qos("$load", "", qos) };
                self.members[member].publish_with(report);
            }
        }
        self.members[member].settle();
    }

    /// Reports one member as idle and the other as far behind.
    pub(crate) fn report_busy(&mut self, busy: usize, carrier: Carrier) {
        self.report(busy, carrier, BUSY);
        self.report(1 - busy, carrier, IDLE);
    }

    /// Sends a member a message of its non-shared subscription, unacknowledged.
    fn mail(&mut self, member: usize, qos: QoS) -> Publish {
        self.publisher.publish(&format!("mail/{member}"), "x", qos);
        self.members[member].receive_publish()
    }

    /// Publishes eight messages one by one. Returns the member that got each.
    pub(crate) fn choices(&mut self) -> Vec<usize> {
        for number in 0..8 {
            self.publisher.publish("work", &number.to_string(), QoS::AtLeastOnce);
        }
        let mut choices = vec![usize::MAX; 8];
        for (member, client) in self.members.iter_mut().enumerate() {
            for message in client.drain() {
                choices[number_of(&message)] = member;
            }
        }
        choices
    }

    pub(crate) fn assert_all_go_to(&mut self, member: usize, why: &str) {
        assert_eq!(self.choices(), [member; 8], "{why}");
    }

    pub(crate) fn assert_rejections(&self, expected: usize) {
        let count = self.broker.log().count("load report rejected", expected, PATIENCE);
        assert_eq!(count, expected, "{:?}", self.broker.log().all());
    }
}

/// An acknowledgement in bytes, with a load report unless `json` is empty.
pub(crate) fn ack(first_byte: u8, message: &Publish, json: &[u8]) -> Vec<u8> {
    let id = message.packet_id.expect("QoS 1 or 2").get().to_be_bytes();
    if json.is_empty() {
        return packet(first_byte, &id);
    }
    let property = user_property(b"load", json);
    packet(first_byte, &[&id[..], &[0], &varint(property.len()), &property].concat())
}

pub(crate) fn user_property(name: &[u8], value: &[u8]) -> Vec<u8> {
    let string = |text: &[u8]| [&u16::try_from(text.len()).expect("a string").to_be_bytes()[..], text].concat();
    [&[0x26][..], &string(name), &string(value)].concat()
}

pub(crate) fn packet(first_byte: u8, body: &[u8]) -> Vec<u8> {
    [&[first_byte][..], &varint(body.len()), body].concat()
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let more = value > 127;
        bytes.push((value & 127) as u8 | if more { 128 } else { 0 });
        value >>= 7;
        if !more {
            return bytes;
        }
    }
}

pub(crate) const BUSY: &[u8] = br#"{"msgsInQueue":1000,"processingTimePerMsg":1000}"#;
pub(crate) const IDLE: &[u8] = br#"{"msgsInQueue":0,"processingTimePerMsg":1}"#;
