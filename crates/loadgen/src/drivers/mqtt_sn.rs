//! MQTT-SN 1.2 over UDP, through a gateway or at a broker that speaks it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::LoadgenError;
use crate::run::{OnLost, Plan};
use bytes::Bytes;
use futures_util::future::FutureExt;
use tenbin_sn_client::{
    Client, ClientErrorKind, ClientEvent, ClientOptions, OutgoingMessage, PublishTicket, QoS, Topic,
};

use super::host::{Events, Side};
use super::mqtt_subscriber::{self, MqttSubscriber};
use super::protocol::{Arrival, Fate, Inlet, Outlet, Protocol};
use super::settings;

/// MQTT-SN clients, protocol `mqtt-sn`.
///
/// A client has one message of QoS 1 or 2 under way, as the specification says. With the setting
/// [`Plan::MQTT_BROKER`] the subscribers are MQTT 5.0 clients of that broker, so that the gateway carries one direction
/// alone.
pub(super) struct MqttSn;

impl Protocol for MqttSn {
    const NAME: &'static str = Plan::MQTT_SN;

    type Inlet = Subscribed;
    type Outlet = Publisher;

    fn check(plan: &Plan) -> Result<(), LoadgenError> {
        settings::check_nothing_of_mqtt(plan)?;
        settings::check_known(plan, &[Plan::MQTT_BROKER])
    }

    async fn create(_: &Side) -> Result<(), LoadgenError> {
        Ok(())
    }

    async fn subscribe(side: &Side, number: u32) -> Result<Subscribed, LoadgenError> {
        if let Some(broker) = side.plan.settings.get(Plan::MQTT_BROKER) {
            return Ok(Subscribed::Mqtt(MqttSubscriber::subscribe(side, number, broker).await?));
        }
        let (id, filter, at) = mqtt_subscriber::subscription(side, number);
        let gateway = side.layout.receivers()[number as usize].broker;
        let (client, events) = connect(side, id, gateway).await?;
        client.subscribe(&filter[..], qos(at)).await.map_err(|error| side.refused(id, error))?;
        Ok(Subscribed::MqttSn { events, watch: Watch::new(side, id), _client: client })
    }

    async fn publisher(side: &Side, number: u32) -> Result<Publisher, LoadgenError> {
        let id = side.layout.publisher_client_id(number);
        let (client, mut events) = connect(side, &id, side.layout.publisher_broker(number)).await?;
        let topics = side.plan.publishers.topics;
        let streams = number * topics..(number + 1) * topics;
        let topics: Vec<_> = streams.map(|stream| side.layout.topic(stream).to_owned()).collect();
        for topic in &topics {
            client.register(topic).await.map_err(|error| side.refused(&id, error))?;
        }
        let mut watch = Watch::new(side, &id);
        let watching = tokio::task::spawn_local(async move {
            while let Some(event) = events.recv().await {
                watch.saw(&event);
            }
        });
        let topics = topics.iter().map(|topic| Topic::from(&topic[..])).collect();
        Ok(Publisher { client: Some(client), topics, qos: qos(side.plan.publishers.qos), watching })
    }
}

fn qos(number: u8) -> QoS {
    match number {
        0 => QoS::AtMostOnce,
        1 => QoS::AtLeastOnce,
        _ => QoS::ExactlyOnce,
    }
}

/// Connects a client to the first of the plan's gateways from number `gateway` on that accepts it.
async fn connect(side: &Side, id: &str, gateway: usize) -> Result<(Client, tenbin_sn_client::Events), LoadgenError> {
    let mut gateways = side.doors(gateway).into_iter();
    let first = gateways.next().unwrap_or_default();
    let options = gateways.fold(ClientOptions::new(first, id), ClientOptions::gateway);
    let reconnect = match side.plan.on_lost {
        OnLost::Reconnect { first, .. } => Some(first),
        _ => None,
    };
    let options = options
        .keep_alive(Duration::from_secs(side.plan.connection.keep_alive.into()))
        .retry(RETRY, RETRIES)
        .reconnect(reconnect)
        .queue(QUEUE);
    Client::connect(options).await.map_err(|error| side.refused(id, error))
}

/// Records lost connections.
pub(super) struct Watch {
    events: Events,
    client_id: String,
    is_lost: bool,
}

impl Watch {
    fn new(side: &Side, client_id: &str) -> Self {
        Self { events: side.events.clone(), client_id: client_id.to_owned(), is_lost: false }
    }

    fn saw(&mut self, event: &ClientEvent) {
        match event {
            ClientEvent::Disconnected(failure) if !std::mem::replace(&mut self.is_lost, true) => {
                self.events.lost(&self.client_id, &failure.to_string());
            }
            ClientEvent::Connected { .. } if std::mem::take(&mut self.is_lost) => self.events.reconnected(),
            _ => {}
        }
    }
}

/// A subscriber.
pub(super) enum Subscribed {
    MqttSn { events: tenbin_sn_client::Events, watch: Watch, _client: Client },
    Mqtt(MqttSubscriber),
}

impl Inlet for Subscribed {
    async fn receive(&mut self, arrivals: &mut Vec<Arrival>, most: usize) {
        let (events, watch) = match self {
            Self::Mqtt(subscriber) => return subscriber.receive(arrivals, most).await,
            Self::MqttSn { events, watch, .. } => (events, watch),
        };
        arrivals.extend(next(events, watch).await);
        while arrivals.len() < most
            && let Some(arrival) = next(events, watch).now_or_never()
        {
            arrivals.extend(arrival);
        }
    }
}

/// Waits for the next event; `None` if it is no message.
async fn next(events: &mut tenbin_sn_client::Events, watch: &mut Watch) -> Option<Arrival> {
    match events.recv().await {
        Some(ClientEvent::Message(message)) => Some(message.payload.into()),
        Some(event) => {
            watch.saw(&event);
            None
        }
        // The client has ended; the run's failure says why.
        None => std::future::pending().await,
    }
}

/// A publisher.
pub(super) struct Publisher {
    client: Option<Client>,
    topics: Vec<Topic>,
    qos: QoS,
    watching: tokio::task::JoinHandle<()>,
}

/// End of a message at its publisher.
pub(super) struct Receipt {
    ticket: PublishTicket,
    qos: QoS,
}

impl Future for Receipt {
    type Output = Fate;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Fate> {
        let qos = self.qos;
        Pin::new(&mut self.ticket).poll(context).map(|result| match result {
            Ok(()) if qos == QoS::AtMostOnce => Fate::Written,
            Ok(()) => Fate::Acknowledged,
            Err(error) if matches!(error.kind(), ClientErrorKind::Rejected(_)) => Fate::Refused,
            Err(_) => Fate::Unconfirmed,
        })
    }
}

impl Outlet for Publisher {
    const FLUSHES: bool = false;

    type Receipt = Receipt;

    async fn send(&mut self, topic: u32, payload: Bytes) -> Result<Receipt, Fate> {
        let Some(client) = &self.client else { return Err(Fate::Refused) };
        let topic = self.topics[topic as usize].clone();
        match client.publish(OutgoingMessage::new(topic, payload).at(self.qos)).await {
            Ok(ticket) => Ok(Receipt { ticket, qos: self.qos }),
            Err(_) => Err(Fate::Refused),
        }
    }

    async fn close(&mut self) {
        self.watching.abort();
        if let Some(client) = self.client.take() {
            // The gateway may be gone.
            let _ = client.disconnect().await;
        }
    }
}

/// Time until an unanswered message is sent again, and its repetitions.
const RETRY: Duration = Duration::from_secs(1);
const RETRIES: u8 = 10;
/// Messages in the queues of a client.
const QUEUE: usize = 1024;
