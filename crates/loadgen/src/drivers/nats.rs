//! Core NATS: messages without persistence and acknowledgement.

use std::time::Duration;

use crate::LoadgenError;
use crate::run::Plan;
use async_nats::{Client, Subscriber};
use bytes::Bytes;
use futures_util::future::{FutureExt, Ready, ready};
use futures_util::stream::StreamExt;

use super::connection::connect;
use super::host::Side;
use super::protocol::{Arrival, Fate, Inlet, Outlet, Protocol};
use super::{names, settings};

/// Core NATS, protocol `nats`.
///
/// A message is published once it is written to the socket, and received once the server has pushed it. A share group
/// is a queue group. QoS has no effect.
pub(super) struct Nats;

impl Protocol for Nats {
    const NAME: &'static str = "nats";

    type Inlet = Pushed;
    type Outlet = Flushed;

    fn check(plan: &Plan) -> Result<(), LoadgenError> {
        settings::check_nothing_of_mqtt(plan)?;
        settings::check_known(plan, &[])
    }

    async fn create(_: &Side) -> Result<(), LoadgenError> {
        Ok(())
    }

    async fn subscribe(side: &Side, number: u32) -> Result<Pushed, LoadgenError> {
        let receiver = &side.layout.receivers()[number as usize];
        let audience = &side.plan.audiences[receiver.audience];
        let id = &receiver.client_id;
        let client = connect(side, id, receiver.broker).await?;
        let filter = audience.filter.replace("{subscriber}", &receiver.member.to_string());
        let subject = names::subject(&filter);
        let subscribed = match &audience.share {
            Some(group) => client.queue_subscribe(subject, group.clone()).await,
            None => client.subscribe(subject).await,
        };
        let subscriber = subscribed.map_err(|error| side.refused(id, error))?;
        answer(side, &client, number).await.map_err(|error| side.refused(id, error))?;
        Ok(Pushed { subscriber, _client: client })
    }

    async fn publisher(side: &Side, number: u32) -> Result<Flushed, LoadgenError> {
        let id = side.layout.publisher_client_id(number);
        let client = connect(side, &id, side.layout.publisher_broker(number)).await?;
        find_receivers(side, &client).await.map_err(|reason| side.refused(&id, reason))?;
        let topics = side.plan.publishers.topics;
        let streams = number * topics..(number + 1) * topics;
        let subjects = streams.map(|stream| names::subject(side.layout.topic(stream))).collect();
        Ok(Flushed { client, subjects })
    }
}

/// Subject of requests that receiver `number` answers.
fn presence(side: &Side, number: u32) -> String {
    format!("_tenbin.{:04x}.{number}", side.plan.tag)
}

/// Answers requests to receiver `number` until the run ends.
///
/// The subscription follows the load's subscription on the same connection. So a server that knows this subscription
/// knows the load's subscription too.
async fn answer(side: &Side, client: &Client, number: u32) -> Result<(), async_nats::Error> {
    let mut requests = client.subscribe(presence(side, number)).await?;
    client.flush().await?;
    let client = client.clone();
    tokio::task::spawn_local(async move {
        while let Some(request) = requests.next().await {
            if let Some(reply) = request.reply
                && client.publish(reply, Bytes::new()).await.is_err()
            {
                break;
            }
        }
    });
    Ok(())
}

/// Waits until the publisher's server knows all subscriptions, which servers tell each other only after a while.
///
/// # Errors
/// A receiver does not answer in time.
async fn find_receivers(side: &Side, client: &Client) -> Result<(), String> {
    let brokers = side.plan.brokers.len();
    let is_one_system = side.plan.doors == crate::run::Doors::OneSystem || brokers == 1;
    // Receivers at other, independent servers never answer.
    let numbers = if is_one_system { 0..side.layout.receivers().len() as u32 } else { 0..0 };
    let found = async {
        for number in numbers {
            // A server without the subscription answers at once that there are no responders.
            while client.request(presence(side, number), Bytes::new()).await.is_err() {
                tokio::time::sleep(AGAIN).await;
            }
        }
    };
    tokio::time::timeout(FINDING, found).await.map_err(|_| "its server does not know all subscriptions".to_owned())
}

/// A subscription.
pub(super) struct Pushed {
    subscriber: Subscriber,
    _client: Client,
}

impl Inlet for Pushed {
    async fn receive(&mut self, arrivals: &mut Vec<Arrival>, most: usize) {
        match self.subscriber.next().await {
            Some(message) => arrivals.push(message.payload.into()),
            // The client has ended, which only an invalid server reply causes; the messages count as lost.
            None => std::future::pending().await,
        }
        while arrivals.len() < most
            && let Some(Some(message)) = self.subscriber.next().now_or_never()
        {
            arrivals.push(message.payload.into());
        }
    }
}

/// A connection of a publisher.
pub(super) struct Flushed {
    client: Client,
    subjects: Vec<String>,
}

impl Outlet for Flushed {
    const FLUSHES: bool = true;

    type Receipt = Ready<Fate>;

    async fn send(&mut self, topic: u32, payload: Bytes) -> Result<Ready<Fate>, Fate> {
        let subject = self.subjects[topic as usize].clone();
        match self.client.publish(subject, payload).await {
            Ok(()) => Ok(ready(Fate::Written)),
            Err(_) => Err(Fate::Refused),
        }
    }

    async fn flush(&mut self) -> Fate {
        match self.client.flush().await {
            Ok(()) => Fate::Written,
            Err(_) => Fate::Unconfirmed,
        }
    }
}

/// Longest wait for subscriptions to be known at a publisher's server.
const FINDING: Duration = Duration::from_secs(10);

/// Pause between two requests to a receiver.
const AGAIN: Duration = Duration::from_millis(20);
