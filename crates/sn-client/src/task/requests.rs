//! Commands of the application, and the answers to them.

use std::time::Instant;

use tenbin_sn::RequestId;
use tenbin_sn_codec::v1_2::{QoS, ReturnCode};

use super::Task;
use crate::command::{Command, Reply, Request};
use crate::{ClientErrorKind, ClientEvent, Topic};

/// A request whose answer is due.
#[derive(Debug)]
pub(super) struct OpenRequest {
    /// Absent for requests of the task itself.
    reply: Option<Reply>,
    subject: Subject,
}

/// Subscription that the answer concerns.
#[derive(Debug)]
enum Subject {
    None,
    /// With the QoS that was asked for.
    Subscribe(Topic, QoS),
    Unsubscribe(Topic),
}

impl Task {
    /// Handles a command; `None` means that all handles were dropped, or that the queue is closed and empty.
    pub(super) fn handle_command(&mut self, command: Option<Command>) {
        let now = Instant::now();
        match command {
            None => match &mut self.leaving {
                Some(leaving) => leaving.takes_commands = false,
                None => self.leave(None),
            },
            Some(Command::Request(request, reply)) if self.peer.is_active() => self.request(request, reply),
            Some(Command::Request(_, reply)) => drop(reply.send(Err(ClientErrorKind::Asleep))),
            Some(Command::Sleep(seconds, reply)) => self.bedtime = Some((seconds, reply)),
            Some(Command::Wake(reply)) => {
                let has_begun = self.peer.wake(now, &mut self.out);
                self.begin_or_refuse(has_begun, reply);
            }
            Some(Command::Activate(reply)) => {
                let has_begun = !self.peer.is_active();
                if has_begun {
                    self.peer.connect(now, &mut self.out);
                }
                self.begin_or_refuse(has_begun, reply);
            }
        }
    }

    fn begin_or_refuse(&mut self, has_begun: bool, reply: Reply) {
        if has_begun {
            self.transition = Some(reply);
        } else {
            let _ = reply.send(Err(ClientErrorKind::NotAsleep));
        }
    }

    fn request(&mut self, request: Request, reply: Reply) {
        let (now, out) = (Instant::now(), &mut self.out);
        let (id, subject) = match request {
            Request::Register(name) => (self.peer.register(&name, now, out), Subject::None),
            Request::Publish(message) => {
                let topic = message.topic.into();
                (self.peer.publish(topic, message.qos, message.retain, message.payload, now, out), Subject::None)
            }
            Request::Subscribe(filter, qos) => {
                (self.peer.subscribe(filter.clone().into(), qos, now, out), Subject::Subscribe(filter, qos))
            }
            Request::Unsubscribe(filter) => {
                (self.peer.unsubscribe(filter.clone().into(), now, out), Subject::Unsubscribe(filter))
            }
            Request::UpdateWill(will) => (self.peer.update_will(will, now, out), Subject::None),
        };
        self.requests.insert(id, OpenRequest { reply: Some(reply), subject });
    }

    /// Makes all subscriptions again, but for those that the application has ended.
    pub(super) fn subscribe_again(&mut self) {
        let now = Instant::now();
        // Subscriptions of an earlier connection were not answered.
        let (peer, out) = (&mut self.peer, &mut self.out);
        self.requests.retain(|&id, request| {
            let is_own = request.reply.is_none() && matches!(request.subject, Subject::Subscribe(..));
            if is_own {
                peer.cancel(id, now, out);
            }
            !is_own
        });
        let ended = |filter: &Topic| {
            let is_end =
                |request: &OpenRequest| matches!(&request.subject, Subject::Unsubscribe(open) if open == filter);
            self.requests.values().any(is_end)
        };
        let again: Vec<_> = self.subscriptions.iter().filter(|(filter, _)| !ended(filter)).collect();
        let mut requests = Vec::new();
        for (filter, &qos) in again {
            let id = peer.subscribe(filter.clone().into(), qos, now, out);
            requests.push((id, OpenRequest { reply: None, subject: Subject::Subscribe(filter.clone(), qos) }));
        }
        self.requests.extend(requests);
    }

    pub(super) fn request_subscribed(&mut self, id: RequestId, qos: QoS) {
        let Some(OpenRequest { reply, subject }) = self.requests.remove(&id) else { return };
        if let Subject::Subscribe(filter, asked) = subject {
            self.subscriptions.insert(filter, asked);
        }
        if let Some(reply) = reply {
            let _ = reply.send(Ok(Some(qos)));
        }
    }

    pub(super) fn request_done(&mut self, id: RequestId, code: ReturnCode) {
        let Some(OpenRequest { reply, subject }) = self.requests.remove(&id) else { return };
        let is_accepted = code == ReturnCode::Accepted;
        match subject {
            Subject::Subscribe(filter, _) if reply.is_none() => {
                self.subscriptions.remove(&filter);
                self.events.send(ClientEvent::SubscriptionLost { filter, code });
            }
            Subject::Unsubscribe(filter) if is_accepted => drop(self.subscriptions.remove(&filter)),
            _ => {}
        }
        if let Some(reply) = reply {
            let _ = reply.send(if is_accepted { Ok(None) } else { Err(ClientErrorKind::Rejected(code)) });
        }
    }
}
