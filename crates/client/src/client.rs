use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tenbin_codec::{ReasonCode, Subscription, TopicFilter};
use tenbin_session::Publication;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::command::{Command, Control};
use crate::message::Acknowledgement;
use crate::task::{self, Channels};
use crate::{
    ClientError, ClientErrorKind, ClientOptions, DisconnectReason, Events, Message, OutgoingMessage, PublishTicket,
    TryPublishError,
};

/// Handle of a client; clones speak for the same one. When the last is dropped, the client disconnects as
/// [`disconnect`](Self::disconnect) does, without anyone waiting for it.
///
/// Requests are carried out in the order in which they enter the queue, but for one thing: QoS 1 and 2 messages that
/// the broker's Receive Maximum holds back are overtaken by what it does not hold back. As many of them may wait as the
/// queue has places.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    acknowledgements: mpsc::Sender<Arc<Acknowledgement>>,
    control: mpsc::Sender<Control>,
}

impl Client {
    /// Connects and starts the client's task on the current runtime. The first connection has to succeed, within
    /// ten seconds; whether later ones are made is up to [`ClientOptions::reconnect`].
    ///
    /// # Errors
    /// Illegal options, no TCP connection, the broker's refusal, no answer.
    ///
    /// # Panics
    /// Outside a tokio runtime with network and time.
    pub async fn connect(options: ClientOptions) -> Result<(Self, Events), ClientError> {
        let shared = Arc::new(Shared {
            broker: options.broker.as_str().into(),
            client_id: options.client_id.as_str().into(),
            end: OnceLock::new(),
        });
        let (command_sender, commands) = mpsc::channel(options.queue);
        let (acknowledgement_sender, acknowledgements) = mpsc::channel(ACKNOWLEDGEMENTS_MAX);
        let (control_sender, control) = mpsc::channel(1);
        let (events, event_receiver) = mpsc::channel(options.queue);
        let channels = Channels { commands, acknowledgements, control, events };
        task::start(options, Arc::clone(&shared), channels).await.map_err(|kind| shared.error(kind))?;
        let client = Self {
            shared,
            commands: command_sender,
            acknowledgements: acknowledgement_sender,
            control: control_sender,
        };
        Ok((client, Events(event_receiver)))
    }

    /// Puts a message into the queue; waits while it is full, which it stays without a connection. The ticket
    /// tells what becomes of the message. Cancel safe: cancelled, the message is not in the queue.
    ///
    /// # Errors
    /// The message is none that MQTT allows, or the client has ended.
    pub async fn publish(&self, message: OutgoingMessage) -> Result<PublishTicket, ClientError> {
        let (command, ticket) = self.publish_command(message)?;
        self.send(command).await?;
        Ok(ticket)
    }

    /// Puts a message into the queue if it has room; never waits.
    ///
    /// # Errors
    /// The queue is full, or those of [`publish`](Self::publish).
    pub fn try_publish(&self, message: OutgoingMessage) -> Result<PublishTicket, TryPublishError> {
        let (command, ticket) = self.publish_command(message).map_err(TryPublishError::Failed)?;
        match self.commands.try_send(command) {
            Ok(()) => Ok(ticket),
            Err(TrySendError::Full(Command::Publish { message, .. })) => Err(TryPublishError::Full(message)),
            Err(_) => Err(TryPublishError::Failed(self.shared.ended())),
        }
    }

    /// Subscribes and waits for the broker's answer: for each subscription, in order, the QoS that is granted or
    /// why it is refused. What is granted is subscribed to again where a reconnect finds the Session gone.
    /// Not cancel safe: cancelled, the subscriptions may have been made.
    ///
    /// # Errors
    /// No subscription, No Local on a shared one, a packet too large for the broker, or the client has ended.
    pub async fn subscribe(&self, subscriptions: Vec<Subscription>) -> Result<Vec<ReasonCode>, ClientError> {
        if subscriptions.is_empty() {
            return Err(self.shared.invalid("no subscription [MQTT-3.8.3-2]"));
        }
        if subscriptions.iter().any(|subscription| subscription.options.no_local && subscription.filter.is_shared()) {
            return Err(self.shared.invalid("No Local on a shared subscription [MQTT-3.8.3-4]"));
        }
        let (reply, answer) = oneshot::channel();
        self.send(Command::Subscribe { subscriptions, reply }).await?;
        self.shared.outcome(answer.await)
    }

    /// Ends subscriptions and waits for the broker's answer: a Reason Code for each filter, in order; at 3.1.1,
    /// which has none, all success. Not cancel safe: cancelled, the subscriptions may have ended.
    ///
    /// # Errors
    /// No filter, a packet too large for the broker, or the client has ended.
    pub async fn unsubscribe(&self, filters: Vec<TopicFilter>) -> Result<Vec<ReasonCode>, ClientError> {
        if filters.is_empty() {
            return Err(self.shared.invalid("no topic filter [MQTT-3.10.3-2]"));
        }
        let (reply, answer) = oneshot::channel();
        self.send(Command::Unsubscribe { filters, reply }).await?;
        self.shared.outcome(answer.await)
    }

    /// Acknowledges a message in [`AcknowledgeMode::Manual`](crate::AcknowledgeMode::Manual); never waits. Once
    /// for each message, in the order of receipt `[MQTT-4.6.0-2]`. Does nothing at QoS 0, in the other mode, the
    /// second time, and for a QoS 1 message of an earlier connection, which the broker sends again.
    pub fn acknowledge(&self, message: &Message) {
        if let Some(acknowledgement) = &message.acknowledgement
            && !acknowledgement.given.swap(true, Ordering::Relaxed)
        {
            // Ended, or full: see ACKNOWLEDGEMENTS_MAX.
            let _ = self.acknowledgements.try_send(Arc::clone(acknowledgement));
        }
    }

    /// Ends the client, for all its handles. What is in the queue is sent, QoS 1 and 2 messages under way are
    /// waited for, together at most five seconds; then comes DISCONNECT, which drops the Will. From the call on
    /// no handle takes requests.
    /// Not cancel safe: cancelled, the client ends all the same.
    ///
    /// # Errors
    /// There is no connection; or some messages were not acknowledged in time, their tickets know which.
    pub async fn disconnect(self) -> Result<(), ClientError> {
        let (reply, answer) = oneshot::channel();
        self.control.send(Control::Leave(reply)).await.map_err(|_| self.shared.ended())?;
        self.shared.outcome(answer.await)
    }

    /// Closes the connection at once, without DISCONNECT, as if the network had failed, and makes it again after
    /// `away`: for those who want to see what a broker makes of it. Without a connection it does nothing. A client
    /// that never reconnects ends with it.
    ///
    /// # Errors
    /// The client has ended.
    pub async fn cut(&self, away: Duration) -> Result<(), ClientError> {
        self.control.send(Control::Cut(away)).await.map_err(|_| self.shared.ended())
    }

    fn publish_command(&self, message: OutgoingMessage) -> Result<(Command, PublishTicket), ClientError> {
        if let Some(fault) = message.fault() {
            return Err(self.shared.invalid(fault));
        }
        let expires_at = message.properties.as_deref().and_then(|properties| {
            properties.message_expiry_interval?; // most have none: no clock is read for them
            Publication::expiry(Some(properties), Instant::now())
        });
        let (reply, ticket) = PublishTicket::new(&self.shared);
        Ok((Command::Publish { message, expires_at, reply }, ticket))
    }

    async fn send(&self, command: Command) -> Result<(), ClientError> {
        self.commands.send(command).await.map_err(|_| self.shared.ended())
    }
}

/// What the handles, the tickets and the task know in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) broker: Arc<str>,
    pub(crate) client_id: Arc<str>,
    /// Set by the task before it ends by itself.
    pub(crate) end: OnceLock<DisconnectReason>,
}

impl Shared {
    pub(crate) fn error(&self, kind: ClientErrorKind) -> ClientError {
        ClientError { broker: Arc::clone(&self.broker), client_id: Arc::clone(&self.client_id), kind }
    }

    /// What a request came to that the task answered, or dropped when it ended.
    pub(crate) fn outcome<T>(
        &self,
        answer: Result<Result<T, ClientErrorKind>, oneshot::error::RecvError>,
    ) -> Result<T, ClientError> {
        answer.map_err(|_| self.ended())?.map_err(|kind| self.error(kind))
    }

    fn ended(&self) -> ClientError {
        self.error(ClientErrorKind::Ended(self.end.get().cloned()))
    }

    fn invalid(&self, what: &str) -> ClientError {
        self.error(ClientErrorKind::Invalid(what.to_owned()))
    }
}

/// Acknowledgements on their way to the task. Each message has one, at most 65,535 of a connection are open, and
/// the task takes them at all times; as many again are left for messages of earlier connections.
const ACKNOWLEDGEMENTS_MAX: usize = 2 * u16::MAX as usize;
