//! WILLTOPICUPD and WILLMSGUPD. MQTT can change a Will only by a new connection.

use bytes::Bytes;
use tenbin_codec::{Disconnect, Packet, ReasonCode, Will};
use tenbin_sn_codec::v1_2::{Message, ReturnCode, WillTopic};

use super::upstream::Upstream;
use super::{Action, GatewayPeer};
use crate::output::Io;

/// A change of the Will that waits for a new connection to the broker.
#[derive(Debug)]
pub(super) struct WillUpdate {
    kind: Kind,
    will: Option<Box<Will>>,
}

/// The message that changes the Will.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Topic,
    Message,
}

impl GatewayPeer {
    pub(super) fn handle_will_topic_update(&mut self, topic: Option<&WillTopic<'_>>, io: &mut Io<'_>) -> Action {
        let will = match topic {
            None => None, // [SN-WILLUPD-2]
            Some(topic) => {
                let message = self.will.as_ref().map_or(Bytes::new(), |will| will.payload.clone());
                match self.will_of(topic, message) {
                    Some(will) => Some(will),
                    None => return self.answer(Kind::Topic, ReturnCode::NotSupported, io),
                }
            }
        };
        self.update_will(WillUpdate { kind: Kind::Topic, will }, io)
    }

    pub(super) fn handle_will_message_update(&mut self, message: &[u8], io: &mut Io<'_>) -> Action {
        let Some(mut will) = self.will.clone() else {
            return self.answer(Kind::Message, ReturnCode::NotSupported, io); // A message alone is no Will.
        };
        will.payload = Bytes::copy_from_slice(message);
        if !self.is_within_bounds(&will) {
            return self.answer(Kind::Message, ReturnCode::NotSupported, io); // [SN-BOUND-2]
        }
        self.update_will(WillUpdate { kind: Kind::Message, will: Some(will) }, io)
    }

    fn update_will(&mut self, update: WillUpdate, io: &mut Io<'_>) -> Action {
        if self.will_update.is_some() {
            return Action::Continue; // The client repeats it, if it is another one.
        }
        if update.will == self.will {
            return self.answer(update.kind, ReturnCode::Accepted, io);
        }
        // A Clean Session of 3.1.1 would end with its connection, and the subscriptions with it.
        if self.terms.clean_session && !self.settings().upstream_version.is_v5() {
            return self.answer(update.kind, ReturnCode::NotSupported, io);
        }
        self.will_update = Some(Box::new(update));
        self.begin_will_update(io)
    }

    /// Replaces the connection to the broker, once the broker owes no answer on the old one `[SN-WILLUPD-1]`.
    ///
    /// The session goes on: the broker sends unacknowledged messages again, and the outbox knows them.
    pub(super) fn begin_will_update(&mut self, io: &mut Io<'_>) -> Action {
        let is_open = matches!(self.upstream, Upstream::Open(_));
        match &mut self.will_update {
            Some(update) if is_open && self.exchanges.broker_owes_nothing() => {
                let will = update.will.take();
                self.set_will(will);
                self.write(&Packet::Disconnect(Disconnect::new(ReasonCode::Success)), io);
                self.upstream = Upstream::Opening { since: io.now };
                Action::ReopenUpstream
            }
            _ => Action::Continue,
        }
    }

    /// The new connection is there.
    pub(super) fn answer_will_update(&mut self, code: ReturnCode, io: &mut Io<'_>) {
        if let Some(update) = self.will_update.take() {
            let _ = self.answer(update.kind, code, io);
        }
    }

    fn answer(&mut self, kind: Kind, code: ReturnCode, io: &mut Io<'_>) -> Action {
        self.send(
            &match kind {
                Kind::Topic => Message::WillTopicResp(code),
                Kind::Message => Message::WillMsgResp(code),
            },
            io,
        );
        Action::Continue
    }
}
