//! Kafka: a topic with partitions, by the client library krafka.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{FutureExt, LocalBoxFuture};
use krafka::admin::{CreateTopicsOptions, DescribeTopicsOptions, NewTopic};
use krafka::consumer::{AutoOffsetReset, Consumer, TopicPartition};
use krafka::error::ErrorCode;
use krafka::producer::{Acks, Producer};
use krafka::{Kafka, KrafkaError, Record};
use tenbin_loadgen::LoadgenError;
use tenbin_loadgen::run::{Driver, DriverFuture, DriverRun, Layout, Plan, RunClock, Slice};

use super::host::{self, Events, Side};
use super::names;
use super::protocol::{Arrival, Fate, Inlet, Outlet, Protocol};
use super::settings::{self, ACKS, PARTITIONS, REPLICAS};

/// The driver of Kafka, protocol `kafka`.
///
/// A message is published once the system has acknowledged it as the setting [`ACKS`] says, and received once a poll
/// returns it. The topic is named as the first level of the plan's topics; it is created with [`PARTITIONS`] and
/// [`REPLICAS`]. All messages of a stream go to one partition, so that their order is defined. A share group is a
/// consumer group. Batches and retries are those of Kafka's own client. QoS has no effect.
///
/// Connections are counted as lost and made again by what the client library counts, to half a second. A loss never
/// ends a run, as the library hides losses from its users.
#[derive(Debug, Clone, Copy)]
pub struct KafkaDriver;

impl Driver for KafkaDriver {
    fn protocol(&self) -> &'static str {
        Krafka::NAME
    }

    fn prepare(
        &self,
        plan: Arc<Plan>,
        layout: Arc<Layout>,
        slice: Slice,
        clock: RunClock,
    ) -> DriverFuture<'_, Box<dyn DriverRun>> {
        host::prepare::<Krafka>(plan, layout, slice, clock)
    }
}

struct Krafka;

impl Protocol for Krafka {
    const NAME: &'static str = "kafka";

    type Inlet = Polled;
    type Outlet = Produced;

    fn check(plan: &Plan) -> Result<(), LoadgenError> {
        settings::check(plan, Self::NAME, &[ACKS, PARTITIONS, REPLICAS])?;
        acks(plan)?;
        names::check_filters(plan)
    }

    async fn create(side: &Side) -> Result<(), LoadgenError> {
        let (partitions, replicas) = (settings::count(&side.plan, PARTITIONS)?, settings::count(&side.plan, REPLICAS)?);
        let name = format!("{}-topics", side.plan.connection.client_id_prefix);
        let refused = |error: KrafkaError| side.refused(&name, error);
        let admin = connect(side, &name, 0).await?.admin();
        for topic in topics(side) {
            let wanted = NewTopic::new(topic.clone(), partitions.into(), replicas as i16).map_err(refused)?;
            retry(async || {
                let mut created = admin.create_topics([wanted.clone()], CreateTopicsOptions::default()).await?;
                match created.remove(&topic) {
                    Some(Err(KrafkaError::Broker { code: ErrorCode::TopicAlreadyExists, .. })) | None => Ok(()),
                    Some(result) => result,
                }
            })
            .await
            .map_err(refused)?;
            // Brokers learn of a topic and of its leaders only after a while.
            retry(async || {
                let mut described = admin.describe_topics([&topic], DescribeTopicsOptions::default()).await?;
                let description =
                    described.remove(&topic).unwrap_or_else(|| Err(KrafkaError::unknown_topic(topic.clone())))?;
                let is_led = !description.partitions.is_empty()
                    && description.partitions.iter().all(|partition| partition.leader.is_some());
                if is_led { Ok(()) } else { Err(KrafkaError::unknown_topic(topic.clone())) }
            })
            .await
            .map_err(refused)?;
        }
        admin.close().await.map_err(refused)
    }

    async fn subscribe(side: &Side, number: u32) -> Result<Polled, LoadgenError> {
        let receiver = &side.layout.receivers()[number as usize];
        let audience = &side.plan.audiences[receiver.audience];
        let id = &receiver.client_id;
        let refused = |error: KrafkaError| side.refused(id, error);
        let kafka = connect(side, id, receiver.broker).await?;
        let topic = names::first_level(&audience.filter);

        // The position is fixed now: one that the first poll looks up would miss messages before it.
        let finder = kafka.consumer_without_group().metrics_push(false).build().await.map_err(refused)?;
        let positions = retry(async || positions(&finder, topic).await).await.map_err(refused)?;
        let builder = match &audience.share {
            Some(group) => kafka.consumer(format!("{}-{group}", side.plan.connection.client_id_prefix)),
            None => kafka.consumer_without_group(),
        };
        let builder = builder.metrics_push(false).auto_offset_reset(AutoOffsetReset::Earliest);
        let consumer = builder.initial_offsets(positions.clone()).build().await.map_err(refused)?;
        if audience.share.is_some() {
            consumer.subscribe([topic]).await.map_err(refused)?;
        } else {
            let partitions = positions.iter().map(|(partition, _)| partition.partition()).collect();
            consumer.assign(topic, partitions).await.map_err(refused)?;
            consumer.seek_many(positions).await.map_err(refused)?;
        }
        finder.close().await.map_err(refused)?;
        tokio::task::spawn_local(count_connections(side.events.clone(), kafka));
        Ok(Polled { consumer, waiting: VecDeque::new() })
    }

    async fn publisher(side: &Side, number: u32) -> Result<Produced, LoadgenError> {
        let id = side.layout.publisher_client_id(number);
        let refused = |error: KrafkaError| side.refused(&id, error);
        let kafka = connect(side, &id, side.layout.publisher_broker(number)).await?;
        let acks = acks(&side.plan)?;
        let builder = kafka.producer().acks(acks).idempotent(acks == Acks::All).metrics_push(false);
        let producer = builder.build().await.map_err(refused)?;
        let topics = side.plan.publishers.topics;
        let mut targets = Vec::new();
        for stream in number * topics..(number + 1) * topics {
            let topic = names::first_level(side.layout.topic(stream));
            let partitions = producer.partitions_for(topic).await.map_err(refused)?.len().max(1);
            targets.push((topic.to_owned(), (stream as usize % partitions) as i32));
        }
        tokio::task::spawn_local(count_connections(side.events.clone(), kafka));
        Ok(Produced { producer, targets })
    }
}

/// Connects client `id`, by the brokers from number `broker` on.
async fn connect(side: &Side, id: &str, broker: usize) -> Result<Kafka, LoadgenError> {
    let builder = Kafka::builder(side.doors(broker).join(",")).client_id(id);
    builder.connect().await.map_err(|error| side.refused(id, error))
}

/// The acknowledgements that publishers wait for.
fn acks(plan: &Plan) -> Result<Acks, LoadgenError> {
    match plan.settings.get(ACKS).map(String::as_str) {
        Some("0") => Ok(Acks::None),
        Some("1") => Ok(Acks::Leader),
        Some("all") | None => Ok(Acks::All),
        Some(other) => Err(LoadgenError::Arguments(format!("setting {ACKS}: {other:?} is none of 0, 1 and all"))),
    }
}

/// Names of all topics that the plan's topics and filters need.
fn topics(side: &Side) -> BTreeSet<String> {
    let topics = (0..side.layout.streams()).map(|stream| side.layout.topic(stream));
    let filters = side.plan.audiences.iter().map(|audience| audience.filter.as_str());
    topics.chain(filters).map(|topic| names::first_level(topic).to_owned()).collect()
}

/// Present ends of all partitions of `topic`.
async fn positions(consumer: &Consumer, topic: &str) -> krafka::Result<Vec<(TopicPartition, i64)>> {
    let metadata = consumer.fetch_metadata(Some(topic)).await?;
    let partitions = metadata.topics.iter().map(|topic| topic.partition_count()).sum::<usize>();
    let mut positions = Vec::new();
    for partition in 0..partitions as i32 {
        let (_, end) = consumer.fetch_watermarks(topic, partition).await?;
        positions.push((TopicPartition::new(topic, partition), end));
    }
    if positions.is_empty() { Err(KrafkaError::unknown_topic(topic)) } else { Ok(positions) }
}

/// Calls `attempt` until it succeeds, for half a minute at most.
async fn retry<T>(attempt: impl AsyncFn() -> krafka::Result<T>) -> krafka::Result<T> {
    let until = tokio::time::Instant::now() + CREATING;
    loop {
        match attempt().await {
            Err(_) if tokio::time::Instant::now() < until => tokio::time::sleep(AGAIN).await,
            result => return result,
        }
    }
}

/// Records lost connections and new ones, as the library counts them.
async fn count_connections(events: Events, kafka: Kafka) {
    let mut seen = kafka.metrics().connections;
    let mut missing = 0;
    loop {
        tokio::time::sleep(COUNTING).await;
        let now = kafka.metrics().connections;
        let closed = now.connections_closed.saturating_sub(seen.connections_closed);
        missing += closed;
        (0..closed).for_each(|_| events.lost_and_hidden());
        let made = now.connections_created.saturating_sub(seen.connections_created).min(missing);
        missing -= made;
        (0..made).for_each(|_| events.reconnected());
        seen = now;
    }
}

/// A consumer.
pub(super) struct Polled {
    consumer: Consumer,
    /// Payloads of a poll that were too many.
    waiting: VecDeque<Bytes>,
}

impl Inlet for Polled {
    async fn receive(&mut self, arrivals: &mut Vec<Arrival>, most: usize) {
        if self.waiting.is_empty() {
            match self.consumer.poll(POLLING).await {
                Ok(records) => self.waiting.extend(records.into_iter().filter_map(|record| record.value)),
                // The library connects again by itself.
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
        let count = self.waiting.len().min(most);
        arrivals.extend(self.waiting.drain(..count).map(Arrival::from));
    }

    async fn close(&mut self) {
        let _ = self.consumer.close().await;
    }
}

/// A producer.
pub(super) struct Produced {
    producer: Producer,
    /// Kafka's topic and partition for each of the publisher's topics.
    targets: Vec<(String, i32)>,
}

impl Outlet for Produced {
    const FLUSHES: bool = false;

    type Receipt = LocalBoxFuture<'static, Fate>;

    async fn send(&mut self, topic: u32, payload: Bytes) -> Result<Self::Receipt, Fate> {
        let (topic, partition) = &self.targets[topic as usize];
        let record = Record::new(topic.as_str(), payload).partition(*partition);
        let delivery = self.producer.enqueue(record).await.map_err(|error| fate(&error))?;
        let receipt = delivery.map(|result| match result {
            Ok(metadata) if metadata.is_persisted() => Fate::Acknowledged,
            Ok(_) => Fate::Written,
            Err(error) => fate(&error),
        });
        Ok(receipt.boxed_local())
    }

    async fn close(&mut self) {
        let _ = self.producer.close().await;
    }
}

/// How a record that was not acknowledged ended.
fn fate(error: &KrafkaError) -> Fate {
    match error {
        KrafkaError::DeliveryTimeout { possibly_written: false, .. } => Fate::Refused,
        // The leader has appended it and lacks an answer of others.
        KrafkaError::Broker { code: ErrorCode::NotEnoughReplicasAfterAppend | ErrorCode::RequestTimedOut, .. } => {
            Fate::Unconfirmed
        }
        KrafkaError::Broker { .. } | KrafkaError::UnknownTopic { .. } | KrafkaError::Serialization { .. } => {
            Fate::Refused
        }
        _ => Fate::Unconfirmed,
    }
}

/// Node number of the broker that leads partition 0 of `topic`, by any of the brokers at `doors` (`HOST:PORT`); `None`
/// while there is none.
///
/// # Errors
/// No broker answers, or the topic does not exist.
pub(super) async fn leader(doors: &[String], topic: &str) -> Result<Option<i32>, String> {
    let look = async {
        let kafka = Kafka::builder(doors.join(",")).client_id("tenbin-probe").connect().await?;
        let admin = kafka.admin();
        let mut described = admin.describe_topics([topic], DescribeTopicsOptions::default().timeout(PROBE)).await?;
        described.remove(topic).unwrap_or_else(|| Err(KrafkaError::unknown_topic(topic)))
    };
    let described = tokio::time::timeout(PROBE * 2, look).await.map_err(|_| "no answer in time".to_owned())?;
    let description = described.map_err(|error| error.to_string())?;
    Ok(description.partitions.first().and_then(|partition| partition.leader))
}

/// Longest wait of a probe for an answer.
const PROBE: Duration = Duration::from_secs(2);

/// Longest wait until a topic exists and has leaders.
const CREATING: Duration = Duration::from_secs(30);

/// Pause before something is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// Longest wait of one poll.
const POLLING: Duration = Duration::from_secs(1);

/// Interval between two looks at the library's counters.
const COUNTING: Duration = Duration::from_millis(500);
