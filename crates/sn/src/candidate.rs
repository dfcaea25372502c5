//! A client that wants a session that exists, from an address that may be forged.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use tenbin_codec::Will;
use tenbin_sn_codec::v1_2::{Connect, Disconnect, Message, PingReq, ReturnCode};

use crate::gateway::Gateway;
use crate::held::Held;
use crate::outbox::Registering;
use crate::output::{DropCause, Io};

/// A client that has to prove its address before it gets a session that exists `[SN-ADDRESS-8]`.
///
/// Its CONNECT, or the PINGREQ of a sleeper, reaches neither the session nor the broker. It gets CONNACK, since stock
/// clients know no earlier message, and a question with an unguessable topic id and MsgId. Its requests wait.
pub struct Candidate {
    gateway: Arc<Gateway>,
    /// CONNECT or PINGREQ.
    request: Box<[u8]>,
    /// The Will of its CONNECT, if the dialogue about it is over.
    will: Option<Box<Will>>,
    has_connack: bool,
    question: Registering,
    /// Wrong answers so far.
    guesses: u8,
    /// Bytes that may be sent.
    budget: usize,
    held: Held,
    since: Instant,
}

/// State of a candidate after a call.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// No answer yet.
    Waits,
    /// Only a receiver at the address can have sent the answer.
    Proven,
    /// It did not answer, or only guessed.
    Unproven,
    /// It sent another CONNECT, which begins anew.
    Replaced,
}

/// Bytes that may be sent to an unproven address for each received byte `[SN-ADDRESS-1]`.
pub(crate) const REFLECTION_MAXIMUM: usize = 3;
/// Wrong answers of an unproven client after which it counts as lost.
pub(crate) const GUESSES_MAXIMUM: u8 = 5;

impl Candidate {
    /// A candidate for its CONNECT, or the PINGREQ of a sleeper, of `size` bytes. `is_topic` tells the topic ids that the
    /// client may know.
    pub fn begin(
        gateway: &Arc<Gateway>,
        request: &Message<'_>,
        size: usize,
        is_topic: impl Fn(u16) -> bool,
        io: &mut Io<'_>,
    ) -> Self {
        Self::with_will(gateway, request, None, REFLECTION_MAXIMUM * size, is_topic, io)
    }

    pub(crate) fn with_will(
        gateway: &Arc<Gateway>,
        request: &Message<'_>,
        will: Option<Box<Will>>,
        budget: usize,
        is_topic: impl Fn(u16) -> bool,
        io: &mut Io<'_>,
    ) -> Self {
        let mut encoded = Vec::new();
        request.encode(&mut encoded);
        // The dialogue about a Will comes before CONNACK.
        let has_connack = matches!(request, Message::Connect(connect) if !connect.will || will.is_some());
        let mut candidate = Self {
            gateway: Arc::clone(gateway),
            request: encoded.into(),
            will,
            has_connack,
            question: Registering::question(gateway, is_topic, io.now),
            guesses: 0,
            budget,
            held: Held::default(),
            since: io.now,
        };
        if has_connack {
            candidate.send(&Message::ConnAck(ReturnCode::Accepted), io);
        }
        candidate.ask(io);
        candidate
    }

    /// Handles a message of the client. `size` is the size of its datagram in bytes.
    pub fn handle_message(&mut self, message: &Message<'_>, size: usize, io: &mut Io<'_>) -> Verdict {
        self.budget = self.budget.saturating_add(REFLECTION_MAXIMUM * size);
        let mut is_time = !self.question.is_sent && !self.question.is_void;
        match message {
            Message::Connect(_) | Message::PingReq(PingReq { client_id: Some(_) }) => return self.repeat(message, io),
            Message::RegAck(_) | Message::PubAck(_) => {
                if self.question.is_answered_by(message) == Some(true) {
                    return Verdict::Proven;
                }
                io.output.drops.note(DropCause::Unexpected);
                self.question.is_void = true;
                self.guesses += 1;
                if self.guesses == GUESSES_MAXIMUM {
                    return self.give_up(io);
                }
            }
            Message::PingResp => is_time |= self.question.is_ignored(),
            _ if self.held.push(message) => {}
            _ => io.output.drops.note(DropCause::NoUpstream),
        }
        if is_time {
            self.ask(io);
        }
        Verdict::Waits
    }

    /// A copy of the request, or another one.
    fn repeat(&mut self, message: &Message<'_>, io: &mut Io<'_>) -> Verdict {
        let mut encoded = Vec::new();
        message.encode(&mut encoded);
        if *encoded != *self.request {
            return Verdict::Replaced;
        }
        if self.has_connack {
            self.send(&Message::ConnAck(ReturnCode::Accepted), io);
        }
        Verdict::Waits
    }

    /// When [`Candidate::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Instant {
        self.question.retry.at
    }

    /// Repeats the question. A call before the deadline changes nothing.
    pub fn handle_timeout(&mut self, io: &mut Io<'_>) -> Verdict {
        if self.question.retry.at > io.now {
            return Verdict::Waits;
        }
        match self.question.go_on(&self.gateway, io.now) {
            Ok(true) => self.ask(io),
            Ok(false) => self.send(&Message::PingReq(PingReq { client_id: None }), io),
            Err(_) => return self.give_up(io),
        }
        Verdict::Waits
    }

    /// Client id of the request.
    pub fn client_id(&self) -> &str {
        match Message::decode(&self.request) {
            Ok(Message::Connect(connect)) => connect.client_id,
            Ok(Message::PingReq(ping)) => ping.client_id.unwrap_or_default(),
            _ => "",
        }
    }

    /// When the candidate began.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// The CONNECT or PINGREQ.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// The requests that have waited.
    pub fn into_held(self) -> Vec<Box<[u8]>> {
        self.held.into_messages()
    }

    /// Its CONNECT.
    pub(crate) fn connect(&self) -> Option<Connect<'_>> {
        match Message::decode(&self.request) {
            Ok(Message::Connect(connect)) => Some(connect),
            _ => None,
        }
    }

    /// The Will, and the requests that have waited if the client has CONNACK.
    pub(crate) fn into_parts(self) -> (Option<Box<Will>>, Option<Box<Held>>) {
        (self.will, self.has_connack.then(|| Box::new(self.held)))
    }

    /// Sends the question. Until it fits, PINGREQ, whose answers add to the bytes that may be sent.
    fn ask(&mut self, io: &mut Io<'_>) {
        self.question.is_sent = Registering::QUESTION_BYTES <= self.budget;
        let message = match self.question.is_sent {
            true => self.question.message(),
            false => Message::PingReq(PingReq { client_id: None }),
        };
        io.output.push_within(&message, &mut self.budget);
    }

    fn give_up(&mut self, io: &mut Io<'_>) -> Verdict {
        self.send(&Message::Disconnect(Disconnect { duration: None }), io);
        Verdict::Unproven
    }

    fn send(&mut self, message: &Message<'_>, io: &mut Io<'_>) {
        io.output.push_within(message, &mut self.budget);
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate").field("client_id", &self.client_id()).finish_non_exhaustive()
    }
}
