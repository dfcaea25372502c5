//! One client at the gateway.
//!
//! ```text
//!   CONNECT ─► (AwaitingCredentials) ─► AskingWillTopic ─► AskingWillMessage ─► Connecting ─► Active ◄──► Asleep ◄──► Awake
//!      └──────────────── no Will ──────────────────────────┘            (CONNECT, DISCONNECT, PINGREQ)
//!                        any state ─► Ended
//! ```

mod connecting;
mod delivering;
mod publishing;
mod registering;
mod sleeping;
mod subscribing;
mod timeouts;
mod upstream;
mod will_updates;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_codec::{ReasonCode, Text, Will};
use tenbin_sn_codec::v1_2::{Connect, Disconnect, Message, PingReq, ReturnCode};

use crate::candidate::{Candidate, REFLECTION_MAXIMUM};
use crate::client_state::ClientState;
use crate::gateway::Gateway;
use crate::held::Held;
use crate::message_ids::Exchanges;
use crate::outbox::{Outbox, Retry};
use crate::output::{DropCause, Io};
use crate::pace::Pace;
use crate::settings::{Login, Settings};
use crate::topic_ids::{TopicId, TopicIds};
use upstream::Upstream;
use will_updates::WillUpdate;

/// One client at the gateway, bound to the address of its CONNECT.
///
/// See the crate's documentation for the duties of the caller.
#[derive(Debug)]
pub struct GatewayPeer {
    gateway: Arc<Gateway>,
    client_id: Text,
    /// The client's login at the broker, instead of the login of the settings.
    login: Option<Box<Login>>,
    /// Fields of the first CONNECT, with the Duration of the last one.
    terms: Terms,
    /// Fields of the last CONNECT, as long as the client has sent no request since: the client may not have CONNACK, and
    /// repeats it.
    last_connect: Option<Terms>,
    /// Time of the first CONNECT.
    connected_at: Instant,
    state: PeerState,
    upstream: Upstream,
    will: Option<Box<Will>>,
    /// Changes of the Will so far.
    will_version: u32,
    will_update: Option<Box<WillUpdate>>,
    topics: TopicIds,
    exchanges: Exchanges,
    /// The broker owes the answer to a SUBSCRIBE: messages wait for it.
    awaits_suback: bool,
    outbox: Outbox,
    /// Last datagram of the client.
    received_at: Instant,
    /// Begin of the time after which a silent client is lost.
    alive_at: Instant,
    reach: Reach,
    /// Wrong answers to questions for proof of an address so far.
    guesses: u8,
    /// Whether the client had the session at this address before, and so may have it without a proof.
    inherits: bool,
    /// Whether the broker has accepted the client once.
    was_connected: bool,
    /// Whether the client is the gateway's own, which is never lost.
    is_local: bool,
    /// PINGREQs to a client without Duration since its last datagram.
    silent_pings: u8,
    /// Whether the client has sent a message other than CONNECT.
    is_confirmed: bool,
    /// Whether the broker's session is worth keeping: it was there before, or a confirmed client uses it. True before
    /// CONNACK tells: a forged CONNECT must not end the session of another client.
    keeps_session: bool,
    pace: Option<Pace>,
    /// When the next QoS 0 message may be sent, if one waits for that.
    paced_until: Option<Instant>,
}

/// Next step of the caller after a call.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Only input and output.
    Continue,
    /// Open a stream to the broker. Then call [`GatewayPeer::upstream_opened`], or [`GatewayPeer::upstream_closed`] if
    /// that fails.
    OpenUpstream,
    /// Send the rest of the upstream bytes on the old stream and close it. Then as [`Action::OpenUpstream`].
    ReopenUpstream,
    /// Send the rest of the upstream bytes and close the stream: the peer has ended. Keep
    /// [`GatewayPeer::into_state`] for the client's next connection.
    End(End),
}

/// Reason for the end of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The client disconnected.
    Disconnected,
    /// The client sent nothing within its Keep Alive time.
    KeepAlive,
    /// The client slept longer than it said.
    Overslept,
    /// The client did not answer a message and its repetitions.
    NoAnswer,
    /// The client was not connected, and has a CONNACK that says why.
    Refused(ReturnCode),
    /// The broker has a session with the client id, and the address is unproven. [`GatewayPeer::to_candidate`] asks for
    /// the proof.
    SessionExists,
    /// A new CONNECT of the same address. Pass this CONNECT to [`GatewayPeer::accept`].
    NewConnection,
    /// The broker ended the connection, or it broke.
    Upstream(Option<ReasonCode>),
    /// The caller ended the peer.
    Closed,
}

/// Fields of CONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Terms {
    will: bool,
    clean_session: bool,
    /// Keep alive in seconds.
    duration: u16,
}

#[derive(Debug)]
enum PeerState {
    /// AUTH of the client is due by then.
    AwaitingCredentials(Instant),
    /// WILLTOPICREQ is sent.
    AskingWillTopic(Retry),
    /// WILLMSGREQ is sent. Holds the Will without its message.
    AskingWillMessage(Box<Will>, Retry),
    /// The broker has not answered yet. A client that has CONNACK already waits with its requests.
    Connecting(Option<Box<Held>>),
    Active,
    /// Sleeps for this long.
    Asleep(Duration),
    /// Gets its messages between PINGREQ and PINGRESP.
    Awake(Awake),
    Ended,
}

/// A sleeping client that gets its messages.
#[derive(Debug, Clone, Copy)]
struct Awake {
    /// Duration of its sleep.
    duration: Duration,
    since: Instant,
    /// Messages sent in this wake.
    delivered: u16,
    /// Pings that returned from the broker with no message between.
    quiet_pings: u8,
    /// A ping is under way that the wake began.
    is_pinging: bool,
}

/// Whether datagrams reach the client at its address.
///
/// All messages of a client can be forged from elsewhere, but for answers that repeat ids which only their receiver knows:
/// REGACK, PUBACK and PUBREC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// The address may be forged.
    Unproven {
        /// Bytes that may be sent.
        budget: usize,
        /// The session began here: its messages may be sent as far as the bytes suffice.
        is_new: bool,
        /// Answers so far that could not be guessed.
        hits: u8,
    },
    /// The client answered a question there.
    Proven,
}

impl GatewayPeer {
    /// Handles a message of the client. `size` is the size of its datagram in bytes.
    pub fn handle_message(&mut self, message: &Message<'_>, size: usize, io: &mut Io<'_>) -> Action {
        if matches!(self.state, PeerState::Ended) {
            return Action::Continue;
        }
        self.received_at = io.now;
        self.alive_at = io.now;
        self.silent_pings = 0;
        if let Message::Connect(connect) = message {
            self.allow_answers_to(size);
            return self.handle_connect(connect, io);
        }
        self.allow_answers_to(size);
        if !self.is_confirmed {
            self.is_confirmed = true;
            self.keeps_session = true;
        }
        if is_request(message) {
            self.last_connect = None;
        }
        if let PeerState::Connecting(Some(held)) = &mut self.state
            && is_request(message)
        {
            if !held.push(message) {
                io.output.drops.note(DropCause::NoUpstream);
            }
            return Action::Continue;
        }
        let action = match message {
            Message::Disconnect(disconnect) => self.handle_disconnect(*disconnect, io),
            Message::Auth(auth) => self.handle_auth(auth, io),
            Message::WillTopic(topic) => self.handle_will_topic(topic.as_ref(), io),
            Message::WillMsg(message) => self.handle_will_message(message, io),
            Message::PingReq(ping) => self.handle_pingreq(ping, io),
            Message::PingResp => Action::Continue,
            _ if !self.is_connected() => self.unexpected(io),
            Message::Publish(publish) => self.handle_publish(publish, io),
            Message::PubAck(puback) => self.handle_client_puback(puback, io),
            Message::PubRec(id) => self.handle_client_pubrec(*id, io),
            Message::PubRel(id) => self.handle_client_pubrel(*id, io),
            Message::PubComp(id) => self.handle_client_pubcomp(*id, io),
            Message::Register(register) => self.handle_register(register, io),
            Message::RegAck(regack) => self.handle_regack(regack, io),
            Message::Subscribe(subscribe) => self.handle_subscribe(subscribe, io),
            Message::Unsubscribe(unsubscribe) => self.handle_unsubscribe(unsubscribe, io),
            Message::WillTopicUpd(topic) => self.handle_will_topic_update(topic.as_ref(), io),
            Message::WillMsgUpd(message) => self.handle_will_message_update(message, io),
            _ => self.unexpected(io),
        };
        if !self.is_proven() {
            self.go_on_asking(matches!(message, Message::PingResp), io);
        }
        self.finish_wake(io);
        action
    }

    /// Takes the client's address for proven, such as by DTLS. Call it after [`GatewayPeer::accept`], and after
    /// [`GatewayPeer::rebind`].
    pub fn trust_address(&mut self) {
        self.reach = Reach::Proven;
        self.is_confirmed = true;
    }

    /// Makes the client the gateway's own, which has no address and is never lost.
    pub fn make_local(&mut self) {
        self.trust_address();
        self.is_local = true;
    }

    /// Lets the client have the session that the last peer of its address had. Call it after [`GatewayPeer::accept`].
    pub fn inherit_session(&mut self) {
        self.inherits = true;
    }

    /// Whether the client may have a session that exists.
    pub fn may_resume(&self) -> bool {
        self.is_proven() || self.inherits || self.settings().asks_credentials || self.will_update.is_some()
    }

    /// Whether the topic ids and the Will belong to the client's session. Before CONNACK it may be another client's.
    pub fn owns_state(&self) -> bool {
        self.was_connected || self.is_proven() || self.inherits
    }

    /// Asks the client for the proof that its session needs, after [`End::SessionExists`]. The Will goes with it.
    pub fn to_candidate(&mut self, is_topic: impl Fn(u16) -> bool, io: &mut Io<'_>) -> Candidate {
        let Terms { will, clean_session, duration } = self.terms;
        let budget = if let Reach::Unproven { budget, .. } = self.reach { budget } else { 0 };
        let message = if will { self.will.take() } else { None };
        let connect = Connect { will, clean_session, duration, client_id: self.client_id.as_str() };
        Candidate::with_will(&self.gateway, &Message::Connect(connect), message, budget, is_topic, io)
    }

    /// Gives the client its own login at the broker. Call it after [`GatewayPeer::accept`].
    pub fn set_login(&mut self, login: Login) {
        self.login = Some(Box::new(login));
    }

    /// Ends the peer, such as for a takeover of its session, or before the gateway stops. Tells the client, and leaves
    /// the upstream without DISCONNECT, so that the broker publishes the Will or keeps the session for a successor.
    pub fn close(&mut self, io: &mut Io<'_>) -> Action {
        if matches!(self.state, PeerState::Ended) {
            return Action::Continue;
        }
        self.disconnect_client(io);
        self.end(End::Closed)
    }

    /// Ends the peer of an unproven client to make room, as if the client was lost. Tells the client nothing.
    pub fn evict(&mut self, io: &mut Io<'_>) -> Action {
        if matches!(self.state, PeerState::Ended) {
            return Action::Continue;
        }
        self.lose(End::Closed, io)
    }

    /// Whether [`GatewayPeer::evict`] leaves no session behind. Before CONNACK it is unknown whether the session is new.
    pub fn may_be_evicted(&self) -> bool {
        !matches!(self.upstream, Upstream::Opening { .. } | Upstream::Connecting { .. })
    }

    /// The client's own login at the broker, if it has one.
    pub fn login(&self) -> Option<&Login> {
        self.login.as_deref()
    }

    /// Asks the client whether it is there, before a takeover of its session. Every answer moves
    /// [`GatewayPeer::last_received`].
    pub fn probe(&mut self, io: &mut Io<'_>) {
        self.send_ping(io);
    }

    /// Binds the peer to another address, which is unproven: the client gets REGISTER there, and its messages once it
    /// has answered.
    ///
    /// Call it before [`GatewayPeer::handle_message`] for the PINGREQ or CONNECT that came from this address.
    pub fn rebind(&mut self) {
        self.reach = Reach::at_first(self.settings());
        self.require_proof();
        self.outbox.register = None;
    }

    /// State for the client's next connection. `None` for a client with Clean Session, whose stored state is obsolete.
    pub fn into_state(self) -> Option<ClientState> {
        (!self.terms.clean_session).then_some(ClientState { topics: self.topics, will: self.will })
    }

    /// Id of the next topic.
    pub fn next_topic_id(&self) -> u16 {
        self.topics.next_id()
    }

    /// Topics of a client without Clean Session, in any order.
    pub fn topics(&self) -> impl Iterator<Item = TopicId<'_>> {
        self.topics.iter()
    }

    /// The Will.
    pub fn will(&self) -> Option<&Will> {
        self.will.as_deref()
    }

    /// Changes with [`GatewayPeer::topics`] and [`GatewayPeer::will`], so that the caller knows when to store them.
    pub fn state_version(&self) -> u32 {
        self.topics.version().wrapping_add(self.will_version)
    }

    /// Whether the client may know this topic id, now or later.
    pub fn may_know_topic(&self, id: u16) -> bool {
        self.topics.may_assign(id)
    }

    /// The client id.
    pub fn client_id(&self) -> &Text {
        &self.client_id
    }

    /// Whether the session ends with the connection.
    pub fn is_clean(&self) -> bool {
        self.terms.clean_session
    }

    /// Whether the client has sent a message other than CONNECT.
    pub fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    /// Whether an answer has shown that datagrams reach the client at its address.
    pub fn is_proven(&self) -> bool {
        self.reach == Reach::Proven
    }

    /// Whether the client sleeps, be it awake for its messages or not.
    pub fn is_asleep(&self) -> bool {
        matches!(self.state, PeerState::Asleep(_) | PeerState::Awake(_))
    }

    /// Whether a sleeping client gets its messages, between PINGREQ and PINGRESP.
    pub fn is_awake(&self) -> bool {
        matches!(self.state, PeerState::Awake(_))
    }

    /// Whether the client has CONNACK.
    pub fn is_connected(&self) -> bool {
        matches!(self.state, PeerState::Active | PeerState::Asleep(_) | PeerState::Awake(_))
    }

    /// When the last datagram of the client came.
    pub fn last_received(&self) -> Instant {
        self.received_at
    }

    /// Messages that wait in the peer, and the bytes of their payloads.
    pub fn waiting(&self) -> (usize, usize) {
        (self.outbox.queued(), self.outbox.queued_bytes())
    }

    fn settings(&self) -> &Settings {
        &self.gateway.settings
    }

    fn first_try(&self, now: Instant) -> Retry {
        Retry::new(now, self.settings().retry, self.settings().retries)
    }

    /// Whether the address is unproven, and the session began there.
    fn is_new(&self) -> bool {
        matches!(self.reach, Reach::Unproven { is_new: true, .. })
    }

    /// Messages wait for the proof of the address, since the session may be another client's.
    fn require_proof(&mut self) {
        if let Reach::Unproven { is_new, .. } = &mut self.reach {
            *is_new = false;
        }
    }

    fn allow_answers_to(&mut self, size: usize) {
        if let Reach::Unproven { budget, .. } = &mut self.reach {
            *budget = budget.saturating_add(REFLECTION_MAXIMUM * size);
        }
    }

    /// Sends a message to the client. False if the message is too large for an unproven address.
    fn send(&mut self, message: &Message<'_>, io: &mut Io<'_>) -> bool {
        match &mut self.reach {
            Reach::Unproven { budget, .. } => io.output.push_within(message, budget),
            Reach::Proven => {
                io.output.datagrams.push(message);
                true
            }
        }
    }

    fn send_ping(&mut self, io: &mut Io<'_>) {
        self.send(&Message::PingReq(PingReq { client_id: None }), io);
    }

    fn set_will(&mut self, will: Option<Box<Will>>) {
        self.will = will;
        self.will_version = self.will_version.wrapping_add(1);
    }

    fn unexpected(&self, io: &mut Io<'_>) -> Action {
        io.output.drops.note(DropCause::Unexpected);
        Action::Continue
    }

    fn disconnect_client(&mut self, io: &mut Io<'_>) {
        self.send(&Message::Disconnect(Disconnect { duration: None }), io);
    }

    fn end(&mut self, end: End) -> Action {
        self.state = PeerState::Ended;
        self.upstream = Upstream::Closed;
        Action::End(end)
    }
}

impl Reach {
    fn at_first(settings: &Settings) -> Self {
        if settings.trusts_addresses { Self::Proven } else { Self::Unproven { budget: 0, is_new: true, hits: 0 } }
    }
}

/// Whether the message is a client's request and no answer, so that it is sent after CONNACK only.
fn is_request(message: &Message<'_>) -> bool {
    !matches!(
        message,
        Message::RegAck(_)
            | Message::PubAck(_)
            | Message::PubRec(_)
            | Message::PubComp(_)
            | Message::PingResp
            | Message::Auth(_)
            | Message::WillTopic(_)
            | Message::WillMsg(_)
    )
}
