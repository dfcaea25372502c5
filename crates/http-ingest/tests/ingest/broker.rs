//! A broker in this process, and a server before it.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tenbin_broker::{Broker, Config};
use tenbin_client::{
    Client, ClientEvent, ClientOptions, Events, Message, QoS, Subscription, SubscriptionOptions, TopicFilter,
};
use tenbin_http_ingest::{Server, Settings, Upstream};
use tokio::runtime::Runtime;

use crate::http::Http;

/// Bound on every wait; only a failing test reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Tested {
    // Dropped in this order: the server's threads have connections of the broker.
    pub(crate) server: Server,
    pub(crate) broker: Arc<Broker>,
    pub(crate) runtime: Runtime,
}

impl Tested {
    /// Starts both; `config` has one listener or more.
    pub(crate) fn start(config: &str, settings: Settings) -> Self {
        let config = Config::parse(config).expect("legal");
        let runtime = Runtime::new().expect("threads");
        let broker = runtime.block_on(Broker::builder().config(config).start()).expect("a free port");
        let broker = Arc::new(broker);
        let serving = Arc::downgrade(&broker);
        // Without a broker the stream is dropped, and so its other end is closed.
        let upstream = Upstream::memory(move |stream, client| {
            if let Some(broker) = serving.upgrade() {
                broker.serve(stream, client);
            }
        });
        Self { server: server(settings, upstream), broker, runtime }
    }

    /// A broker that admits all clients.
    pub(crate) fn open() -> Self {
        Self::start("listen = [\"127.0.0.1:0\"]", Settings::default())
    }

    pub(crate) fn http(&self) -> Http {
        Http::connect(self.server.address())
    }

    /// A connection from this loopback address.
    pub(crate) fn stream_from(&self, source: [u8; 4]) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((source, 0)).into()).expect("a loopback address");
        socket.connect(&self.server.address().into()).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a time");
        socket.into()
    }

    /// An MQTT client that has subscribed, and its messages.
    pub(crate) fn subscribe(&self, filter: &str) -> Subscriber<'_> {
        let options = ClientOptions::new(self.broker.addresses()[0].to_string(), "subscriber");
        let (client, events) = self.runtime.block_on(async {
            let (client, events) = Client::connect(options).await.expect("connected");
            let filter = TopicFilter::try_from(filter).expect("legal");
            let options = SubscriptionOptions::at(QoS::ExactlyOnce);
            let granted = client.subscribe(vec![Subscription { filter, options }]).await.expect("an answer");
            assert!(!granted[0].is_error(), "{granted:?}");
            (client, events)
        });
        Subscriber { _client: client, events, runtime: &self.runtime }
    }
}

pub(crate) fn server(settings: Settings, upstream: Upstream) -> Server {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    Server::start(socket, settings, upstream).expect("started")
}

/// A server whose broker never answers.
pub(crate) fn before_silence(settings: Settings) -> Server {
    let held = std::sync::Mutex::new(Vec::new());
    let hold = move |stream, _: SocketAddr| held.lock().expect("whole").push(stream);
    server(settings, Upstream::memory(hold))
}

pub(crate) struct Subscriber<'a> {
    _client: Client,
    events: Events,
    runtime: &'a Runtime,
}

impl Subscriber<'_> {
    /// The next message.
    pub(crate) fn next(&mut self) -> Message {
        self.runtime.block_on(async {
            loop {
                let event = tokio::time::timeout(PATIENCE, self.events.recv()).await.expect("a message in time");
                if let ClientEvent::Message(message) = event.expect("connected") {
                    return message;
                }
            }
        })
    }

    /// Topic and payload of the next message.
    pub(crate) fn next_text(&mut self) -> (String, String) {
        let message = self.next();
        (message.topic.text().to_string(), String::from_utf8_lossy(&message.payload).into_owned())
    }
}
