//! Requests of the application.

use std::collections::VecDeque;
use std::time::Instant;

use tenbin_codec::{PublishTemplate, QoS, ReasonCode, Subscription, TopicFilter, VARINT_MAX};
use tenbin_session::{Delivery, Sent};

use super::Task;
use super::link::Link;
use super::request::Request;
use crate::command::{Command, Reply};
use crate::{ClientErrorKind, ClientEvent, LoadReport};

impl Task {
    /// Whether the task takes further commands.
    pub(super) fn takes_commands(&self, link: &Link) -> bool {
        self.commands_open && self.backlog.len() < self.options.queue && !link.is_congested()
    }

    /// Handles a command and those queued behind it, for a single write.
    ///
    /// A QoS 1 or 2 message without quota delays only later messages of QoS 1 and 2 `[MQTT-3.3.4-8]`.
    pub(super) fn take_commands(&mut self, link: &mut Link, first: Option<Command>, now: Instant) {
        let mut command = first;
        let mut left = COMMANDS_AT_ONCE;
        while let Some(next) = command {
            let request = Request::new(next, &mut self.block);
            let waits = !self.backlog.is_empty() && request.needs_quota();
            let blocked = if waits { Some(request) } else { self.send(link, request, now) };
            self.backlog.extend(blocked);
            left -= 1;
            if left == 0 || !self.takes_commands(link) {
                return;
            }
            match self.commands.try_recv() {
                Ok(next) => command = Some(next),
                Err(_) => return, // empty, or closed; the next call detects the latter
            }
        }
        self.commands_open = false; // closed and empty
    }

    /// Sends the backlog, as far as possible.
    pub(super) fn send_backlog(&mut self, link: &mut Link, now: Instant) {
        let mut held_back = VecDeque::new();
        while !link.is_congested()
            && let Some(request) = self.backlog.pop_front()
        {
            // Requests that need no quota overtake messages without quota, in their own order.
            let waits = !held_back.is_empty() && request.needs_quota();
            held_back.extend(if waits { Some(request) } else { self.send(link, request, now) });
            if !held_back.is_empty() && self.backlog.iter().all(Request::needs_quota) {
                break;
            }
        }
        held_back.append(&mut self.backlog);
        self.backlog = held_back;
    }

    /// Puts all subscriptions in front of the backlog, in packets that the broker accepts.
    pub(super) fn subscribe_again(&mut self, link: &Link) {
        let mut packets: Vec<Vec<Subscription>> = Vec::new();
        for (filter, &options) in &self.subscriptions {
            let subscription = Subscription { filter: filter.clone(), options };
            match packets.last_mut() {
                Some(packet)
                    if packet.len() < SUBSCRIPTIONS_AT_ONCE
                        && fits(link, packet.iter().map(|known| &known.filter).chain([filter])) =>
                {
                    packet.push(subscription);
                }
                _ => packets.push(vec![subscription]),
            }
        }
        let requests = packets.into_iter().map(|subscriptions| Request::Subscribe { subscriptions, reply: None });
        self.put_in_front(requests.collect());
    }

    /// Handles a subscription that the broker refused to make again.
    pub(super) fn lose_subscription(&mut self, filter: TopicFilter, reason: ReasonCode) {
        self.subscriptions.remove(&filter);
        self.events.push(ClientEvent::SubscriptionLost { filter, reason });
    }

    /// Publishes a load report. If it is too large for the broker, it is lost, as any QoS 0 message may be.
    pub(super) fn publish_report(&mut self, link: &mut Link, report: &LoadReport, now: Instant) {
        let payload = report.to_json().into();
        let template = PublishTemplate::new(&self.report_topic, None, &payload, &mut self.block);
        link.connection.send(Delivery::new(template, QoS::AtMostOnce, false), now, &mut link.out);
        link.requested();
    }

    /// Sends a request; returns it if it must wait for an acknowledgement.
    fn send(&mut self, link: &mut Link, request: Request, now: Instant) -> Option<Request> {
        let blocked = match request {
            Request::Publish { delivery, reply } => self.send_publish(link, delivery, reply, now),
            Request::Subscribe { subscriptions, reply } => self.send_subscribe(link, subscriptions, reply, now),
            Request::Unsubscribe { filters, reply } => self.send_unsubscribe(link, filters, reply, now),
        };
        link.requested();
        blocked
    }

    fn send_publish(
        &mut self,
        link: &mut Link,
        delivery: Delivery,
        reply: Reply<ReasonCode>,
        now: Instant,
    ) -> Option<Request> {
        if let Some(reason) = refusal(link, &delivery) {
            let _ = reply.send(Err(ClientErrorKind::NotTaken(reason)));
            return None;
        }
        let kept = delivery.qos.is_acknowledged().then(|| delivery.clone());
        match link.connection.send(delivery, now, &mut link.out) {
            Sent::Written(id) => match (id, kept) {
                (Some(id), Some(delivery)) => self.in_flight.insert(id, Request::Publish { delivery, reply }),
                _ => link.answer_when_written(reply),
            },
            Sent::Expired(_) => drop(reply.send(Err(ClientErrorKind::Expired))),
            Sent::TooLarge => drop(reply.send(Err(ClientErrorKind::NotTaken(ReasonCode::PacketTooLarge)))),
            Sent::Blocked(delivery) => return Some(Request::Publish { delivery, reply }),
        }
        None
    }

    fn send_subscribe(
        &mut self,
        link: &mut Link,
        subscriptions: Vec<Subscription>,
        reply: Option<Reply<Vec<ReasonCode>>>,
        now: Instant,
    ) -> Option<Request> {
        if !fits(link, subscriptions.iter().map(|subscription| &subscription.filter)) {
            let reason = ReasonCode::PacketTooLarge;
            match reply {
                Some(reply) => drop(reply.send(Err(ClientErrorKind::NotTaken(reason)))),
                None => subscriptions.into_iter().for_each(|lost| self.lose_subscription(lost.filter, reason)),
            }
            return None;
        }
        match link.connection.subscribe(subscriptions.clone(), None, Vec::new(), now, &mut link.out) {
            Some(id) => {
                self.in_flight.insert(id, Request::Subscribe { subscriptions, reply });
                None
            }
            None => Some(Request::Subscribe { subscriptions, reply }),
        }
    }

    fn send_unsubscribe(
        &mut self,
        link: &mut Link,
        filters: Vec<TopicFilter>,
        reply: Reply<Vec<ReasonCode>>,
        now: Instant,
    ) -> Option<Request> {
        if !fits(link, filters.iter()) {
            let _ = reply.send(Err(ClientErrorKind::NotTaken(ReasonCode::PacketTooLarge)));
            return None;
        }
        match link.connection.unsubscribe(filters.clone(), now, &mut link.out) {
            Some(id) => {
                self.in_flight.insert(id, Request::Unsubscribe { filters, reply });
                None
            }
            None => Some(Request::Unsubscribe { filters, reply }),
        }
    }
}

/// Returns why the broker's CONNACK excludes such a message, if it does.
fn refusal(link: &Link, delivery: &Delivery) -> Option<ReasonCode> {
    let limits = link.connection.limits();
    if delivery.qos > limits.maximum_qos {
        Some(ReasonCode::QoSNotSupported) // [MQTT-3.2.2-11]
    } else if delivery.retain && !limits.retain_available {
        Some(ReasonCode::RetainNotSupported) // [MQTT-3.2.2-14]
    } else {
        None
    }
}

/// Whether a SUBSCRIBE or UNSUBSCRIBE of these filters fits the broker's Maximum Packet Size `[MQTT-3.2.2-15]`.
///
/// Assumes the longest header.
fn fits<'a>(link: &Link, filters: impl Iterator<Item = &'a TopicFilter>) -> bool {
    let maximum = link.connection.limits().peer_maximum_packet_size.min(VARINT_MAX) as usize;
    let filters: usize = filters.map(|filter| 2 + filter.as_bytes().len() + 1).sum();
    REQUEST_HEADER_MAX + filters <= maximum
}

/// Most commands taken in a row.
const COMMANDS_AT_ONCE: usize = 256;
/// Most subscriptions in one packet, when they are made again.
const SUBSCRIPTIONS_AT_ONCE: usize = 256;
/// Longest fixed header, Packet Identifier and Property Length of SUBSCRIBE and UNSUBSCRIBE, in bytes.
const REQUEST_HEADER_MAX: usize = 5 + 2 + 1;
