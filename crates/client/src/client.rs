use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tenbin_codec::{ReasonCode, Subscription, TopicFilter};
use tenbin_session::Publication;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::command::{Command, Control};
use crate::message::Acknowledgement;
use crate::shared::Shared;
use crate::task::{self, Channels};
use crate::{ClientError, ClientOptions, Events, Message, OutgoingMessage, PublishTicket, Rejection, TryPublishError};

/// Handle of a client; clones share the client. Dropping the last one disconnects in the background, as
/// [`disconnect`](Self::disconnect) does.
///
/// The task handles requests in queue order, with one exception: QoS 1 and 2 messages that exceed the broker's Receive
/// Maximum wait, and other requests overtake them. At most [`ClientOptions::queue`] messages wait in this way.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    acknowledgements: mpsc::Sender<Arc<Acknowledgement>>,
    control: mpsc::Sender<Control>,
}

impl Client {
    /// Connects and starts the client's task on the current runtime.
    ///
    /// The first connection must succeed within ten seconds; [`ClientOptions::reconnect`] governs later ones.
    ///
    /// # Errors
    /// The options are invalid, the TCP connection failed, the broker refused, or it did not answer.
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

    /// Queues a message; waits while the queue is full. Without a connection the queue does not drain.
    ///
    /// The ticket resolves to the result. Cancel safe: if cancelled, the message is not queued.
    ///
    /// # Errors
    /// MQTT does not allow the message, or the client has ended.
    pub async fn publish(&self, message: OutgoingMessage) -> Result<PublishTicket, ClientError> {
        let (command, ticket) = self.publish_command(message)?;
        self.send(command).await?;
        Ok(ticket)
    }

    /// Queues a message if there is room. Never waits.
    ///
    /// # Errors
    /// The queue is full, or as for [`publish`](Self::publish).
    pub fn try_publish(&self, message: OutgoingMessage) -> Result<PublishTicket, TryPublishError> {
        let (command, ticket) = self.publish_command(message).map_err(TryPublishError::Failed)?;
        match self.commands.try_send(command) {
            Ok(()) => Ok(ticket),
            Err(TrySendError::Full(Command::Publish { message, .. })) => Err(TryPublishError::Full(message)),
            Err(_) => Err(TryPublishError::Failed(self.shared.ended())),
        }
    }

    /// Subscribes and waits for SUBACK. Returns the granted QoS or the refusal of each subscription, in order.
    ///
    /// After a reconnect without the Session, the client makes granted subscriptions again. Not cancel safe: if
    /// cancelled, the subscriptions may have been made.
    ///
    /// # Errors
    /// The list is empty, a shared subscription has No Local, the packet is too large for the broker, or the client has
    /// ended.
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

    /// Unsubscribes and waits for UNSUBACK. Returns the Reason Code of each filter, in order.
    ///
    /// MQTT 3.1.1 has no such codes; there all are success. Not cancel safe: if cancelled, the subscriptions may have
    /// ended.
    ///
    /// # Errors
    /// The list is empty, the packet is too large for the broker, or the client has ended.
    pub async fn unsubscribe(&self, filters: Vec<TopicFilter>) -> Result<Vec<ReasonCode>, ClientError> {
        if filters.is_empty() {
            return Err(self.shared.invalid("no topic filter [MQTT-3.10.3-2]"));
        }
        let (reply, answer) = oneshot::channel();
        self.send(Command::Unsubscribe { filters, reply }).await?;
        self.shared.outcome(answer.await)
    }

    /// Acknowledges a message in [`AcknowledgeMode::Manual`](crate::AcknowledgeMode::Manual). Never waits.
    ///
    /// Call it once for each message, in the order of receipt `[MQTT-4.6.0-2]`. It does nothing at QoS 0, in the other
    /// mode, and when repeated. It also does nothing for a QoS 1 message of an earlier connection, which the broker
    /// sends again.
    pub fn acknowledge(&self, message: &Message) {
        if let Some(acknowledgement) = &message.acknowledgement
            && !acknowledgement.given.swap(true, Ordering::Relaxed)
        {
            // Fails if the client has ended; it cannot be full: see ACKNOWLEDGEMENTS_MAX.
            let _ = self.acknowledgements.try_send(Arc::clone(acknowledgement));
        }
    }

    /// Rejects a message with a Reason Code. The broker drops it [MQTT-4.8.2-6], or a work queue delivers it again.
    ///
    /// MQTT 3.1.1 cannot say that: the message stays unacknowledged there, until the broker's time limit or the end of the
    /// connection. With [`AcknowledgeMode::OnReceipt`](crate::AcknowledgeMode::OnReceipt) it was acknowledged already, and this does nothing.
    pub fn reject(&self, message: &Message, rejection: Rejection) {
        if let Some(acknowledgement) = &message.acknowledgement
            && !acknowledgement.given.load(Ordering::Relaxed)
            && acknowledgement.can_reject
        {
            let reason = if rejection.reason.is_error() { rejection.reason } else { ReasonCode::UnspecifiedError };
            let _ = acknowledgement.rejection.set(Box::new(Rejection { reason, ..rejection })); // the first one counts
            self.acknowledge(message);
        }
    }

    /// Ends the client with all its handles: sends queued requests, waits for acknowledgements, then sends DISCONNECT.
    ///
    /// All this takes at most five seconds. DISCONNECT discards the Will. No handle accepts requests after the call.
    /// Not cancel safe: if cancelled, the client ends nevertheless.
    ///
    /// # Errors
    /// There is no connection, or some messages were not acknowledged in time. Their tickets show which.
    pub async fn disconnect(self) -> Result<(), ClientError> {
        let (reply, answer) = oneshot::channel();
        self.control.send(Control::Leave(reply)).await.map_err(|_| self.shared.ended())?;
        self.shared.outcome(answer.await)
    }

    /// Closes the connection without DISCONNECT, as a network failure would, and reconnects after `away`.
    ///
    /// Meant for tests of a broker. Does nothing without a connection. A client that never reconnects ends.
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
            properties.message_expiry_interval?; // Most messages have no expiry, and so need no clock.
            Publication::expiry(Some(properties), Instant::now())
        });
        let (reply, ticket) = PublishTicket::new(&self.shared);
        Ok((Command::Publish { message, expires_at, reply }, ticket))
    }

    async fn send(&self, command: Command) -> Result<(), ClientError> {
        self.commands.send(command).await.map_err(|_| self.shared.ended())
    }
}

/// Capacity of the channel for acknowledgements. At most 65,535 messages of a connection are unacknowledged, and the
/// task always takes acknowledgements. The other half is for messages of earlier connections.
const ACKNOWLEDGEMENTS_MAX: usize = 2 * u16::MAX as usize;
