use std::sync::mpsc;

use tenbin_broker::auth::{Answer, AuthFuture, AuthRequest, Authenticator, Identity, Origin};
use tenbin_broker::{Broker, Config};
use tokio::runtime::Runtime;

use super::PATIENCE;

/// Accepts every client, and passes on its origin.
struct Witness(mpsc::SyncSender<Origin>);

impl Authenticator for Witness {
    fn authenticate(&self, request: AuthRequest) -> AuthFuture<'_> {
        self.0.send(request.origin).expect("the test waits");
        Box::pin(async { Answer::Accept { identity: Identity::anonymous(), data: None } })
    }
}

/// A broker in this process that tells the origin of each client.
pub(crate) struct WitnessedBroker {
    pub(crate) broker: Broker,
    origins: mpsc::Receiver<Origin>,
    _runtime: Runtime,
}

impl WitnessedBroker {
    /// Starts with this configuration.
    pub(crate) fn start(config: &str) -> Self {
        let (sender, origins) = mpsc::sync_channel(8);
        let runtime = Runtime::new().expect("threads");
        let builder = Broker::builder().config(Config::parse(config).expect("a configuration"));
        let broker = runtime.block_on(builder.authenticator(Witness(sender)).start()).expect("a free port");
        Self { broker, origins, _runtime: runtime }
    }

    /// Origin of the next client.
    pub(crate) fn next_origin(&self) -> Origin {
        self.origins.recv_timeout(PATIENCE).expect("the broker asks")
    }
}
