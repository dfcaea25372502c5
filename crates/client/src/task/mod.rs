//! The task that owns a client's successive connections.
//!
//! ```text
//!   start ──► serve ──lost──► pause ──► dial ──► serve …
//!               │               │         └─fails─► pause
//!               └──leave────────┴──► end
//! ```

mod dial;
mod handover;
mod in_flight;
mod inbound;
mod link;
mod outbound;
mod pings;
mod request;
mod serve;
mod stream;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tenbin_codec::{
    Connect, PacketId, ReasonCode, ReportCarrier, ReportCarriers, SubscriptionOptions, Text, TopicFilter, TopicName,
};
use tenbin_session::handshake::{Accepted, complete};
use tenbin_session::{Connection, Role, Session};
use tokio::sync::mpsc;

use self::dial::{Dialed, dial};
use self::handover::Handover;
use self::in_flight::InFlight;
use self::link::Link;
use self::pings::Pings;
use self::request::Request;
use self::serve::{Closing, End};
use crate::command::{Command, Control};
use crate::message::Acknowledgement;
use crate::reconnect::Backoff;
use crate::shared::Shared;
use crate::{ClientErrorKind, ClientEvent, ClientOptions, DisconnectReason};

/// The task's ends of the handles' channels.
pub(crate) struct Channels {
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) acknowledgements: mpsc::Receiver<Arc<Acknowledgement>>,
    pub(crate) control: mpsc::Receiver<Control>,
    pub(crate) events: mpsc::Sender<ClientEvent>,
}

/// Makes the first connection, and spawns the task for it and all later ones.
pub(crate) async fn start(
    options: ClientOptions,
    shared: Arc<Shared>,
    channels: Channels,
) -> Result<(), ClientErrorKind> {
    let connect = options.connect_packet().map_err(ClientErrorKind::Invalid)?;
    let dialed = dial(&options.broker, &options.transport, &connect).await?;
    let mut task = Task {
        backoff: Backoff::new(options.reconnect),
        away: None,
        options,
        connect,
        shared,
        commands: channels.commands,
        commands_open: true,
        acknowledgements: channels.acknowledgements,
        control: channels.control,
        events: Handover::new(channels.events),
        closing: None,
        session: Session::new(),
        session_number: 0,
        connection_number: 0,
        unacknowledged: HashSet::new(),
        in_flight: InFlight::default(),
        backlog: VecDeque::new(),
        subscriptions: BTreeMap::new(),
        block: BytesMut::new(),
        report_topic: TopicName::new(Text::from_static(ReportCarrier::TOPIC)).expect("it has no wildcard"),
    };
    let link = task.open(dialed, Instant::now()).map_err(ClientErrorKind::Lost)?;
    tokio::spawn(task.run(link));
    Ok(())
}

struct Task {
    options: ClientOptions,
    /// CONNECT packet of the next connection.
    connect: Connect,
    shared: Arc<Shared>,
    commands: mpsc::Receiver<Command>,
    /// Whether the command queue can yield more commands: false once it is closed and empty.
    commands_open: bool,
    acknowledgements: mpsc::Receiver<Arc<Acknowledgement>>,
    control: mpsc::Receiver<Control>,
    events: Handover,
    closing: Option<Closing>,
    backoff: Option<Backoff>,
    /// Pause that [`Client::cut`](crate::Client::cut) requested before the next connection.
    away: Option<Duration>,
    /// The session between two connections; otherwise the connection owns it.
    session: Session,
    /// Numbers of the session and the connection; late acknowledgements carry older ones.
    session_number: u64,
    connection_number: u64,
    /// QoS 2 messages of this session that the application has but did not acknowledge.
    unacknowledged: HashSet<PacketId>,
    in_flight: InFlight,
    /// Requests to send before any further command of their kind: messages without quota, and requests to repeat after
    /// a lost connection. Holds at most the former in-flight requests and as many commands as the queue.
    backlog: VecDeque<Request>,
    /// Granted subscriptions, to be made again if the broker loses the session.
    subscriptions: BTreeMap<TopicFilter, SubscriptionOptions>,
    /// Reused buffer for encoding messages.
    block: BytesMut,
    /// [`ReportCarrier::TOPIC`].
    report_topic: TopicName,
}

impl Task {
    async fn run(mut self, mut link: Link) {
        loop {
            let since = Instant::now();
            let end = self.serve(&mut link).await;
            let reason = match end {
                End::Asked => {
                    let done = self.take_leave(link).await;
                    self.closing.take().into_iter().for_each(|closing| closing.answer(done.clone()));
                    break;
                }
                End::Lost(reason) => reason,
            };
            tracing::debug!(broker = %self.shared.broker, client_id = %self.shared.client_id, %reason, "connection lost");
            let lasted = since.elapsed();
            self.session = link.close(&reason);
            self.events.push_connection_event(ClientEvent::Disconnected { reason: reason.clone() });
            let taken_over = reason.reason() == Some(ReasonCode::SessionTakenOver);
            if self.closing.is_some() || taken_over || self.backoff.is_none() {
                self.end(reason);
                break;
            }
            match self.reconnect(lasted).await {
                Some(again) => link = again,
                None => {
                    self.end(reason);
                    break;
                }
            }
        }
        let mut events = self.into_events();
        while events.is_waiting() {
            events.hand_over().await;
        }
    }

    /// Connects again; `None` if the application ended the client before.
    async fn reconnect(&mut self, lasted: Duration) -> Option<Link> {
        let mut backoff = self.backoff.take()?;
        backoff.lost_after(lasted);
        self.connect.clean_start = self.options.clean_start_again();
        let (broker, connect) = (Arc::clone(&self.shared.broker), self.connect.clone());
        let transport = self.options.transport.clone();
        let opened = loop {
            let pause = self.away.take().unwrap_or_else(|| backoff.next_pause());
            if self.offline(tokio::time::sleep(pause)).await.is_none() {
                break None;
            }
            let opened = match self.offline(dial(&broker, &transport, &connect)).await {
                None => break None,
                Some(Ok(dialed)) => self.open(dialed, Instant::now()).map_err(ClientErrorKind::Lost),
                Some(Err(kind)) => Err(kind),
            };
            match opened {
                Ok(link) => break Some(link),
                Err(kind) => {
                    tracing::debug!(%broker, client_id = %self.shared.client_id, error = %kind, "no connection");
                }
            }
        };
        self.backoff = Some(backoff);
        opened
    }

    /// Awaits `future`, and serves everything that needs no connection. `None` if the application ended the client.
    async fn offline<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        loop {
            tokio::select! {
                output = &mut future => return Some(output),
                control = self.control.recv() => {
                    let reply = match control {
                        Some(Control::Cut(_)) => continue, // No connection to cut.
                        Some(Control::Leave(reply)) => Some(reply),
                        None => None,
                    };
                    self.closing = Some(Closing::new(reply, Instant::now()));
                    return None;
                }
                Some(acknowledgement) = self.acknowledgements.recv() => self.acknowledge(None, &acknowledgement),
                () = self.events.hand_over(), if self.events.is_waiting() => {}
            }
        }
    }

    /// Begins an accepted connection: resumes the session, or starts a new one and repeats the old one's open requests.
    fn open(&mut self, dialed: Dialed, now: Instant) -> Result<Link, DisconnectReason> {
        let Dialed { stream, input, decoder, connack } = dialed;
        let session = std::mem::take(&mut self.session);
        let Accepted { limits, session_present, session } =
            complete(&self.connect, &connack, session).map_err(|_| DisconnectReason::UnknownSession)?;
        if let Some(id) = connack.properties.assigned_client_identifier {
            self.connect.client_id = id.detach(); // So that the next connection finds this one's session.
        }
        let version = self.connect.version;
        let carrier = self.options.report_carrier_for(ReportCarriers::told(&connack.properties.user_properties));
        let reports = self.options.load_reporter.clone().zip(carrier);
        let pings = Pings::new(limits.keep_alive, reports, now);
        let connection = Connection::new(Role::Client, version, limits, session, now);
        let mut link = Link::new(stream, input, decoder, connection, pings, self.options.read_buffer);
        self.connection_number += 1;
        self.events.push_connection_event(ClientEvent::Connected { session_present });
        if session_present {
            let requests = self.in_flight.take_requests();
            self.put_in_front(requests);
            link.connection.resume(now, &mut link.out);
            self.fail_dropped(&mut link);
        } else {
            self.session_number += 1;
            self.unacknowledged.clear();
            let all = self.in_flight.take_all();
            self.put_in_front(all);
            self.subscribe_again(&link);
        }
        Ok(link)
    }

    /// Puts requests in front of the backlog, in their order.
    fn put_in_front(&mut self, requests: Vec<Request>) {
        requests.into_iter().rev().for_each(|request| self.backlog.push_front(request));
    }

    /// Records why there will be no further connection, for all handles.
    fn end(&mut self, reason: DisconnectReason) {
        if let Some(closing) = self.closing.take() {
            closing.answer(Err(ClientErrorKind::Lost(reason.clone())));
        }
        let _ = self.shared.end.set(reason);
    }

    /// Drops everything but the events, including all waiting requests.
    fn into_events(self) -> Handover {
        self.events
    }
}
