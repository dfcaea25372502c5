//! Clients that exchange numbered messages with plain MQTT, at QoS 1 and 2 in turns.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};
use tenbin_sn_client::{Client, ClientEvent, ClientOptions, Events, OutgoingMessage, QoS as SnQoS};

use crate::support::{PATIENCE, RawClient, text};

const RETRY: Duration = Duration::from_millis(200);
/// Short, so that a client soon notices that the gateway has given it up.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// A CONNECT must outlast the 2 s in which the gateway asks whether the client is still at its last address.
const CLIENT_RETRIES: u8 = 10;

/// Messages of one sender, as they came in: QoS 2 exactly once, QoS 1 at least once, first copies in order.
///
/// MQTT keeps the order of messages at the same QoS only. A broker may send the messages of a stored session apart.
struct Ledger {
    load: Load,
    /// The next message at QoS 1, and at QoS 2.
    next: [usize; 2],
    copies: usize,
}

impl Ledger {
    fn new(load: Load) -> Self {
        Self { load, next: [0, 1].map(|qos_2| load.next(0, qos_2 == 1)), copies: 0 }
    }

    /// Notes a message: its number, and whether it came at QoS 2.
    fn note(&mut self, whose: &str, number: usize, is_exactly_once: bool) {
        assert_eq!(is_exactly_once, self.load.is_exactly_once(number), "{whose}: QoS of message {number}");
        let next = &mut self.next[usize::from(is_exactly_once)];
        if number == *next {
            *next = self.load.next(number + 1, is_exactly_once);
        } else {
            assert!(number < *next, "{whose}: message {number} before {next}");
            assert!(!is_exactly_once, "{whose}: a copy of message {number} at QoS 2");
            self.copies += 1;
        }
    }

    fn is_complete(&self) -> bool {
        self.next == [self.load.each; 2]
    }
}

/// Clients, and the messages of each in each direction.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) clients: usize,
    pub(crate) each: usize,
}

/// Counts of a client's end of the load.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Exchanged {
    pub(crate) connections: usize,
    /// Copies received at QoS 1.
    pub(crate) copies: usize,
}

impl Load {
    /// QoS of a message: 1 and 2 in turns, and 2 for the last one.
    fn is_exactly_once(self, number: usize) -> bool {
        number % 2 == 1 || number + 1 == self.each
    }

    /// The first message from `number` on at this QoS.
    fn next(self, number: usize, exactly_once: bool) -> usize {
        (number..self.each).find(|&number| self.is_exactly_once(number) == exactly_once).unwrap_or(self.each)
    }

    /// Longest time for the whole load.
    fn patience(self) -> Duration {
        PATIENCE + Duration::from_secs(2) * u32::try_from(self.each).expect("a moderate number")
    }

    /// Connects all clients, which keep their sessions, and subscribes.
    pub(crate) async fn connect_all(self, gateway: SocketAddr) -> Vec<(Client, Events)> {
        let connecting: Vec<_> = (0..self.clients).map(|number| tokio::spawn(connect(gateway, number))).collect();
        let mut clients = Vec::new();
        for client in connecting {
            clients.push(client.await.expect("no panic"));
        }
        clients
    }

    /// Publishes and receives all messages of all clients. Adds to `acknowledged` for each acknowledged message.
    pub(crate) async fn exchange_all(
        self,
        clients: Vec<(Client, Events)>,
        acknowledged: &Arc<AtomicUsize>,
    ) -> Exchanged {
        let running = clients.into_iter().enumerate().map(|(number, (client, events))| {
            let exchanging = self.exchange(client, events, number, Arc::clone(acknowledged));
            tokio::spawn(tokio::time::timeout(self.patience(), exchanging))
        });
        let mut sum = Exchanged::default();
        for client in running.collect::<Vec<_>>() {
            let exchanged = client.await.expect("no panic").expect("in time");
            sum.connections += exchanged.connections;
            sum.copies += exchanged.copies;
        }
        sum
    }

    async fn exchange(
        self,
        client: Client,
        mut events: Events,
        number: usize,
        acknowledged: Arc<AtomicUsize>,
    ) -> Exchanged {
        let topic = format!("up/{number}");
        let publishing = async {
            for message in 0..self.each {
                let qos = if self.is_exactly_once(message) { SnQoS::ExactlyOnce } else { SnQoS::AtLeastOnce };
                let message = OutgoingMessage::new(&topic[..], message.to_string()).at(qos);
                client.publish(message).await.expect("a running client").await.expect("acknowledged");
                acknowledged.fetch_add(1, Relaxed);
            }
        };
        let (mut ledger, mut connections) = (Ledger::new(self), 0);
        let receiving = async {
            while !ledger.is_complete() {
                match events.recv().await.expect("a running client") {
                    ClientEvent::Message(message) => {
                        let number = String::from_utf8_lossy(&message.payload).parse().expect("a number");
                        ledger.note(&format!("to the sender of {topic}"), number, message.qos == SnQoS::ExactlyOnce);
                    }
                    ClientEvent::Connected { .. } => connections += 1,
                    _ => {}
                }
            }
        };
        tokio::join!(publishing, receiving);
        // The gateway may have ended before it.
        let _ = client.disconnect().await;
        while let Some(event) = events.recv().await {
            let is_copy = matches!(event, ClientEvent::Message(message) if message.qos == SnQoS::ExactlyOnce);
            assert!(!is_copy, "{topic}: a copy at QoS 2");
        }
        Exchanged { connections, copies: ledger.copies }
    }

    /// Publishes these messages for each client, over MQTT.
    pub(crate) fn publish(self, broker: SocketAddr, messages: Range<usize>) {
        let mut publisher = mqtt_client(broker, "publisher");
        for message in messages {
            let qos = if self.is_exactly_once(message) { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
            for client in 0..self.clients {
                let reason = publisher.publish(&format!("down/{client}"), &message.to_string(), qos);
                assert_eq!(reason, ReasonCode::Success);
            }
        }
    }

    /// Receives all messages of the clients, over MQTT. Returns the number of copies at QoS 1.
    pub(crate) fn receive_all(self, subscriber: &mut RawClient) -> usize {
        let mut ledgers: HashMap<String, Ledger> = HashMap::new();
        while ledgers.len() < self.clients || !ledgers.values().all(Ledger::is_complete) {
            let message = subscriber.receive_message();
            let number = String::from_utf8_lossy(&message.payload).parse().expect("a number");
            let topic = message.topic.text().as_str();
            let ledger = ledgers.entry(topic.to_owned()).or_insert_with(|| Ledger::new(self));
            ledger.note(topic, number, message.qos == QoS::ExactlyOnce);
        }
        let late = subscriber.drain();
        assert!(late.iter().all(|message| message.qos != QoS::ExactlyOnce), "{late:?}");
        ledgers.values().map(|ledger| ledger.copies).sum::<usize>() + late.len()
    }
}

pub(crate) fn mqtt_client(broker: SocketAddr, client_id: &str) -> RawClient {
    RawClient::connect(broker, Connect::new(ProtocolVersion::V5, text(client_id))).0
}

async fn connect(gateway: SocketAddr, number: usize) -> (Client, Events) {
    let options = ClientOptions::new(gateway.to_string(), format!("client-{number}"))
        .clean_session(false)
        .keep_alive(KEEP_ALIVE)
        .retry(RETRY, CLIENT_RETRIES)
        .reconnect(Some(RETRY));
    let until = Instant::now() + PATIENCE;
    let (client, events) = loop {
        match Client::connect(options.clone()).await {
            Ok(connected) => break connected,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
    };
    let granted = client.subscribe(&format!("down/{number}")[..], SnQoS::ExactlyOnce).await.expect("a subscription");
    assert_eq!(granted, SnQoS::ExactlyOnce);
    (client, events)
}
