//! NATS with JetStream: a stream on disk, acknowledged messages, pull consumers.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::LoadgenError;
use crate::run::Plan;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use async_nats::jetstream::context::{ContextBuilder, PublishError, PublishErrorKind};
use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::jetstream::{self, Context, Message};
use bytes::Bytes;
use futures_util::future::{FutureExt, LocalBoxFuture};
use futures_util::stream::StreamExt;

use super::connection::connect;
use super::host::Side;
use super::names;
use super::protocol::{Arrival, Fate, Inlet, Outlet, Protocol};
use super::settings::{self, ACK_WAIT, REPLICAS};

/// JetStream, protocol `jetstream`.
///
/// A message is published with its PubAck, and received once a pull consumer has it, which then acknowledges it. Each
/// receiver has a durable consumer; the members of a share group have one together. The stream is named as the first
/// level of the topic and lies on disk, in as many copies as the setting [`REPLICAS`] says. QoS has no effect.
pub(super) struct Jetstream;

impl Protocol for Jetstream {
    const NAME: &'static str = "jetstream";

    type Inlet = Pulled;
    type Outlet = Acknowledged;

    fn check(plan: &Plan) -> Result<(), LoadgenError> {
        settings::check_nothing_of_mqtt(plan)?;
        settings::check_known(plan, &[ACK_WAIT, REPLICAS])?;
        settings::seconds(plan, ACK_WAIT)?;
        names::check_filters(plan)
    }

    async fn create(side: &Side) -> Result<(), LoadgenError> {
        let replicas = settings::count(&side.plan, REPLICAS)?;
        let name = format!("{}-streams", side.plan.connection.client_id_prefix);
        let context = jetstream::new(connect(side, &name, 0).await?);
        for stream in streams(side) {
            let config = Config {
                subjects: vec![stream.clone(), format!("{stream}.>")],
                storage: StorageType::File,
                num_replicas: replicas.into(),
                name: stream.clone(),
                ..Config::default()
            };
            // A new cluster refuses streams until it has elected a leader.
            let created = retry(|| context.get_or_create_stream(config.clone())).await;
            created.map_err(|error| side.refused(&format!("stream {stream}"), error))?;
        }
        Ok(())
    }

    async fn subscribe(side: &Side, number: u32) -> Result<Pulled, LoadgenError> {
        let receiver = &side.layout.receivers()[number as usize];
        let audience = &side.plan.audiences[receiver.audience];
        let id = &receiver.client_id;
        let context = jetstream::new(connect(side, id, receiver.broker).await?);
        let filter = audience.filter.replace("{subscriber}", &receiver.member.to_string());
        let consumer = match &audience.share {
            Some(group) => format!("{}-{group}", side.plan.connection.client_id_prefix),
            None => id.clone(),
        };
        // A durable name: without it the consumer would end with its server.
        let config = pull::Config {
            durable_name: Some(consumer.clone()),
            deliver_policy: DeliverPolicy::New,
            ack_policy: AckPolicy::Explicit,
            ack_wait: settings::seconds(&side.plan, ACK_WAIT)?,
            filter_subject: names::subject(&filter),
            ..pull::Config::default()
        };
        let stream = names::first_level(&filter).to_owned();
        let found = retry(|| context.create_consumer_on_stream(config.clone(), stream.clone())).await;
        let consumer = found.map_err(|error| side.refused(id, error))?;
        Ok(Pulled { consumer, stream: None, unacknowledged: Vec::new() })
    }

    async fn publisher(side: &Side, number: u32) -> Result<Acknowledged, LoadgenError> {
        let id = side.layout.publisher_client_id(number);
        let client = connect(side, &id, side.layout.publisher_broker(number)).await?;
        let in_flight = usize::from(side.plan.publishers.in_flight.max(1));
        let context =
            ContextBuilder::new().max_ack_inflight(in_flight + 1).backpressure_on_inflight(true).build(client);
        let topics = side.plan.publishers.topics;
        let streams = number * topics..(number + 1) * topics;
        let subjects = streams.map(|stream| names::subject(side.layout.topic(stream))).collect();
        Ok(Acknowledged { context, subjects })
    }
}

/// Names of all streams that the plan's topics and filters need.
fn streams(side: &Side) -> BTreeSet<String> {
    let topics = (0..side.layout.streams()).map(|stream| side.layout.topic(stream));
    let filters = side.plan.audiences.iter().map(|audience| audience.filter.as_str());
    topics.chain(filters).map(|topic| names::first_level(topic).to_owned()).collect()
}

/// Calls `attempt` until it succeeds, for half a minute at most.
async fn retry<T, E, F: IntoFuture<Output = Result<T, E>>>(mut attempt: impl FnMut() -> F) -> Result<T, E> {
    let until = tokio::time::Instant::now() + CREATING;
    loop {
        match attempt().await {
            Err(_) if tokio::time::Instant::now() < until => tokio::time::sleep(AGAIN).await,
            result => return result,
        }
    }
}

/// A pull consumer.
pub(super) struct Pulled {
    consumer: PullConsumer,
    stream: Option<pull::Stream>,
    unacknowledged: Vec<Message>,
}

impl Pulled {
    /// The next message; `None` if the stream of messages has to be begun anew.
    async fn next(&mut self) -> Option<Message> {
        if self.stream.is_none() {
            let messages = self.consumer.stream().heartbeat(HEARTBEAT).messages().await;
            match messages {
                Ok(stream) => self.stream = Some(stream),
                Err(_) => {
                    tokio::time::sleep(AGAIN).await;
                    return None;
                }
            }
        }
        match self.stream.as_mut()?.next().await {
            Some(Ok(message)) => Some(message),
            // The library asks again after a missed heartbeat.
            Some(Err(error)) if error.kind() == pull::MessagesErrorKind::MissingHeartbeat => None,
            Some(Err(_)) | None => {
                self.stream = None;
                tokio::time::sleep(AGAIN).await;
                None
            }
        }
    }
}

impl Inlet for Pulled {
    async fn receive(&mut self, arrivals: &mut Vec<Arrival>, most: usize) {
        let mut message = self.next().await;
        while let Some(taken) = message {
            let is_repeated = taken.info().is_ok_and(|info| info.delivered > 1);
            arrivals.push(Arrival { payload: taken.payload.clone(), is_repeated });
            self.unacknowledged.push(taken);
            let next = self.stream.as_mut().filter(|_| arrivals.len() < most);
            message = match next.and_then(|stream| stream.next().now_or_never()) {
                Some(Some(Ok(message))) => Some(message),
                // The next call meets the end or the error again.
                _ => None,
            };
        }
    }

    async fn acknowledge(&mut self) {
        for message in self.unacknowledged.drain(..) {
            // It fails without a connection; the server then sends the message again.
            let _ = message.ack().await;
        }
    }
}

/// A connection of a publisher.
pub(super) struct Acknowledged {
    context: Context,
    subjects: Vec<String>,
}

impl Outlet for Acknowledged {
    const FLUSHES: bool = false;

    type Receipt = LocalBoxFuture<'static, Fate>;

    async fn send(&mut self, topic: u32, payload: Bytes) -> Result<Self::Receipt, Fate> {
        let subject = self.subjects[topic as usize].clone();
        let acknowledgement = self.context.publish(subject, payload).await.map_err(|error| fate(&error))?;
        let receipt = acknowledgement.into_future().map(|result| match result {
            Ok(_) => Fate::Acknowledged,
            Err(error) => fate(&error),
        });
        Ok(receipt.boxed_local())
    }
}

/// How a message without a PubAck ended.
fn fate(error: &PublishError) -> Fate {
    use std::error::Error;

    let is_answer = error.source().is_some_and(|source| source.is::<jetstream::Error>());
    match error.kind() {
        // No server has the stream at present, or the message is too large.
        PublishErrorKind::StreamNotFound | PublishErrorKind::MaxPayloadExceeded => Fate::Refused,
        _ if is_answer => Fate::Refused,
        _ => Fate::Unconfirmed,
    }
}

/// Name of the server that leads `stream`, by any of the servers at `doors` (`HOST:PORT`); `None` while there is none.
///
/// Without a cluster it is the only server's name.
///
/// # Errors
/// No server answers, or the stream does not exist.
pub async fn leader(doors: &[String], stream: &str) -> Result<Option<String>, String> {
    let options = async_nats::ConnectOptions::new().connection_timeout(PROBE).retain_servers_order();
    let client = options.connect(doors).await.map_err(|error| error.to_string())?;
    let mut context = jetstream::new(client.clone());
    context.set_timeout(PROBE);
    let mut stream = context.get_stream(stream).await.map_err(|error| error.to_string())?;
    let info = stream.info().await.map_err(|error| error.to_string())?;
    match &info.cluster {
        None => Ok(Some(client.server_info().server_name)),
        Some(cluster) => Ok(cluster.leader.clone().filter(|leader| !leader.is_empty())),
    }
}

/// Longest wait of a probe for an answer.
const PROBE: Duration = Duration::from_secs(2);

/// Longest wait until a stream or a consumer exists.
const CREATING: Duration = Duration::from_secs(30);

/// Pause before something is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// Interval of the server's signs of life in a pull. Without one for twice this time the consumer pulls anew.
const HEARTBEAT: Duration = Duration::from_secs(2);
