//! SUBSCRIBE and UNSUBSCRIBE, a few filters at a time. Other tasks run in between; later packets of the client wait.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use tenbin_balancer::Rng;
use tenbin_codec::{
    AckProperties, Packet, PacketId, ReasonCode, SubAck, Subscribe, Subscription, SubscriptionOptions, TopicFilter,
    UnsubAck, Unsubscribe,
};

use super::connection::ConnectionTask;
use super::ending::End;
use super::reason_strings::reason_string;
use super::stream::Stream;
use super::weight::weight_in;
use crate::durable::{Changes, CommitPoint};
use crate::lifecycle;
use crate::router::Router;
use crate::values::Grant;

/// A packet with filters that are not yet applied.
#[derive(Debug)]
pub(super) struct FilterWork {
    request: Request,
    /// Reason Codes of the applied filters.
    reasons: Vec<ReasonCode>,
}

#[derive(Debug)]
enum Request {
    Subscribe {
        subscribe: Subscribe,
        /// Refuse all filters, because the disk is congested.
        is_disk_behind: bool,
    },
    Unsubscribe(Unsubscribe),
}

impl Request {
    fn len(&self) -> usize {
        match self {
            Self::Subscribe { subscribe, .. } => subscribe.subscriptions.len(),
            Self::Unsubscribe(unsubscribe) => unsubscribe.filters.len(),
        }
    }
}

fn suback(packet_id: PacketId, reasons: Vec<ReasonCode>) -> Packet {
    let reason_string = reasons.iter().find_map(|&reason| reason_string(reason));
    Packet::SubAck(SubAck {
        packet_id,
        properties: AckProperties { reason_string, ..AckProperties::default() },
        reasons,
    })
}

fn unsuback(packet_id: PacketId, reasons: Vec<ReasonCode>) -> Packet {
    Packet::UnsubAck(UnsubAck { packet_id, properties: AckProperties::default(), reasons })
}

impl<S: Stream> ConnectionTask<S> {
    pub(super) fn subscribe(&mut self, subscribe: Subscribe, now: Instant) -> Result<(), End> {
        let all = vec![ReasonCode::Success; subscribe.subscriptions.len()];
        self.expect_to_answer(&suback(subscribe.packet_id, all))?;
        let is_kept = self.lease.state.durable.is_some();
        let is_disk_behind = is_kept && self.shared.durable.as_ref().is_some_and(|durable| durable.is_congested());
        self.begin_filters(Request::Subscribe { subscribe, is_disk_behind }, now)
    }

    pub(super) fn unsubscribe(&mut self, unsubscribe: Unsubscribe, now: Instant) -> Result<(), End> {
        let all = vec![ReasonCode::Success; unsubscribe.filters.len()];
        self.expect_to_answer(&unsuback(unsubscribe.packet_id, all))?;
        self.begin_filters(Request::Unsubscribe(unsubscribe), now)
    }

    fn begin_filters(&mut self, request: Request, now: Instant) -> Result<(), End> {
        let reasons = Vec::with_capacity(request.len());
        self.filter_work = Some(Box::new(FilterWork { request, reasons }));
        self.go_on_with_filters(now)
    }

    /// Applies filters until the task has to yield. Until all are applied, [`FiltersInTurn`] lets no further packet in.
    ///
    /// [`FiltersInTurn`]: super::throttle::FiltersInTurn
    pub(super) fn go_on_with_filters(&mut self, now: Instant) -> Result<(), End> {
        while !self.filters_in_turn.are_many()
            && let Some(mut work) = self.filter_work.take()
        {
            let FilterWork { request, reasons } = &mut *work;
            let (begin, end) = (reasons.len(), request.len().min(reasons.len() + SLICE_FILTERS));
            let mut changes = Changes::default();
            let is_kept = match request {
                Request::Subscribe { subscribe, is_disk_behind } => {
                    self.subscribe_some(subscribe, begin..end, *is_disk_behind, reasons, &mut changes, now);
                    !*is_disk_behind
                }
                Request::Unsubscribe(unsubscribe) => {
                    self.unsubscribe_some(&unsubscribe.filters[begin..end], reasons, &mut changes, now);
                    true
                }
            };
            self.filters_in_turn.count(end - begin);
            let commit_point = if is_kept { self.keep(&changes) } else { CommitPoint::NOW };
            let is_done = reasons.len() == request.len();
            if is_done {
                let reasons = std::mem::take(reasons);
                let answer = match request {
                    Request::Subscribe { subscribe, .. } => suback(subscribe.packet_id, reasons), // [MQTT-3.8.4-1]
                    Request::Unsubscribe(unsubscribe) => unsuback(unsubscribe.packet_id, reasons), // [MQTT-3.10.4-4]
                };
                self.answer_when_safe(commit_point, answer, now)?;
            }
            if let Request::Subscribe { subscribe, .. } = request {
                let filters = subscribe.subscriptions[begin..end].iter().map(|subscription| &subscription.filter);
                self.shared.router.connected(filters, now, &mut Rng::new(self.lease.client.number));
            }
            if !is_done {
                self.filter_work = Some(work);
            }
        }
        Ok(())
    }

    /// Applies a range of subscriptions. Judges all of them before it locks the index, since an authorizer may be slow.
    fn subscribe_some(
        &mut self,
        subscribe: &Subscribe,
        range: Range<usize>,
        is_disk_behind: bool,
        reasons: &mut Vec<ReasonCode>,
        changes: &mut Changes,
        now: Instant,
    ) {
        let Some(account) = self.lease.client.outbox.account() else { return };
        let weight = weight_in(&subscribe.user_properties, self.shared.peer).unwrap_or(self.weight);
        let filters_maximum = self.shared.config.filters_per_packet_maximum();
        let limits = self.shared.config.subscription_limits();
        let qos_maximum = self.shared.capabilities.maximum_qos;
        let taken = &subscribe.subscriptions[range.start..range.end.min(filters_maximum)];
        let verdicts = taken.iter().map(|Subscription { filter, .. }| match self.judge(filter) {
            Ok(()) if is_disk_behind => Err(ReasonCode::QuotaExceeded),
            verdict => verdict,
        });
        let verdicts: Vec<_> = verdicts.collect();
        let mut added = 0;
        let mut edit = None;
        for (Subscription { filter, options }, verdict) in taken.iter().zip(verdicts) {
            let options = SubscriptionOptions { qos: options.qos.min(qos_maximum), ..*options };
            let grant = Grant { options, identifier: subscribe.subscription_identifier, weight };
            let state = &mut *self.lease.state;
            let known = state.subscriptions.get(filter).copied();
            let is_taken = verdict.is_ok() && state.subscriptions.insert(filter, grant, limits, &account);
            if !is_taken {
                reasons.push(verdict.err().unwrap_or(ReasonCode::QuotaExceeded));
                continue;
            }
            // An unchanged subscription changes no routes.
            if state.suspended.remove(filter) || known != Some(grant) {
                lifecycle::joins(&self.shared, &self.lease.client, filter, now);
                let edit = edit.get_or_insert_with(|| self.shared.router.edit());
                edit.subscribe(filter, &self.lease.client.receiver(), grant, now);
                added += u64::from(known.is_none());
                if let Some(session) = &state.durable {
                    changes.subscribed(session, filter, &grant);
                }
            }
            if Router::brings_retained(filter, options, known.is_none()) {
                state.retained_pages.begin(filter, grant);
            }
            reasons.push(match options.qos.bits() {
                0 => ReasonCode::Success,
                1 => ReasonCode::GrantedQoS1,
                _ => ReasonCode::GrantedQoS2,
            });
        }
        drop(edit);
        self.shared.metrics.subscriptions.add(added);
        if range.end >= filters_maximum {
            reasons.resize(subscribe.subscriptions.len(), ReasonCode::QuotaExceeded);
        }
    }

    /// Whether the client may subscribe to this filter.
    fn judge(&self, filter: &TopicFilter) -> Result<(), ReasonCode> {
        let (config, capabilities) = (&self.shared.config, &self.shared.capabilities);
        let is_long = filter.as_bytes().len() > config.topic_bytes_maximum();
        if is_long || filter.levels().count() > config.topic_levels_maximum() {
            return Err(ReasonCode::TopicFilterInvalid);
        }
        // For v5 these have ended the connection before.
        if filter.has_wildcard() && !capabilities.wildcard_subscriptions_available {
            return Err(ReasonCode::WildcardSubscriptionsNotSupported);
        }
        if filter.is_shared() && !capabilities.shared_subscriptions_available {
            return Err(ReasonCode::SharedSubscriptionsNotSupported);
        }
        self.lease.client.rights.check_subscription(filter)
    }

    /// Removes subscriptions, and redelivers unsent messages of share groups to other members.
    fn unsubscribe_some(
        &mut self,
        filters: &[TopicFilter],
        reasons: &mut Vec<ReasonCode>,
        changes: &mut Changes,
        now: Instant,
    ) {
        let client = Arc::clone(&self.lease.client);
        let groups =
            filters.iter().filter(|filter| filter.is_shared() && self.lease.state.subscriptions.contains(filter));
        // Before leaving: messages published meanwhile must not overtake those redelivered.
        let redelivery = self.shared.router.begin_leaving(client.number, groups);
        let mut removed = 0;
        let mut edit = None;
        for filter in filters {
            if !self.lease.state.subscriptions.remove(filter) {
                reasons.push(ReasonCode::NoSubscriptionExisted);
                continue;
            }
            if let Some(session) = &self.lease.state.durable {
                changes.unsubscribed(session, filter);
            }
            lifecycle::leaves(&self.shared, &client, filter, now);
            self.lease.state.suspended.remove(filter);
            let edit = edit.get_or_insert_with(|| self.shared.router.edit());
            edit.unsubscribe(filter, client.number);
            self.lease.state.retained_pages.cancel(filter);
            removed += 1;
            reasons.push(ReasonCode::Success);
        }
        drop(edit);
        let left = redelivery.left();
        let waiting = match left.is_empty() {
            true => Vec::new(),
            false => client.outbox.withdraw(|delivery| delivery.share.is_some_and(|group| left.contains(&group))),
        };
        redelivery.finish(waiting, now, &mut Rng::new(client.number));
        self.shared.metrics.subscriptions.subtract(removed);
    }

    /// Stores changes of subscriptions; returns their commit point.
    ///
    /// Even without a change it covers earlier ones: a previous connection may have ended before its own were durable.
    fn keep(&self, changes: &Changes) -> CommitPoint {
        match &self.shared.durable {
            Some(durable) if self.lease.state.durable.is_some() => {
                durable.make(changes);
                durable.all()
            }
            _ => CommitPoint::NOW,
        }
    }

    /// Ends the connection before any change if the client cannot receive the answer, as it would not know the outcome.
    fn expect_to_answer(&self, answer: &Packet) -> Result<(), End> {
        if self.connection.takes(answer) { Ok(()) } else { Err(End::AnswerTooLarge(answer.packet_type())) }
    }
}

/// Filters in one change of the index, while other tasks wait for it.
const SLICE_FILTERS: usize = 32;
