use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenbin_sn_codec::v1_2::QoS;
use tokio::sync::{mpsc, oneshot};

use crate::command::{Command, Reply, Request};
use crate::options::check_will;
use crate::shared::Shared;
use crate::task::{self, Channels};
use crate::{ClientError, ClientErrorKind, ClientOptions, Events, OutgoingMessage, PublishTicket, Topic, Will, events};

/// Handle of a client; clones share the client. Dropping the last one disconnects in the background, as
/// [`disconnect`](Self::disconnect) does.
///
/// Requests are sent one at a time, in order: the next one follows the answer, which MQTT-SN demands. While there is no
/// connection they wait.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    leave: mpsc::Sender<Reply>,
}

impl Client {
    /// Connects to the first gateway that accepts the client, and starts the client's task on the current runtime.
    ///
    /// Tries each gateway once, in order; [`ClientOptions::reconnect`] governs later connections.
    ///
    /// # Errors
    /// The options are invalid, or no gateway accepted.
    ///
    /// # Panics
    /// Outside a tokio runtime with network and time.
    pub async fn connect(options: ClientOptions) -> Result<(Self, Events), ClientError> {
        let shared = Arc::new(Shared { client_id: options.client_id.as_str().into(), end: OnceLock::new() });
        let (command_sender, commands) = mpsc::channel(options.queue);
        let (leave_sender, leave) = mpsc::channel(1);
        let (event_sender, event_receiver) = events::queue(options.queue);
        let channels = Channels { commands, leave, events: event_sender };
        task::start(options, Arc::clone(&shared), channels).await.map_err(|kind| shared.error(kind))?;
        Ok((Self { shared, commands: command_sender, leave: leave_sender }, event_receiver))
    }

    /// Registers a topic name, so that its first message needs no REGISTER. [`publish`](Self::publish) registers too.
    ///
    /// # Errors
    /// The name is illegal, the gateway rejected it, or the client sleeps or has ended.
    pub async fn register(&self, name: &str) -> Result<(), ClientError> {
        self.check(Topic::from(name).check_name())?;
        self.request(Request::Register(name.to_owned())).await.map(drop)
    }

    /// Queues a message; waits while the queue is full.
    ///
    /// The ticket resolves to the result. Cancel safe: if cancelled, the message is not queued.
    ///
    /// # Errors
    /// MQTT-SN does not allow the message, or the client has ended.
    pub async fn publish(&self, message: OutgoingMessage) -> Result<PublishTicket, ClientError> {
        self.check(message.check())?;
        let (reply, answer) = oneshot::channel();
        self.send(Command::Request(Request::Publish(message), reply)).await?;
        Ok(PublishTicket { shared: Arc::clone(&self.shared), answer })
    }

    /// Subscribes and waits for SUBACK. Returns the granted QoS.
    ///
    /// Not cancel safe: if cancelled, the subscription may have been made.
    ///
    /// # Errors
    /// The filter is illegal, the gateway rejected it, or the client sleeps or has ended.
    pub async fn subscribe(&self, filter: impl Into<Topic>, qos: QoS) -> Result<QoS, ClientError> {
        let filter = filter.into();
        self.check(filter.check_filter())?;
        let granted = self.request(Request::Subscribe(filter, qos)).await?;
        Ok(granted.unwrap_or_default())
    }

    /// Unsubscribes and waits for UNSUBACK.
    ///
    /// # Errors
    /// The filter is illegal, or the client sleeps or has ended.
    pub async fn unsubscribe(&self, filter: impl Into<Topic>) -> Result<(), ClientError> {
        let filter = filter.into();
        self.check(filter.check_filter())?;
        self.request(Request::Unsubscribe(filter)).await.map(drop)
    }

    /// Replaces the Will, on this connection and on later ones; `None` deletes it.
    ///
    /// # Errors
    /// The Will is illegal, the gateway rejected it, or the client sleeps or has ended.
    pub async fn update_will(&self, will: Option<Will>) -> Result<(), ClientError> {
        self.check(will.as_ref().map_or(Ok(()), check_will))?;
        self.request(Request::UpdateWill(will)).await.map(drop)
    }

    /// Falls asleep, once all earlier requests are answered. The gateway keeps messages for the sleeping client.
    ///
    /// `time` is rounded up to whole seconds, 1 to 65,535. Sleep on, [`wake`](Self::wake) or
    /// [`activate`](Self::activate) within it, or the gateway publishes the Will and ends the connection.
    ///
    /// # Errors
    /// The time is 0 or too long, the connection was lost, or the client has ended.
    pub async fn sleep(&self, time: Duration) -> Result<(), ClientError> {
        let seconds = time.as_millis().div_ceil(1000);
        let Ok(seconds @ 1..) = u16::try_from(seconds) else {
            return self.check(Err(format!("sleep of {seconds} s: want 1 to 65,535 s")));
        };
        self.command(|reply| Command::Sleep(seconds, reply)).await.map(drop)
    }

    /// Fetches the messages that the gateway kept. Returns when they are in [`Events`]; the client sleeps on.
    ///
    /// More messages than the event queue holds come only while the application takes events.
    ///
    /// # Errors
    /// The client does not sleep, the connection was lost, or the client has ended.
    pub async fn wake(&self) -> Result<(), ClientError> {
        self.command(Command::Wake).await.map(drop)
    }

    /// Ends sleep: the client receives messages at any time, and may send requests.
    ///
    /// # Errors
    /// The client does not sleep, the connection was lost, or the client has ended.
    pub async fn activate(&self) -> Result<(), ClientError> {
        self.command(Command::Activate).await.map(drop)
    }

    /// Ends the client with all its handles: waits for the answers to queued requests, then sends DISCONNECT.
    ///
    /// DISCONNECT discards the Will. No handle accepts requests after the call. Not cancel safe: if cancelled, the
    /// client ends nevertheless.
    ///
    /// # Errors
    /// There is no connection, or it was lost before the answer.
    pub async fn disconnect(self) -> Result<(), ClientError> {
        let (reply, answer) = oneshot::channel();
        self.leave.send(reply).await.map_err(|_| self.shared.ended())?;
        self.shared.outcome(answer.await).map(drop)
    }

    async fn request(&self, request: Request) -> Result<Option<QoS>, ClientError> {
        self.command(|reply| Command::Request(request, reply)).await
    }

    async fn command(&self, command: impl FnOnce(Reply) -> Command) -> Result<Option<QoS>, ClientError> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply)).await?;
        self.shared.outcome(answer.await)
    }

    async fn send(&self, command: Command) -> Result<(), ClientError> {
        self.commands.send(command).await.map_err(|_| self.shared.ended())
    }

    fn check(&self, result: Result<(), String>) -> Result<(), ClientError> {
        result.map_err(|fault| self.shared.error(ClientErrorKind::Invalid(fault)))
    }
}
