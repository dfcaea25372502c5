use std::collections::HashMap;

use tenbin_codec::{PacketId, ReasonCode};

use super::request::Request;

/// Requests that the broker has not answered, by Packet Identifier.
///
/// The session has the messages, too, but not the application's tickets, and it forgets everything when the
/// broker does.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    requests: HashMap<PacketId, Sent>,
    /// Counts what was sent, so that it can be sent again in its order.
    sequence: u64,
}

#[derive(Debug)]
struct Sent {
    sequence: u64,
    request: Request,
    /// QoS 2: PUBREC has come, the message is the broker's.
    released: bool,
}

impl InFlight {
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(super) fn insert(&mut self, id: PacketId, request: Request) {
        self.sequence += 1;
        self.requests.insert(id, Sent { sequence: self.sequence, request, released: false });
    }

    pub(super) fn get(&self, id: PacketId) -> Option<&Request> {
        self.requests.get(&id).map(|sent| &sent.request)
    }

    pub(super) fn remove(&mut self, id: PacketId) -> Option<Request> {
        self.requests.remove(&id).map(|sent| sent.request)
    }

    /// PUBREC has come.
    pub(super) fn release(&mut self, id: PacketId) {
        if let Some(sent) = self.requests.get_mut(&id) {
            sent.released = true;
        }
    }

    /// Takes everything but messages, in the order of sending: their Packet Identifiers end with the connection.
    pub(super) fn take_requests(&mut self) -> Vec<Request> {
        let requests = self.requests.extract_if(|_, sent| !matches!(sent.request, Request::Publish { .. }));
        in_order(requests.map(|(_, sent)| sent).collect())
    }

    /// Takes everything that has to be done again in a new session, in the order of sending. Messages that the
    /// broker has told to have are done; subscriptions that the task made again will be made again anyway.
    pub(super) fn take_all(&mut self) -> Vec<Request> {
        let mut again = Vec::with_capacity(self.requests.len());
        for (_, sent) in self.requests.drain() {
            match sent.request {
                Request::Publish { reply, .. } if sent.released => drop(reply.send(Ok(ReasonCode::Success))),
                Request::Subscribe { reply: None, .. } => {}
                _ => again.push(sent),
            }
        }
        in_order(again)
    }
}

fn in_order(mut sent: Vec<Sent>) -> Vec<Request> {
    sent.sort_unstable_by_key(|sent| sent.sequence);
    sent.into_iter().map(|sent| sent.request).collect()
}
