//! The client's side.
//!
//! ```text
//!   Disconnected ─connect─► Connecting ─► Active ─sleep─► FallingAsleep ─► Asleep ◄─wake─► Waking
//!                               ▲            │                               │
//!                               └────────────┼──────────── connect ──────────┘
//!                                            └─disconnect─► Leaving ─► Disconnected
//! ```

mod receiving;
mod requests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustc_hash::FxBuildHasher;
use tenbin_codec::Secret;
use tenbin_sn_codec::v1_2::{
    Auth, Connect, Disconnect, Message, MessageId, PingReq, QoS, ReturnCode, ShortName, WillTopic,
};

use crate::outbox::Retry;
use crate::output::Datagrams;
use receiving::Received;
use requests::{Request, UnderWay};

/// One client: connects, publishes, subscribes and sleeps.
///
/// Requests are sent one at a time, in order; the next one follows the answer. A message at QoS 0 has no answer. After
/// each call send and clear the datagrams, take the events, and arm a timer for [`ClientPeer::poll_timeout`].
#[derive(Debug)]
pub struct ClientPeer {
    options: ClientOptions,
    state: State,
    requests: VecDeque<Request>,
    under_way: Option<UnderWay>,
    last_id: u16,
    next_token: u64,
    /// Topic ids of the session, by name and by id.
    ids: HashMap<Arc<str>, u16, FxBuildHasher>,
    names: HashMap<u16, Arc<str>, FxBuildHasher>,
    received: Received,
    events: VecDeque<ClientEvent>,
    sent_at: Instant,
    fell_asleep_at: Instant,
    /// An unanswered PINGREQ of an active client.
    ping: Option<Retry>,
}

/// Terms of a client's connection.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// 1 to 23 bytes; gateways may allow more.
    pub client_id: String,
    /// Discard subscriptions, topic ids and Will of earlier connections.
    pub clean_session: bool,
    /// Time in which the gateway expects a message, so that the client pings a bit earlier; zero = never. In whole seconds.
    pub keep_alive: Duration,
    /// Published when the client is lost.
    pub will: Option<ClientWill>,
    /// User name and password, which follow CONNECT in AUTH. Few gateways take them.
    pub credentials: Option<Credentials>,
    /// Time until an unanswered message is sent again.
    pub retry: Duration,
    /// Repetitions of an unanswered message, after which the gateway counts as lost.
    pub retries: u8,
}

/// User name and password of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User name.
    pub user: String,
    /// Password.
    pub password: Secret,
}

/// A client's Will.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientWill {
    /// At least one character, without wildcards.
    pub topic: String,
    /// Payload.
    pub message: Bytes,
    /// QoS at which it is published.
    pub qos: QoS,
    /// Whether it is published as a retained message.
    pub retain: bool,
}

/// Topic of a request or of a received message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ClientTopic {
    /// A name, or in subscriptions a filter.
    Name(Arc<str>),
    /// An id that client and gateway know beforehand.
    Predefined(u16),
    /// A name of two bytes.
    Short(ShortName),
}

/// Names a request in the event of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(u64);

/// News of a [`ClientPeer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    /// The gateway accepted the connection.
    Connected,
    /// The gateway refused the connection.
    Refused(ReturnCode),
    /// A message came.
    Message {
        /// Its topic.
        topic: ClientTopic,
        /// Its payload.
        payload: Bytes,
        /// QoS of the delivery.
        qos: QoS,
        /// Whether it is a retained message.
        retain: bool,
    },
    /// A request ended: at QoS 0 it was sent, else it was answered.
    Done(RequestId, ReturnCode),
    /// The gateway accepted a subscription at this QoS.
    Subscribed(RequestId, QoS),
    /// The gateway knows that the client sleeps.
    Asleep,
    /// The client has all its messages, and may sleep on.
    Slept,
    /// The connection ended, by the client or by the gateway.
    Disconnected,
    /// The gateway does not answer.
    Lost,
}

#[derive(Debug)]
enum State {
    Disconnected,
    /// CONNECT is sent. True if it ends sleep.
    Connecting(Retry, bool),
    Active,
    /// DISCONNECT with Duration is sent.
    FallingAsleep(u16, Retry),
    Asleep,
    /// PINGREQ with ClientId is sent. True if the client is to be active then.
    Waking(Retry, bool),
    /// DISCONNECT is sent.
    Leaving(Retry),
}

impl ClientPeer {
    /// A client without a connection.
    pub fn new(options: ClientOptions, now: Instant) -> Self {
        Self {
            options,
            state: State::Disconnected,
            requests: VecDeque::new(),
            under_way: None,
            last_id: 0,
            next_token: 0,
            ids: HashMap::default(),
            names: HashMap::default(),
            received: Received::default(),
            events: VecDeque::new(),
            sent_at: now,
            fell_asleep_at: now,
            ping: None,
        }
    }

    /// Connects, or ends sleep: it wakes first, since CONNECT would not tell that the gateway has lost the session.
    pub fn connect(&mut self, now: Instant, out: &mut Datagrams) {
        match &mut self.state {
            State::Disconnected => {
                if self.options.clean_session {
                    self.ids.clear();
                    self.names.clear();
                    self.received = Received::default();
                }
                self.state = State::Connecting(self.first_try(now), false);
            }
            State::Asleep => self.state = State::Waking(self.first_try(now), true),
            State::Waking(_, ends_sleep) => return *ends_sleep = true,
            _ => return,
        }
        self.send_state(now, out);
    }

    /// Ends the connection.
    pub fn disconnect(&mut self, now: Instant, out: &mut Datagrams) {
        if !matches!(self.state, State::Disconnected | State::Leaving(_)) {
            self.state = State::Leaving(self.first_try(now));
            self.send_state(now, out);
        }
    }

    /// Sleeps for some seconds, 1 to 65,535, in which the gateway keeps messages. False unless the client is active or
    /// sleeps already.
    pub fn sleep(&mut self, seconds: u16, now: Instant, out: &mut Datagrams) -> bool {
        let may_sleep = matches!(self.state, State::Active | State::Asleep) && seconds > 0;
        if may_sleep {
            self.ping = None;
            self.state = State::FallingAsleep(seconds, self.first_try(now));
            self.send_state(now, out);
        }
        may_sleep
    }

    /// Asks for the messages that the gateway kept. False unless the client sleeps.
    pub fn wake(&mut self, now: Instant, out: &mut Datagrams) -> bool {
        let may_wake = matches!(self.state, State::Asleep);
        if may_wake {
            self.state = State::Waking(self.first_try(now), false);
            self.send_state(now, out);
        }
        may_wake
    }

    /// Ends the connection without a message: the way to the gateway broke. Open requests wait for the next one.
    pub fn abandon(&mut self) {
        self.state = State::Disconnected;
        self.ping = None;
    }

    /// Handles a message of the gateway.
    pub fn handle_message(&mut self, message: &Message<'_>, now: Instant, out: &mut Datagrams) {
        match (message, &self.state) {
            (_, State::Disconnected) => {}
            (Message::ConnAck(code), State::Connecting(..)) => self.handle_connack(*code, now, out),
            (Message::WillTopicReq, State::Connecting(..)) => {
                out.push(&Message::WillTopic(self.options.will.as_ref().map(ClientWill::topic_field)));
            }
            (Message::WillMsgReq, State::Connecting(..)) => {
                let message = self.options.will.as_ref().map_or(&[][..], |will| &will.message);
                out.push(&Message::WillMsg(message));
            }
            (Message::Disconnect(_), State::FallingAsleep(..)) => {
                self.state = State::Asleep;
                self.fell_asleep_at = now;
                self.events.push_back(ClientEvent::Asleep);
            }
            // A late copy of the answer to DISCONNECT, or an answer to a message of before CONNECT.
            (Message::Disconnect(_), State::Asleep | State::Connecting(..)) => {}
            (Message::Disconnect(_), State::Waking(..)) if now < self.fell_asleep_at + self.options.retry => {}
            (Message::Disconnect(_), _) => self.end(ClientEvent::Disconnected),
            (Message::PingReq(_), _) => {
                out.push(&Message::PingResp);
            }
            (Message::PingResp, State::Waking(_, true)) => {
                self.state = State::Connecting(self.first_try(now), true);
                self.send_state(now, out);
            }
            (Message::PingResp, State::Waking(..)) => {
                self.state = State::Asleep;
                self.events.push_back(ClientEvent::Slept);
            }
            (Message::PingResp, _) => self.ping = None,
            // A sleeping client's receiver is off.
            (_, State::Asleep) => {}
            (Message::Register(_) | Message::Publish(_) | Message::PubRel(_), _) => {
                if let State::Waking(_, ends_sleep) = self.state {
                    self.state = State::Waking(self.first_try(now), ends_sleep); // The gateway has the PINGREQ.
                }
                self.handle_delivery(message, now, out);
            }
            _ => self.handle_answer(message, now, out),
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    /// When [`ClientPeer::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Disconnected | State::Asleep => None,
            State::Connecting(retry, _) | State::FallingAsleep(_, retry) => Some(retry.at),
            State::Leaving(retry) => Some(retry.at),
            State::Waking(retry, _) => self.received.answer_at().into_iter().chain([retry.at]).min(),
            State::Active => {
                let request = self.under_way.as_ref().map(|under_way| under_way.retry.at);
                let ping = self.ping.map(|ping| ping.at).or_else(|| self.ping_due());
                request.into_iter().chain(ping).chain(self.received.answer_at()).min()
            }
        }
    }

    /// Handles the passage of time: repeats unanswered messages, and pings.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut Datagrams) {
        let retry_time = self.options.retry;
        if matches!(self.state, State::Active | State::Waking(..)) {
            self.answer_doubtful(now, out);
        }
        match &mut self.state {
            State::Disconnected | State::Asleep => {}
            State::Connecting(retry, _)
            | State::FallingAsleep(_, retry)
            | State::Waking(retry, _)
            | State::Leaving(retry) => {
                if retry.at <= now {
                    match retry.repeat(now, retry_time) {
                        Ok(()) => self.send_state(now, out),
                        Err(_) => self.end(ClientEvent::Lost),
                    }
                }
            }
            State::Active => {
                if self.repeat_request(now, out).is_err() {
                    return self.end(ClientEvent::Lost);
                }
                if let Some(ping) = &mut self.ping {
                    if ping.at > now {
                        return;
                    }
                    if ping.repeat(now, retry_time).is_err() {
                        return self.end(ClientEvent::Lost);
                    }
                } else if self.ping_due().is_some_and(|due| due <= now) {
                    self.ping = Some(self.first_try(now));
                } else {
                    return;
                }
                self.sent_at = now;
                out.push(&Message::PingReq(PingReq { client_id: None }));
            }
        }
    }

    /// Whether requests are sent at once.
    pub fn is_active(&self) -> bool {
        matches!(self.state, State::Active)
    }

    /// Requests that were not answered.
    pub fn open_requests(&self) -> usize {
        self.requests.len() + usize::from(self.under_way.is_some())
    }

    fn handle_connack(&mut self, code: ReturnCode, now: Instant, out: &mut Datagrams) {
        if code != ReturnCode::Accepted {
            return self.end(ClientEvent::Refused(code));
        }
        self.state = State::Active;
        self.events.push_back(ClientEvent::Connected);
        // The gateway remembers the MsgId: a request of the last connection is not applied twice.
        self.resume_request(now, out);
    }

    /// Sends the message that the state waits for.
    fn send_state(&mut self, now: Instant, out: &mut Datagrams) {
        self.sent_at = now;
        let client_id = &self.options.client_id[..];
        match self.state {
            State::Connecting(_, ends_sleep) => {
                let seconds = self.options.keep_alive.as_secs();
                out.push(&Message::Connect(Connect {
                    // The session of a sleeping client goes on.
                    will: self.options.will.is_some() && !ends_sleep,
                    clean_session: self.options.clean_session && !ends_sleep,
                    duration: u16::try_from(seconds).unwrap_or(u16::MAX),
                    client_id,
                }));
                if let Some(credentials) = self.options.credentials.as_ref().filter(|_| !ends_sleep) {
                    let data = Auth::plain_data(&credentials.user, credentials.password.expose());
                    out.push(&Message::Auth(Auth { reason: 0, method: Auth::PLAIN, data: &data }));
                }
            }
            State::FallingAsleep(seconds, _) => {
                out.push(&Message::Disconnect(Disconnect { duration: Some(seconds) }));
            }
            State::Waking(..) => {
                out.push(&Message::PingReq(PingReq { client_id: Some(client_id) }));
            }
            State::Leaving(_) => {
                out.push(&Message::Disconnect(Disconnect { duration: None }));
            }
            State::Disconnected | State::Active | State::Asleep => {}
        }
    }

    /// Early enough for a repetition, if the first PINGREQ is lost.
    fn ping_due(&self) -> Option<Instant> {
        let keep_alive = self.options.keep_alive;
        (keep_alive > Duration::ZERO).then(|| self.sent_at + keep_alive - self.options.retry.min(keep_alive / 4))
    }

    fn first_try(&self, now: Instant) -> Retry {
        Retry::new(now, self.options.retry, self.options.retries)
    }

    fn next_id(&mut self) -> MessageId {
        self.last_id = self.last_id % u16::MAX + 1;
        MessageId::new(self.last_id).expect("1 to 65,535")
    }

    fn end(&mut self, event: ClientEvent) {
        self.abandon();
        self.events.push_back(event);
    }
}

impl ClientOptions {
    /// A client with Clean Session, a keep alive of a minute, and the specification's retries.
    pub fn new(client_id: &str) -> Self {
        Self {
            client_id: client_id.to_owned(),
            clean_session: true,
            keep_alive: Duration::from_secs(60),
            will: None,
            credentials: None,
            retry: Duration::from_secs(10),
            retries: 4,
        }
    }
}

impl ClientWill {
    fn topic_field(&self) -> WillTopic<'_> {
        WillTopic { qos: self.qos, retain: self.retain, topic: &self.topic }
    }
}

impl From<&str> for ClientTopic {
    fn from(name: &str) -> Self {
        Self::Name(name.into())
    }
}
