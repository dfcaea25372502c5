//! The MQTT client of an HTTP connection.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use tenbin_client::{
    Client, ClientError, ClientErrorKind, ClientEvent, ClientOptions, Events, Message, OutgoingMessage, Reconnect,
    Subscription, SubscriptionOptions, TopicFilter, TopicName, Transport, TryRecvError,
};
use tenbin_client::{QoS, ReasonCode};

use crate::answer::Refusal;
use crate::credentials::Credentials;
use crate::upstream::Upstream;

/// The client, connected as requests need it: the first one connects it, and one with other credentials connects it anew.
pub(crate) struct Mqtt {
    upstream: Upstream,
    peer: SocketAddr,
    connected: Option<Connected>,
}

struct Connected {
    credentials: Option<Credentials>,
    client: Client,
    events: Events,
}

impl Mqtt {
    pub(crate) fn new(upstream: Upstream, peer: SocketAddr) -> Self {
        Self { upstream, peer, connected: None }
    }

    /// Connects the client by `credentials`, unless it is connected by them.
    pub(crate) async fn connect(&mut self, credentials: Option<Credentials>) -> Result<(), Refusal> {
        let is_the_same = |connected: &mut Connected| connected.credentials == credentials && !connected.has_ended();
        if self.connected.as_mut().is_some_and(is_the_same) {
            return Ok(());
        }
        self.connected = None; // It sends DISCONNECT.
        let (upstream, peer) = (self.upstream.clone(), self.peer);
        let transport = Transport::default().opened_by(move || std::future::ready(Ok(upstream.open(peer))));
        let mut options = ClientOptions::new("memory", "")
            .transport(transport)
            .keep_alive(Duration::ZERO)
            .reconnect(Reconnect::Never)
            .queue(QUEUE)
            .read_buffer(READ_BUFFER);
        if let Some(Credentials { user, password }) = &credentials {
            options = options.credentials(user, password.clone());
        }
        let (client, events) = Client::connect(options).await.map_err(|error| Refusal::of_login(&error))?;
        self.connected = Some(Connected { credentials, client, events });
        Ok(())
    }

    /// Forgets a client whose state is not known, after an operation that was given up.
    pub(crate) fn forget(&mut self) {
        self.connected = None;
    }

    /// Publishes a message, and waits for its acknowledgement.
    pub(crate) async fn publish(&mut self, message: OutgoingMessage) -> Result<(), Refusal> {
        let Some(Connected { client, .. }) = &self.connected else { return Err(not_connected()) };
        let request = format!("message to {:?}", message.topic.text().as_str());
        let published = async { client.publish(message).await?.await };
        match published.await {
            Ok(reason) if reason.is_error() => Err(Refusal::of_broker(&request, reason)),
            Ok(_) => Ok(()),
            Err(error) => Err(self.failed(&request, &error)),
        }
    }

    /// Reads the retained message of a topic.
    ///
    /// A subscription brings it before the answer to UNSUBSCRIBE. Messages published in between have no RETAIN.
    pub(crate) async fn retained(&mut self, topic: &TopicName) -> Result<Option<Message>, Refusal> {
        let Some(Connected { client, events, .. }) = &mut self.connected else { return Err(not_connected()) };
        let request = format!("retained message of {:?}", topic.text().as_str());
        let filter = TopicFilter::try_from(topic.text().as_str());
        let filter = filter.map_err(|error| Refusal::bad_request(format!("{request}: {error}")))?;
        let options = SubscriptionOptions::at(QoS::AtMostOnce);
        let subscription = Subscription { filter: filter.clone(), options };
        let mut found = None;
        let read = async {
            let reasons = answered(client.subscribe(vec![subscription]), events, &mut found).await?;
            if let Some(&reason) = reasons.iter().find(|reason| reason.is_error()) {
                return Ok(Some(reason));
            }
            answered(client.unsubscribe(vec![filter]), events, &mut found).await?;
            Ok(None::<ReasonCode>)
        };
        match read.await {
            Ok(None) => Ok(found),
            Ok(Some(reason)) => Err(Refusal::of_broker(&request, reason)),
            Err(error) => Err(self.failed(&request, &error)),
        }
    }

    fn failed(&mut self, request: &str, error: &ClientError) -> Refusal {
        if !matches!(error.kind(), ClientErrorKind::NotTaken(_) | ClientErrorKind::Expired) {
            self.connected = None;
        }
        Refusal::of_client(request, error)
    }
}

impl Connected {
    /// Whether the broker has ended the connection. Drops events of earlier requests.
    fn has_ended(&mut self) -> bool {
        loop {
            match self.events.try_recv() {
                Ok(ClientEvent::Disconnected { .. }) | Err(TryRecvError::Ended) => return true,
                Ok(_) => {}
                Err(TryRecvError::Empty) => return false,
            }
        }
    }
}

/// Waits for the broker's answer to a request, and takes the client's messages: while its queue is full, it reads
/// nothing.
async fn answered<T>(
    request: impl Future<Output = Result<T, ClientError>>,
    events: &mut Events,
    found: &mut Option<Message>,
) -> Result<T, ClientError> {
    let mut take = |event| match event {
        ClientEvent::Message(message) if message.retain => *found = Some(message),
        _ => {}
    };
    let mut request = pin!(request);
    let answer = loop {
        tokio::select! {
            answer = &mut request => break answer?,
            Some(event) = events.recv() => take(event),
        }
    };
    while let Ok(event) = events.try_recv() {
        take(event);
    }
    Ok(answer)
}

fn not_connected() -> Refusal {
    Refusal::new(hyper::StatusCode::SERVICE_UNAVAILABLE, "not connected to the broker")
}

/// Requests and events that wait in the client: a connection has one request at a time.
const QUEUE: usize = 4;
/// Answers of the broker are short, except retained messages.
const READ_BUFFER: usize = 1024;
