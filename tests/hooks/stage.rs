use std::net::SocketAddr;

use tenbin_broker::{Broker, BrokerBuilder, Config};
use tenbin_codec::{Connect, ProtocolVersion};
use tokio::runtime::Runtime;

use crate::support::{RawClient, text};

/// A broker in this process.
pub(crate) struct Stage {
    broker: Option<Broker>,
    address: SocketAddr,
    runtime: Runtime,
}

impl Stage {
    /// Starts a broker with these keys beside `listen`.
    pub(crate) fn start(keys: &str, build: impl FnOnce(BrokerBuilder) -> BrokerBuilder) -> Self {
        let config = Config::parse(&format!("listen = ['127.0.0.1:0']\n{keys}")).expect("legal keys");
        let runtime = Runtime::new().expect("threads");
        let broker = runtime.block_on(build(Broker::builder().config(config)).start()).expect("a free port");
        Self { address: broker.addresses()[0], broker: Some(broker), runtime }
    }

    pub(crate) fn broker(&self) -> &Broker {
        self.broker.as_ref().expect("it runs")
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Connects a client with MQTT 5.0.
    pub(crate) fn connect(&self, client_id: &str) -> RawClient {
        self.connect_with(Connect::new(ProtocolVersion::V5, text(client_id)))
    }

    pub(crate) fn connect_with(&self, connect: Connect) -> RawClient {
        RawClient::connect(self.address, connect).0
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the broker, whose runtime stays.
    pub(crate) fn shutdown(&mut self) {
        if let Some(broker) = self.broker.take() {
            self.runtime.block_on(broker.shutdown());
        }
    }
}
