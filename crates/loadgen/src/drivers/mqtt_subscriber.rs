//! Subscribers over MQTT 5.0, for protocols whose publishers are at a gateway.

use crate::LoadgenError;
use futures_util::future::FutureExt;
use tenbin_client::{Client, ClientEvent, ClientOptions, Events, QoS, Subscription, SubscriptionOptions, TopicFilter};

use super::host::Side;
use super::protocol::{Arrival, Inlet};

/// A subscriber over MQTT 5.0.
pub(super) struct MqttSubscriber {
    events: Events,
    _client: Client,
}

impl MqttSubscriber {
    /// Connects receiver `number` of the layout to the broker at `broker` (`HOST:PORT`), and subscribes.
    ///
    /// # Errors
    /// The broker cannot be reached, or refuses.
    pub(super) async fn subscribe(side: &Side, number: u32, broker: &str) -> Result<Self, LoadgenError> {
        let (id, filter, qos) = subscription(side, number);
        let refused = |reason: String| side.refused(id, reason);
        let filter = TopicFilter::try_from(&filter[..]).map_err(|error| refused(error.to_string()))?;
        let qos = QoS::from_bits(qos).unwrap_or_default();
        let connected = Client::connect(ClientOptions::new(broker, id).queue(QUEUE)).await;
        let (client, events) = connected.map_err(|error| refused(error.to_string()))?;
        let subscription = Subscription { filter, options: SubscriptionOptions::at(qos) };
        let codes = client.subscribe(vec![subscription]).await.map_err(|error| refused(error.to_string()))?;
        match codes.iter().find(|code| code.is_error()) {
            Some(code) => Err(refused(format!("SUBSCRIBE was refused: {code}"))),
            None => Ok(Self { events, _client: client }),
        }
    }

    /// Waits for the next event; `None` if it is no message.
    async fn next(&mut self) -> Option<Arrival> {
        match self.events.recv().await {
            Some(ClientEvent::Message(message)) => Some(Arrival { payload: message.payload, is_repeated: message.dup }),
            Some(_) => None,
            // The client has ended; the run's failure says why.
            None => std::future::pending().await,
        }
    }
}

impl Inlet for MqttSubscriber {
    async fn receive(&mut self, arrivals: &mut Vec<Arrival>, most: usize) {
        arrivals.extend(self.next().await);
        while arrivals.len() < most
            && let Some(arrival) = self.next().now_or_never()
        {
            arrivals.extend(arrival);
        }
    }
}

/// Client Identifier, Topic Filter and QoS of receiver `number` of the layout.
pub(super) fn subscription(side: &Side, number: u32) -> (&str, String, u8) {
    let receiver = &side.layout.receivers()[number as usize];
    let audience = &side.plan.audiences[receiver.audience];
    let name = audience.filter.replace("{subscriber}", &receiver.member.to_string());
    let filter = audience.share.as_ref().map_or_else(|| name.clone(), |group| format!("$share/{group}/{name}"));
    (&receiver.client_id, filter, audience.qos)
}

/// Messages in the queue of a client.
const QUEUE: usize = 1024;
