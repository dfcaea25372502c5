use std::collections::HashMap;

use tenbin_codec::{PacketId, ReasonCode};

use super::request::Request;

/// Unanswered requests by Packet Identifier.
///
/// The session has the messages as well, but not the application's tickets. It also forgets everything when the broker
/// does.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    requests: HashMap<PacketId, Sent>,
    /// Counter of sent requests, which gives the order for sending again.
    sequence: u64,
}

#[derive(Debug)]
struct Sent {
    sequence: u64,
    request: Request,
    /// QoS 2: PUBREC was received, so the broker has the message.
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

    /// Records a PUBREC.
    pub(super) fn release(&mut self, id: PacketId) {
        if let Some(sent) = self.requests.get_mut(&id) {
            sent.released = true;
        }
    }

    /// Takes all requests except messages, in sending order: their Packet Identifiers end with the connection.
    pub(super) fn take_requests(&mut self) -> Vec<Request> {
        let requests = self.requests.extract_if(|_, sent| !matches!(sent.request, Request::Publish { .. }));
        in_order(requests.map(|(_, sent)| sent).collect())
    }

    /// Takes all requests to repeat in a new session, in sending order.
    ///
    /// Messages with PUBREC are complete. The task's own subscriptions are omitted, since all subscriptions are made
    /// again.
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
