//! Publishers over HTTP/1.1, at the ingest of a broker.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::LoadgenError;
use crate::run::{OnLost, Plan};
use base64ct::{Base64, Encoding};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tenbin_kit::digits::segment;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use super::host::{Events, Side};
use super::mqtt_subscriber::MqttSubscriber;
use super::protocol::{Fate, Outlet, Protocol};
use super::settings;

/// Publishers that send POST requests, protocol `http`.
///
/// A publisher sends its requests one after the other, on one connection. With the setting
/// [`Plan::CONNECTION_PER_REQUEST`] each request has its own. The subscribers are MQTT 5.0 clients of
/// [`Plan::MQTT_BROKER`].
pub(super) struct Http;

impl Protocol for Http {
    const NAME: &'static str = Plan::HTTP;

    type Inlet = MqttSubscriber;
    type Outlet = Publisher;

    fn check(plan: &Plan) -> Result<(), LoadgenError> {
        settings::check_nothing_of_mqtt(plan)?;
        settings::check_known(plan, &[Plan::MQTT_BROKER, Plan::CONNECTION_PER_REQUEST])?;
        match plan.settings.contains_key(Plan::MQTT_BROKER) {
            true => Ok(()),
            false => Err(LoadgenError::Arguments(format!("protocol http needs the setting {}", Plan::MQTT_BROKER))),
        }
    }

    async fn create(_: &Side) -> Result<(), LoadgenError> {
        Ok(())
    }

    async fn subscribe(side: &Side, number: u32) -> Result<MqttSubscriber, LoadgenError> {
        let broker = side.plan.settings.get(Plan::MQTT_BROKER).map_or("", String::as_str);
        MqttSubscriber::subscribe(side, number, broker).await
    }

    async fn publisher(side: &Side, number: u32) -> Result<Publisher, LoadgenError> {
        let id = side.layout.publisher_client_id(number);
        let door = side.doors(side.layout.publisher_broker(number)).into_iter().next().unwrap_or_default();
        let topics = side.plan.publishers.topics;
        let paths = (number * topics..(number + 1) * topics).map(|stream| path(side.layout.topic(stream)));
        let credentials = side.plan.connection.user_name.as_ref().map(|user| {
            let password = side.plan.connection.password.as_ref().map_or("", |password| password.expose());
            format!("Basic {}", Base64::encode_string(format!("{user}:{password}").as_bytes()))
        });
        let credentials = credentials.map(HeaderValue::try_from).transpose();
        let mut sender = Sender {
            host: HeaderValue::try_from(&door[..]).map_err(|error| side.refused(&id, error))?,
            door,
            credentials: credentials.map_err(|error| side.refused(&id, error))?,
            paths: paths.collect(),
            qos: side.plan.publishers.qos,
            is_connection_kept: !side.plan.settings.contains_key(Plan::CONNECTION_PER_REQUEST),
            connection: None,
        };
        let connection = sender.connect().await.map_err(|error| side.refused(&id, error))?;
        sender.connection = Some(connection);
        let pause = match side.plan.on_lost {
            OnLost::Reconnect { first, .. } => first,
            _ => Duration::ZERO,
        };
        let (orders, queue) = mpsc::channel(1);
        let sending =
            tokio::task::spawn_local(send_all(sender, queue, Losses { events: side.events.clone(), id, pause }));
        Ok(Publisher { orders, sending })
    }
}

/// Path of a topic, with all characters in percent-encoding that a path may not have.
fn path(topic: &str) -> String {
    format!("/topics/{}", topic.split('/').map(segment).collect::<Vec<_>>().join("/"))
}

/// A publisher.
pub(super) struct Publisher {
    orders: mpsc::Sender<Order>,
    sending: tokio::task::JoinHandle<()>,
}

/// A message to publish.
struct Order {
    topic: u32,
    payload: Bytes,
    fate: oneshot::Sender<Fate>,
}

/// End of a message at its publisher.
pub(super) struct Receipt(oneshot::Receiver<Fate>);

impl Future for Receipt {
    type Output = Fate;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Fate> {
        Pin::new(&mut self.0).poll(context).map(|fate| fate.unwrap_or(Fate::Unconfirmed))
    }
}

impl Outlet for Publisher {
    const FLUSHES: bool = false;

    type Receipt = Receipt;

    async fn send(&mut self, topic: u32, payload: Bytes) -> Result<Receipt, Fate> {
        let (fate, receipt) = oneshot::channel();
        match self.orders.send(Order { topic, payload, fate }).await {
            Ok(()) => Ok(Receipt(receipt)),
            Err(_) => Err(Fate::Refused),
        }
    }

    async fn close(&mut self) {
        self.sending.abort();
    }
}

/// Records lost connections.
struct Losses {
    events: Events,
    id: String,
    /// Before another try to connect.
    pause: Duration,
}

/// Sends all messages, one after the other.
async fn send_all(mut sender: Sender, mut queue: mpsc::Receiver<Order>, losses: Losses) {
    let mut is_lost = false;
    while let Some(Order { topic, payload, fate }) = queue.recv().await {
        let result = sender.publish(topic, payload).await;
        match &result {
            Ok(_) if is_lost => {
                is_lost = false;
                losses.events.reconnected();
            }
            Ok(_) => {}
            Err(failure) => {
                if !std::mem::replace(&mut is_lost, true) {
                    losses.events.lost(&losses.id, &failure.reason);
                }
                tokio::time::sleep(losses.pause).await;
            }
        }
        // The run may be over.
        let _ = fate.send(result.unwrap_or_else(|failure| failure.fate));
    }
}

/// Sends the requests of a publisher.
struct Sender {
    door: String,
    host: HeaderValue,
    credentials: Option<HeaderValue>,
    /// Paths of its topics.
    paths: Vec<String>,
    qos: u8,
    is_connection_kept: bool,
    connection: Option<SendRequest<Full<Bytes>>>,
}

/// A request without an answer.
struct Failure {
    fate: Fate,
    reason: String,
}

impl Sender {
    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let stream = TcpStream::connect(&self.door).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // A failure shows in the request under way.
        tokio::task::spawn_local(connection);
        Ok(sender)
    }

    async fn publish(&mut self, topic: u32, payload: Bytes) -> Result<Fate, Failure> {
        let kept = match self.connection.take() {
            Some(mut connection) => connection.ready().await.is_ok().then_some(connection),
            None => None,
        };
        let mut connection = match kept {
            Some(connection) => connection,
            // Nothing was sent.
            None => self.connect().await.map_err(|reason| Failure { fate: Fate::Refused, reason })?,
        };
        let unconfirmed = |error: hyper::Error| Failure { fate: Fate::Unconfirmed, reason: error.to_string() };
        let request = self.request(topic, payload).map_err(|reason| Failure { fate: Fate::Refused, reason })?;
        let answer = connection.send_request(request).await.map_err(unconfirmed)?;
        let status = answer.status();
        answer.into_body().collect().await.map_err(unconfirmed)?;
        if self.is_connection_kept {
            self.connection = Some(connection);
        }
        Ok(match status {
            StatusCode::NO_CONTENT if self.qos == 0 => Fate::Written,
            StatusCode::NO_CONTENT => Fate::Acknowledged,
            // The broker may have the message: its answer did not come.
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => Fate::Unconfirmed,
            _ => Fate::Refused,
        })
    }

    fn request(&self, topic: u32, payload: Bytes) -> Result<Request<Full<Bytes>>, String> {
        let path = &self.paths[topic as usize];
        let mut request = Request::post(format!("{path}?qos={}", self.qos)).header(header::HOST, self.host.clone());
        if let Some(credentials) = &self.credentials {
            request = request.header(header::AUTHORIZATION, credentials.clone());
        }
        if !self.is_connection_kept {
            request = request.header(header::CONNECTION, HeaderValue::from_static("close"));
        }
        request.body(Full::new(payload)).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn paths_have_percent_encoding() {
        assert_eq!(super::path("plant/1 a?ü"), "/topics/plant/1%20a%3F%C3%BC");
    }
}
