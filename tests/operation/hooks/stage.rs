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
        Self::run(config, build)
    }

    /// Starts a broker with a changed configuration.
    pub(crate) fn start_with(
        change: impl FnOnce(&mut Config),
        build: impl FnOnce(BrokerBuilder) -> BrokerBuilder,
    ) -> Self {
        let mut config = Config::parse("listen = ['127.0.0.1:0']").expect("legal keys");
        change(&mut config);
        Self::run(config, build)
    }

    fn run(config: Config, build: impl FnOnce(BrokerBuilder) -> BrokerBuilder) -> Self {
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
