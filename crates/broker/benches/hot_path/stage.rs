//! A broker with its clients, and rounds of messages between them.

use std::net::SocketAddr;
use std::sync::Arc;

use tenbin_broker::{Broker, Config};
use tenbin_codec::{
    Connect, Packet, PacketId, ProtocolVersion, Publish, QoS, Subscribe, Subscription, SubscriptionOptions, Text,
    TopicFilter, TopicName, WriteBuffer,
};
use tokio::runtime::Runtime;

use crate::Case;
use crate::client::{Client, Meter};

/// A broker with connected clients and no messages in flight.
pub(crate) struct Stage {
    runtime: Runtime,
    publishers: Vec<Client>,
    /// Kept to stay connected.
    _subscribers: Vec<Client>,
    _broker: Broker,
    meter: Arc<Meter>,
    /// Bytes that a publisher sends in one round.
    batch: Vec<u8>,
    /// Bytes that the broker writes in one round.
    round_bytes: u64,
}

impl Stage {
    pub(crate) fn of(case: &Case) -> Self {
        // One thread makes runs reproducible. The broker needs timers, but none fires.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let meter = Arc::new(Meter::default());
        let filter = if case.is_shared { format!("$share/group/{TOPIC}") } else { TOPIC.to_owned() };
        let (broker, publishers, subscribers) = runtime.block_on(async {
            let config = Config::parse(CONFIG).expect("a configuration");
            let broker = Broker::builder().config(config).start().await.expect("a free port");
            let mut subscribers = Vec::new();
            for number in 0..case.subscribers {
                let client = connect(&broker, &meter, &format!("subscriber-{number}")).await;
                client.exchange(&encoded(&subscribe(&filter, case.qos))).await;
                subscribers.push(client);
            }
            let mut publishers = Vec::new();
            for number in 0..case.publishers {
                publishers.push(connect(&broker, &meter, &format!("publisher-{number}")).await);
            }
            (broker, publishers, subscribers)
        });
        publishers.iter().chain(&subscribers).for_each(|client| client.begin(case.qos.is_acknowledged()));
        meter.reset();
        let batch: Vec<u8> = (1..=case.batch).flat_map(|id| encoded(&publish(case.qos, id))).collect();
        let frame_bytes = batch.len() as u64 / u64::from(case.batch);
        // In addition to the messages: PUBACK; or PUBREC and PUBCOMP to publishers, and PUBREL to subscribers.
        let answer_bytes = match case.qos {
            QoS::AtMostOnce => 0,
            QoS::AtLeastOnce => ACK_BYTES * case.messages(),
            QoS::ExactlyOnce => ACK_BYTES * (2 * case.messages() + case.deliveries()),
        };
        let round_bytes = frame_bytes * case.deliveries() + answer_bytes;
        Self { runtime, publishers, _subscribers: subscribers, _broker: broker, meter, batch, round_bytes }
    }

    /// Plays rounds. In each, every publisher sends its batch, and the round ends when all messages have arrived.
    pub(crate) fn play(&mut self, rounds: u32) {
        self.runtime.block_on(async {
            for _ in 0..rounds {
                self.publishers.iter().for_each(|publisher| publisher.send(&self.batch));
                self.meter.take(self.round_bytes).await;
            }
        });
    }
}

async fn connect(broker: &Broker, meter: &Arc<Meter>, id: &str) -> Client {
    let client = Client::new(Arc::clone(meter));
    broker.serve(client.clone(), SocketAddr::from(([127, 0, 0, 1], 1)));
    let mut connect = Connect::new(VERSION, Text::try_from(id).expect("a plain text"));
    connect.keep_alive = 0;
    client.exchange(&encoded(&Packet::Connect(Box::new(connect)))).await;
    client
}

fn subscribe(filter: &str, qos: QoS) -> Packet {
    let filter = TopicFilter::try_from(filter).expect("a legal filter");
    let options = SubscriptionOptions { qos, ..SubscriptionOptions::default() };
    Packet::Subscribe(Subscribe {
        packet_id: PacketId::new(1).expect("not 0"),
        subscription_identifier: None,
        user_properties: Vec::new(),
        subscriptions: vec![Subscription { filter, options }],
    })
}

fn publish(qos: QoS, id: u16) -> Packet {
    let mut publish = Publish::new(TopicName::try_from(TOPIC).expect("a legal topic"), vec![b'x'; PAYLOAD].into());
    publish.qos = qos;
    publish.packet_id = PacketId::new(id).filter(|_| qos.is_acknowledged());
    Packet::Publish(publish)
}

fn encoded(packet: &Packet) -> Vec<u8> {
    let mut out = WriteBuffer::new();
    packet.encode(VERSION, &mut out);
    out.to_bytes().to_vec()
}

const VERSION: ProtocolVersion = ProtocolVersion::V5;
const TOPIC: &str = "plant/7/line/3";
const PAYLOAD: usize = 100;
/// Bytes of an acknowledgement without a Reason Code.
const ACK_BYTES: u64 = 4;

/// Without timed work: how often it runs per message depends on the machine.
const CONFIG: &str = "\
    listen = [\"127.0.0.1:0\"]\n\
    [sys]\ninterval_seconds = 0\n\
    [explain]\ndecisions_maximum = 0\npause_ms = 60000\n";
