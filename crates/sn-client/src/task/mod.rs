//! The client's task: drives the state machine over the socket.
//!
//! `attempt` makes connections, and `requests` follows each command to its answer.

mod attempt;
mod requests;

use std::collections::HashMap;
use std::future::pending;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tenbin_sn::{ClientEvent as PeerEvent, ClientPeer, Datagrams, RequestId};
use tenbin_sn_codec::v1_2::{Message as SnMessage, QoS};
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use crate::command::{Answer, Command, Reply};
use crate::events::EventSender;
use crate::link::Link;
use crate::shared::Shared;
use crate::{ClientErrorKind, ClientEvent, ClientOptions, DisconnectReason, Failure, Message, Topic};
use requests::OpenRequest;

/// The task's ends of the handles' channels.
#[derive(Debug)]
pub(crate) struct Channels {
    pub(crate) commands: mpsc::Receiver<Command>,
    /// Requests to end the client; closed once all handles are dropped.
    pub(crate) leave: mpsc::Receiver<Reply>,
    pub(crate) events: EventSender,
}

#[derive(Debug)]
struct Task {
    options: ClientOptions,
    shared: Arc<Shared>,
    commands: mpsc::Receiver<Command>,
    events: EventSender,
    peer: ClientPeer,
    out: Datagrams,
    buffer: Box<[u8]>,
    /// Position in the list of gateways.
    gateway: usize,
    /// The last address that failed, of each position.
    failed_addresses: HashMap<usize, SocketAddr>,
    link: Option<Link>,
    connected_at: Instant,
    requests: HashMap<RequestId, OpenRequest>,
    /// Subscriptions that a gateway granted.
    subscriptions: HashMap<Topic, QoS>,
    /// Sleep that waits for the answers to earlier requests.
    bedtime: Option<(u16, Reply)>,
    /// The sleep, wake or activation under way. Commands after it wait.
    transition: Option<Reply>,
    leaving: Option<Leaving>,
}

/// The end that the application asked for.
#[derive(Debug)]
struct Leaving {
    /// Absent if the handles were dropped.
    reply: Option<Reply>,
    /// Commands queued before the end may be left.
    takes_commands: bool,
    is_disconnect_sent: bool,
}

/// How a connection ended.
enum End {
    /// The application ended it.
    Left,
    Lost(DisconnectReason),
}

/// Largest datagram.
const BUFFER_SIZE: usize = 65_536;

/// Makes the first connection, and starts the task.
pub(crate) async fn start(
    options: ClientOptions,
    shared: Arc<Shared>,
    channels: Channels,
) -> Result<(), ClientErrorKind> {
    let for_peer = options.for_peer().map_err(ClientErrorKind::Invalid)?;
    let mut task = Task {
        peer: ClientPeer::new(for_peer, Instant::now()),
        options,
        shared,
        commands: channels.commands,
        events: channels.events,
        out: Datagrams::default(),
        buffer: vec![0; BUFFER_SIZE].into(),
        gateway: 0,
        failed_addresses: HashMap::new(),
        link: None,
        connected_at: Instant::now(),
        requests: HashMap::new(),
        subscriptions: HashMap::new(),
        bedtime: None,
        transition: None,
        leaving: None,
    };
    task.try_all(0).await.map_err(ClientErrorKind::NoGateway)?;
    tokio::spawn(task.run(channels.leave));
    Ok(())
}

impl Task {
    async fn run(mut self, mut leave: mpsc::Receiver<Reply>) {
        loop {
            self.note_connection();
            let reason = match self.serve(&mut leave).await {
                End::Left => return self.left(Ok(None)),
                End::Lost(reason) => reason,
            };
            let lost = Failure { gateway: self.gateway_name().into(), reason };
            self.peer.abandon();
            self.events.send(ClientEvent::Disconnected(lost.clone()));
            let sleepers = [self.transition.take(), self.bedtime.take().map(|(_, reply)| reply)];
            for reply in sleepers.into_iter().flatten() {
                let _ = reply.send(Err(ClientErrorKind::Lost(lost.clone())));
            }
            let result = if self.leaving.is_some() { Err(lost) } else { self.reconnect(lost, &mut leave).await };
            if let Err(failure) = result {
                let _ = self.shared.end.set(failure.clone());
                return self.left(Err(ClientErrorKind::Lost(failure)));
            }
        }
    }

    /// Answers the application's request to end the client.
    fn left(self, answer: Answer) {
        if let Some(reply) = self.leaving.and_then(|leaving| leaving.reply) {
            let _ = reply.send(answer);
        }
    }

    /// Serves one connection to its end.
    async fn serve(&mut self, leave: &mut mpsc::Receiver<Reply>) -> End {
        loop {
            if let Some(end) = self.handle_events() {
                return end;
            }
            self.begin_transition();
            if let Err(error) = self.flush().await
                && error.kind() != ErrorKind::ConnectionRefused
            {
                return End::Lost(error.into());
            }
            let takes_commands = self.takes_commands();
            let deadline = self.peer.poll_timeout();
            let Some(link) = &self.link else { return End::Lost(DisconnectReason::NoAnswer) };
            tokio::select! {
                received = link.receive(&mut self.buffer) => match received {
                    Ok(datagram) => {
                        if let Ok(message) = SnMessage::decode(datagram)
                            && (self.events.has_room() || !matches!(message, SnMessage::Publish(_)))
                        {
                            self.peer.handle_message(&message, Instant::now(), &mut self.out);
                        }
                    }
                    // The gateway may be restarting: repetitions decide.
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                    Err(error) => return End::Lost(error.into()),
                },
                () = until(deadline) => self.peer.handle_timeout(Instant::now(), &mut self.out),
                command = self.commands.recv(), if takes_commands => self.handle_command(command),
                Some(reply) = leave.recv(), if self.leaving.is_none() => self.leave(Some(reply)),
            }
        }
    }

    async fn flush(&mut self) -> std::io::Result<()> {
        match &self.link {
            Some(link) if !self.out.is_empty() => link.send(&mut self.out).await,
            _ => Ok(()),
        }
    }

    /// Handles the state machine's news.
    fn handle_events(&mut self) -> Option<End> {
        while let Some(event) = self.peer.poll_event() {
            match event {
                PeerEvent::Disconnected if self.leaving.as_ref().is_some_and(|leaving| leaving.is_disconnect_sent) => {
                    return Some(End::Left);
                }
                PeerEvent::Disconnected => return Some(End::Lost(DisconnectReason::ByGateway)),
                PeerEvent::Refused(code) => return Some(End::Lost(DisconnectReason::Refused(code))),
                PeerEvent::Lost => return Some(End::Lost(DisconnectReason::NoAnswer)),
                other => self.handle_event(other),
            }
        }
        None
    }

    /// Handles an event that ends no connection.
    fn handle_event(&mut self, event: PeerEvent) {
        match event {
            PeerEvent::Message { topic, payload, qos, retain } => {
                let message = Message { topic: topic.into(), payload, qos, retain };
                self.events.send(ClientEvent::Message(message));
            }
            PeerEvent::Done(id, code) => self.request_done(id, code),
            PeerEvent::Subscribed(id, qos) => self.request_subscribed(id, qos),
            _ => {
                if let Some(reply) = self.transition.take() {
                    let _ = reply.send(Ok(None));
                }
            }
        }
    }

    /// Begins the end or the sleep that was asked for, once earlier requests are answered.
    fn begin_transition(&mut self) {
        let now = Instant::now();
        let is_idle = self.peer.open_requests() == 0 || !self.peer.is_active();
        if let Some(leaving) = &mut self.leaving {
            if is_idle && !leaving.takes_commands && !leaving.is_disconnect_sent {
                leaving.is_disconnect_sent = true;
                self.peer.disconnect(now, &mut self.out);
            }
        } else if is_idle && let Some((seconds, reply)) = self.bedtime.take() {
            self.peer.sleep(seconds, now, &mut self.out);
            self.transition = Some(reply);
        }
    }

    fn takes_commands(&self) -> bool {
        match &self.leaving {
            Some(leaving) => leaving.takes_commands,
            None => {
                let is_between = self.bedtime.is_some() || self.transition.is_some();
                !is_between && self.peer.open_requests() < self.options.queue
            }
        }
    }

    /// Ends the client after the commands that are queued already.
    fn leave(&mut self, reply: Option<Reply>) {
        self.commands.close();
        self.leaving = Some(Leaving { reply, takes_commands: true, is_disconnect_sent: false });
    }

    fn gateway_name(&self) -> &str {
        &self.options.gateways[self.gateway]
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline.into()).await,
        None => pending().await,
    }
}
