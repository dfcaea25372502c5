use std::net::SocketAddr;
use std::time::Duration;

use tenbin_codec::{Connect, ProtocolVersion, QoS};
use tenbin_sn_client::{Client, ClientEvent, ClientOptions, Events, OutgoingMessage, QoS as SnQoS};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::support::{PATIENCE, RawClient, text};

/// A well-behaved client, and its backend at the broker.
pub(crate) struct Canary {
    runtime: Runtime,
    client: Client,
    events: Events,
    backend: RawClient,
    number: u64,
}

/// Client id of the canary.
pub(crate) const CANARY: &str = "canary";

impl Canary {
    pub(crate) fn start(broker: SocketAddr, gateway: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a thread");
        // Floods overflow the gateway's socket, so that repetitions matter.
        let options = ClientOptions::new(gateway.to_string(), CANARY).retry(Duration::from_millis(500), 100);
        let (client, events) = runtime.block_on(Client::connect(options)).expect("a connection");
        let subscribing = client.subscribe("canary/down", SnQoS::AtLeastOnce);
        runtime.block_on(subscribing).expect("a subscription");
        let mut backend = RawClient::connect(broker, Connect::new(ProtocolVersion::V5, text("canary-backend"))).0;
        backend.subscribe("canary/up", QoS::AtLeastOnce);
        Self { runtime, client, events, backend, number: 0 }
    }

    /// A message to the canary and one from it arrive, on its first connection.
    pub(crate) fn assert_sings(&mut self) {
        self.number += 1;
        let number = self.number.to_string();
        self.backend.publish("canary/down", &number, QoS::AtLeastOnce);
        self.runtime.block_on(async {
            loop {
                match timeout(PATIENCE, self.events.recv()).await.expect("in time") {
                    Some(ClientEvent::Message(message)) if message.payload == number => break,
                    // The first connection, and copies.
                    Some(ClientEvent::Message(_) | ClientEvent::Connected { .. }) => {}
                    other => panic!("the canary: {other:?}"),
                }
            }
            let message = OutgoingMessage::new("canary/up", number.clone()).at(SnQoS::AtLeastOnce);
            let ticket = self.client.publish(message).await.expect("it runs");
            timeout(PATIENCE, ticket).await.expect("in time").expect("acknowledged");
        });
        while self.backend.receive_message().payload != number {}
    }
}
