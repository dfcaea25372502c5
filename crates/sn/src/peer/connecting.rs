//! From CONNECT to CONNACK, with the dialogue about the Will.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenbin_codec::{Text, TopicName, Will};
use tenbin_sn_codec::v1_2::{Auth, Connect, Message, ReturnCode, WillTopic};

use super::upstream::Upstream;
use super::{Action, End, GatewayPeer, PeerState, Reach, Terms};
use crate::candidate::Candidate;
use crate::client_state::ClientState;
use crate::gateway::Gateway;
use crate::output::Io;
use crate::pace::Pace;
use crate::reason::to_mqtt;
use crate::settings::Login;

/// Time in which the network may still deliver a copy of CONNECT.
const COPY_TIME: Duration = Duration::from_secs(1);

impl GatewayPeer {
    /// A peer for the CONNECT of an address without a peer. `size` is the size of the datagram in bytes, `state` the state
    /// that the client's last connection left.
    ///
    /// The peer may have ended already, with a CONNACK for the client.
    pub fn accept(
        gateway: &Arc<Gateway>,
        connect: &Connect<'_>,
        size: usize,
        state: Option<ClientState>,
        io: &mut Io<'_>,
    ) -> (Self, Action) {
        let mut peer = Self::new(gateway, connect, state, io.now);
        peer.allow_answers_to(size);
        let has_legal_id = (1..=gateway.settings.client_id_bytes_maximum).contains(&connect.client_id.len());
        let action = match Text::try_from(connect.client_id) {
            Ok(client_id) if has_legal_id => {
                peer.client_id = client_id;
                peer.begin(io)
            }
            _ => peer.refuse_connection(ReturnCode::NotSupported, io), // [SN-CONNECT-2]
        };
        (peer, action)
    }

    /// A peer for a candidate that has proven its address, which may have a session that exists. `None` if the candidate
    /// sent no CONNECT.
    pub fn accept_proven(
        gateway: &Arc<Gateway>,
        candidate: Candidate,
        state: Option<ClientState>,
        io: &mut Io<'_>,
    ) -> Option<(Self, Action)> {
        let mut peer = {
            let connect = candidate.connect()?;
            let client_id = Text::try_from(connect.client_id).ok()?;
            Self { client_id, ..Self::new(gateway, &connect, state, io.now) }
        };
        peer.trust_address();
        let (will, held) = candidate.into_parts();
        if will.is_some() {
            peer.set_will(will);
        }
        let action = match held {
            Some(_) => {
                let _ = peer.open_upstream(io.now);
                peer.state = PeerState::Connecting(held);
                Action::OpenUpstream
            }
            None => peer.begin(io),
        };
        Some((peer, action))
    }

    fn new(gateway: &Arc<Gateway>, connect: &Connect<'_>, state: Option<ClientState>, now: Instant) -> Self {
        // Clean Session discards topic ids and Will. [SN-CONNECT-4]
        let ClientState { topics, will } = match state.filter(|_| !connect.clean_session) {
            Some(state) => state,
            None => ClientState { topics: gateway.new_topic_ids(connect.clean_session), will: None },
        };
        Self {
            gateway: Arc::clone(gateway),
            client_id: Text::EMPTY,
            login: None,
            terms: Terms::of(connect),
            last_connect: Some(Terms::of(connect)),
            connected_at: now,
            state: PeerState::Connecting(None),
            upstream: Upstream::Closed,
            will,
            will_version: 0,
            will_update: None,
            topics,
            exchanges: Default::default(),
            awaits_suback: false,
            outbox: Default::default(),
            received_at: now,
            alive_at: now,
            reach: Reach::at_first(&gateway.settings),
            guesses: 0,
            inherits: false,
            was_connected: false,
            is_local: false,
            silent_pings: 0,
            is_confirmed: gateway.settings.trusts_addresses,
            keeps_session: true,
            pace: gateway.settings.pace_bytes_per_second.map(|rate| Pace::new(rate, now)),
            paced_until: None,
        }
    }

    /// A CONNECT of an address that has this peer already.
    pub(super) fn handle_connect(&mut self, connect: &Connect<'_>, io: &mut Io<'_>) -> Action {
        let terms = Terms::of(connect);
        let is_same_client = connect.client_id.as_bytes() == self.client_id.as_bytes();
        // A copy may come behind the client's first requests. [SN-CONNECT-6]
        let may_be_copy = terms == self.terms && io.now < self.connected_at + COPY_TIME;
        let is_repeated = is_same_client && (Some(terms) == self.last_connect || may_be_copy);
        match &self.state {
            // A repetition asks for the open request again. [SN-WILL-2]
            PeerState::AskingWillTopic(_) if is_repeated => self.request(&Message::WillTopicReq, io),
            PeerState::AskingWillMessage(..) if is_repeated => self.request(&Message::WillMsgReq, io),
            PeerState::AwaitingCredentials(_) | PeerState::Connecting(None) if is_repeated => Action::Continue,
            // CONNACK was lost.
            PeerState::Active | PeerState::Connecting(Some(_)) if is_repeated => {
                self.request(&Message::ConnAck(ReturnCode::Accepted), io)
            }
            PeerState::Asleep(_) | PeerState::Awake(_) if is_same_client && !terms.will && !terms.clean_session => {
                self.terms.duration = terms.duration;
                self.last_connect = Some(terms);
                self.return_from_sleep(io)
            }
            // A sleeping client comes back with other terms: it was not lost.
            PeerState::Asleep(_) | PeerState::Awake(_) => {
                self.leave_broker(io);
                self.end(End::NewConnection)
            }
            // As of a client that is lost and comes back. [SN-CONNECT-3]
            _ => self.lose(End::NewConnection, io),
        }
    }

    fn begin(&mut self, io: &mut Io<'_>) -> Action {
        if self.settings().asks_credentials && self.login.is_none() {
            self.state = PeerState::AwaitingCredentials(io.now + self.settings().retry_time()); // [SN-AUTH-1]
            return Action::Continue;
        }
        self.begin_will(io)
    }

    pub(super) fn handle_auth(&mut self, auth: &Auth<'_>, io: &mut Io<'_>) -> Action {
        match self.state {
            PeerState::AwaitingCredentials(_) => {}
            // A copy.
            _ if self.login.is_some() => return Action::Continue,
            _ => return self.unexpected(io),
        }
        let login = auth.plain().and_then(|(user, password)| {
            let user = Text::try_from(user).ok()?;
            Some(Login { user, password: Some(password.into()) })
        });
        match login {
            Some(login) => {
                self.set_login(login);
                self.begin_will(io)
            }
            None => self.refuse_connection(ReturnCode::NotSupported, io), // [SN-AUTH-1]
        }
    }

    fn begin_will(&mut self, io: &mut Io<'_>) -> Action {
        if self.terms.will {
            self.state = PeerState::AskingWillTopic(self.first_try(io.now)); // [SN-WILL-1]
            return self.request(&Message::WillTopicReq, io);
        }
        // Without the Will flag the stored Will stays. [SN-WILL-3]
        self.open_upstream(io.now)
    }

    pub(super) fn handle_will_topic(&mut self, topic: Option<&WillTopic<'_>>, io: &mut Io<'_>) -> Action {
        match (&self.state, topic) {
            (PeerState::AskingWillTopic(_), None) => {
                self.set_will(None); // [SN-WILL-4]
                self.open_upstream(io.now)
            }
            (PeerState::AskingWillTopic(_), Some(topic)) => match self.will_of(topic, Bytes::new()) {
                Some(will) => {
                    self.state = PeerState::AskingWillMessage(will, self.first_try(io.now));
                    self.request(&Message::WillMsgReq, io)
                }
                None => self.refuse_connection(ReturnCode::NotSupported, io),
            },
            // Repeated, since WILLMSGREQ was lost.
            (PeerState::AskingWillMessage(will, _), Some(topic)) if will.topic.as_bytes() == topic.topic.as_bytes() => {
                self.request(&Message::WillMsgReq, io)
            }
            _ => self.unexpected(io),
        }
    }

    pub(super) fn handle_will_message(&mut self, message: &[u8], io: &mut Io<'_>) -> Action {
        match std::mem::replace(&mut self.state, PeerState::Connecting(None)) {
            PeerState::AskingWillMessage(mut will, _) => {
                will.payload = Bytes::copy_from_slice(message);
                if !self.is_within_bounds(&will) {
                    return self.refuse_connection(ReturnCode::NotSupported, io); // [SN-BOUND-2]
                }
                self.set_will(Some(will));
                self.open_upstream(io.now)
            }
            other => {
                self.state = other;
                self.unexpected(io)
            }
        }
    }

    /// Repeats the open request, unless the client is lost.
    pub(super) fn repeat_will_request(&mut self, io: &mut Io<'_>) -> Action {
        let retry_time = self.settings().retry;
        let (retry, request) = match &mut self.state {
            PeerState::AskingWillTopic(retry) => (retry, Message::WillTopicReq),
            PeerState::AskingWillMessage(_, retry) => (retry, Message::WillMsgReq),
            _ => return Action::Continue,
        };
        if retry.at > io.now {
            return Action::Continue;
        }
        if retry.repeat(io.now, retry_time).is_err() {
            return self.end(End::NoAnswer);
        }
        self.request(&request, io)
    }

    /// A Will, if its topic is legal and within bounds.
    pub(super) fn will_of(&self, topic: &WillTopic<'_>, payload: Bytes) -> Option<Box<Will>> {
        let name = TopicName::try_from(topic.topic).ok()?;
        let (qos, retain) = (to_mqtt(topic.qos), topic.retain);
        let will = Will { qos, retain, topic: name, payload, delay_interval: None, properties: None };
        self.is_within_bounds(&will).then(|| Box::new(will))
    }

    pub(super) fn is_within_bounds(&self, will: &Will) -> bool {
        will.topic.as_bytes().len() + will.payload.len() <= self.settings().will_bytes_maximum
    }

    pub(super) fn refuse_connection(&mut self, code: ReturnCode, io: &mut Io<'_>) -> Action {
        self.tell_refusal(code, io);
        self.end(End::Refused(code))
    }

    /// Tells the client that it is not connected: by CONNACK, or by DISCONNECT if it has CONNACK already.
    pub(super) fn tell_refusal(&mut self, code: ReturnCode, io: &mut Io<'_>) {
        match self.state {
            PeerState::Connecting(Some(_)) => self.disconnect_client(io),
            _ => drop(self.send(&Message::ConnAck(code), io)),
        }
    }

    fn request(&mut self, message: &Message<'_>, io: &mut Io<'_>) -> Action {
        self.send(message, io);
        Action::Continue
    }

    fn open_upstream(&mut self, now: Instant) -> Action {
        self.state = PeerState::Connecting(None);
        self.upstream = Upstream::Opening { since: now };
        Action::OpenUpstream
    }
}

impl Terms {
    fn of(connect: &Connect<'_>) -> Self {
        Self { will: connect.will, clean_session: connect.clean_session, duration: connect.duration }
    }
}
