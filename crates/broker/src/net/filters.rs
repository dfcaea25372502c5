//! SUBSCRIBE and UNSUBSCRIBE, a few filters at a time. Other tasks run in between; later packets of the client wait.

mod refused;

use std::num::NonZeroU16;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use tenbin_balancer::Rng;
use tenbin_codec::{
    AckProperties, Packet, PacketId, ReasonCode, SubAck, Subscribe, Subscription, SubscriptionOptions, TopicFilter,
    UnsubAck, Unsubscribe,
};

use self::refused::{Cause, note_refused};
use super::core::Core;
use super::end::End;
use super::gate::DurabilityGate;
use super::hooked::Hooked;
use super::reason_strings::reason_string;
use super::weight::{concurrency_in, weight_in};
use crate::durable::{Changes, CommitPoint};
use crate::lifecycle::{self, Denied};
use crate::memory::Account;
use crate::registry::Subscriptions;
use crate::router::{HeldKey, Router};
use crate::values::{Bound, Grant, SubscriptionLimits};

/// SUBSCRIBE and UNSUBSCRIBE of one connection.
#[derive(Debug, Default)]
pub(super) struct Filters {
    /// Number of filters since the task last yielded.
    in_turn: u16,
    /// The client is a bridge.
    is_bridge: bool,
    /// A packet in progress: no packet is decoded before it ends.
    work: Option<Box<FilterWork>>,
}

/// A packet with filters that are not yet applied.
#[derive(Debug)]
struct FilterWork {
    request: Request,
    /// Reason Codes of the applied filters.
    reasons: Vec<ReasonCode>,
}

#[derive(Debug)]
enum Request {
    Subscribe(Subscribing),
    Unsubscribe(Unsubscribe),
}

#[derive(Debug)]
struct Subscribing {
    packet: Subscribe,
    /// Weight of its subscriptions.
    weight: NonZeroU16,
    /// Refuse all filters, because the disk is congested.
    is_disk_behind: bool,
}

impl Request {
    fn len(&self) -> usize {
        match self {
            Self::Subscribe(subscribing) => subscribing.packet.subscriptions.len(),
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

impl Filters {
    pub(super) fn new(is_bridge: bool) -> Self {
        Self { is_bridge, ..Self::default() }
    }

    /// Handles SUBSCRIBE. Subscriptions that state no weight get `weight`.
    pub(super) fn subscribe(
        &mut self,
        core: &mut Core,
        gate: &mut DurabilityGate,
        mut subscribe: Subscribe,
        weight: NonZeroU16,
        now: Instant,
    ) -> Result<(), End> {
        let all = vec![ReasonCode::Success; subscribe.subscriptions.len()];
        expect_to_answer(core, &suback(subscribe.packet_id, all))?;
        let is_kept = core.lease.state.durable.is_some();
        let is_disk_behind =
            is_kept && core.open.shared.storage.durable.as_ref().is_some_and(|durable| durable.is_congested());
        if let Some(concurrency) = concurrency_in(&subscribe.user_properties, core.open.peer) {
            core.lease.client.load.set_concurrency(concurrency.get());
        }
        if self.is_bridge {
            for Subscription { filter, options } in &mut subscribe.subscriptions {
                options.retain_as_published = true;
                options.no_local = !filter.is_shared(); // [MQTT-3.8.3-4]
            }
        }
        let weight = weight_in(&subscribe.user_properties, core.open.peer).unwrap_or(weight);
        let subscribing = Subscribing { packet: subscribe, weight, is_disk_behind };
        self.begin(core, gate, Request::Subscribe(subscribing), now)
    }

    /// Handles UNSUBSCRIBE.
    pub(super) fn unsubscribe(
        &mut self,
        core: &mut Core,
        gate: &mut DurabilityGate,
        unsubscribe: Unsubscribe,
        now: Instant,
    ) -> Result<(), End> {
        let all = vec![ReasonCode::Success; unsubscribe.filters.len()];
        expect_to_answer(core, &unsuback(unsubscribe.packet_id, all))?;
        self.begin(core, gate, Request::Unsubscribe(unsubscribe), now)
    }

    fn begin(&mut self, core: &mut Core, gate: &mut DurabilityGate, request: Request, now: Instant) -> Result<(), End> {
        let reasons = Vec::with_capacity(request.len());
        self.work = Some(Box::new(FilterWork { request, reasons }));
        self.go_on(core, gate, now)
    }

    /// Whether to yield: input that was read but not decoded waits for the next turn.
    #[inline]
    pub(super) fn is_turn_over(&self) -> bool {
        self.in_turn >= TURN_FILTERS
    }

    /// Begins a new turn; returns whether to decode input read before.
    #[inline]
    pub(super) fn begin_turn(&mut self) -> bool {
        let is_resumed = self.is_turn_over();
        self.in_turn = 0;
        is_resumed
    }

    /// Ends the turn for another cause than filters.
    pub(super) fn end_turn(&mut self) {
        self.in_turn = TURN_FILTERS;
    }

    fn count(&mut self, count: usize) {
        self.in_turn = self.in_turn.saturating_add(u16::try_from(count).unwrap_or(u16::MAX));
    }

    /// Applies filters until the task has to yield. Until all are applied, [`Filters::is_turn_over`] lets no further packet
    /// in.
    #[inline]
    pub(super) fn go_on(&mut self, core: &mut Core, gate: &mut DurabilityGate, now: Instant) -> Result<(), End> {
        if self.work.is_some() {
            self.work(core, gate, now)?;
        }
        Ok(())
    }

    fn work(&mut self, core: &mut Core, gate: &mut DurabilityGate, now: Instant) -> Result<(), End> {
        while !self.is_turn_over()
            && let Some(mut work) = self.work.take()
        {
            let FilterWork { request, reasons } = &mut *work;
            let (begin, end) = (reasons.len(), request.len().min(reasons.len() + SLICE_FILTERS));
            let mut changes = Changes::default();
            let is_kept = match request {
                Request::Subscribe(subscribing) => {
                    subscribe_some(core, subscribing, begin..end, reasons, &mut changes, now);
                    !subscribing.is_disk_behind
                }
                Request::Unsubscribe(unsubscribe) => {
                    unsubscribe_some(core, &unsubscribe.filters[begin..end], reasons, &mut changes, now);
                    true
                }
            };
            self.count(end - begin);
            let commit_point = if is_kept { keep(core, &changes) } else { CommitPoint::NOW };
            let is_done = reasons.len() == request.len();
            if is_done {
                let reasons = std::mem::take(reasons);
                let answer = match request {
                    Request::Subscribe(subscribing) => suback(subscribing.packet.packet_id, reasons), // [MQTT-3.8.4-1]
                    Request::Unsubscribe(unsubscribe) => unsuback(unsubscribe.packet_id, reasons),    // [MQTT-3.10.4-4]
                };
                gate.answer(core, commit_point, answer, now)?;
            }
            match request {
                Request::Subscribe(subscribing) => {
                    let asked = subscribing.packet.subscriptions[begin..end].iter();
                    let filters = asked.map(|subscription| &subscription.filter);
                    core.open.shared.routing.router.connected(filters, now, &mut Rng::new(core.lease.client.number));
                }
                // Its messages of the groups that it left are with others.
                Request::Unsubscribe(_) => core.may_begin(now),
            }
            gate.set_subscribing(!is_done && matches!(request, Request::Subscribe(_)));
            if !is_done {
                self.work = Some(work);
            }
        }
        Ok(())
    }
}

/// Applies a range of subscriptions. Judges all of them before it locks the index, since an authorizer may be slow.
fn subscribe_some(
    core: &mut Core,
    subscribing: &mut Subscribing,
    range: Range<usize>,
    reasons: &mut Vec<ReasonCode>,
    changes: &mut Changes,
    now: Instant,
) {
    let Some(account) = core.lease.client.outbox.account() else { return };
    let hooked = match &core.hooks {
        Some(hooks) => ask_hooks(hooks, &mut subscribing.packet.subscriptions[range.clone()]),
        None => Vec::new(),
    };
    let &mut Subscribing { packet: ref subscribe, weight, is_disk_behind } = subscribing;
    let limits = core.open.shared.config.subscription_limits();
    let qos_maximum = core.open.shared.sessions.capabilities.maximum_qos;
    let taken = &subscribe.subscriptions[range.clone()];
    let verdicts = taken.iter().enumerate().map(|(place, Subscription { filter, .. })| match judge(core, filter) {
        Ok(()) if is_disk_behind => Err((ReasonCode::QuotaExceeded, Cause::Disk)),
        Ok(()) => {
            let verdict = hooked.get(place).map_or(Ok(()), |hooked| hooked.verdict);
            verdict.map_err(|reason| (reason, Cause::Hook))
        }
        refused => refused,
    });
    let verdicts: Vec<_> = verdicts.collect();
    let mut added = 0;
    let mut refused = Vec::new();
    let mut edit = None;
    for (place, (Subscription { filter, options }, verdict)) in taken.iter().zip(verdicts).enumerate() {
        let options = SubscriptionOptions { qos: options.qos.min(qos_maximum), ..*options };
        let grant = Grant { options, identifier: subscribe.subscription_identifier, weight };
        if let Err((reason, cause)) = verdict {
            reasons.push(reason);
            refused.push(cause);
            continue;
        }
        let state = &mut *core.lease.state;
        let known = state.subscriptions.get(filter).copied();
        let asked = hooked.get(place).and_then(|hooked| hooked.asked.as_ref());
        let is_new_member = filter.is_shared() && known.is_none();
        let may_be_routed = !is_new_member || {
            let edit = edit.get_or_insert_with(|| core.open.shared.routing.router.edit());
            edit.may_subscribe(filter, &core.lease.client.outbox)
        };
        let taken = match may_be_routed {
            true => take(&mut state.subscriptions, filter, grant, asked, limits, &account),
            false => Err(Bound::GroupsPerTopic),
        };
        if let Err(bound) = taken {
            refused.push(Cause::Limit(bound));
            reasons.push(ReasonCode::QuotaExceeded);
            continue;
        }
        // An unchanged subscription changes no routes.
        if state.suspended.remove(filter) || known != Some(grant) {
            lifecycle::joins(&core.open.shared.routing, &core.lease.client, filter, now);
            let edit = edit.get_or_insert_with(|| core.open.shared.routing.router.edit());
            edit.subscribe(filter, &core.lease.client.receiver(), grant, now);
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
    core.open.shared.operations.metrics.subscriptions.add(added);
    if !refused.is_empty() {
        note_refused(core, refused, now);
    }
    if let Some(hooks) = &core.hooks {
        taken.iter().zip(&reasons[range.start..]).for_each(|(asked, reason)| hooks.subscribed(asked, *reason));
    }
}

/// Adds a subscription to the session, or replaces its grant. `asked`: the client's filter, if hooks have replaced it.
///
/// # Errors
/// A limit refuses it.
fn take(
    subscriptions: &mut Subscriptions,
    filter: &TopicFilter,
    grant: Grant,
    asked: Option<&TopicFilter>,
    limits: SubscriptionLimits,
    account: &Arc<Account>,
) -> Result<(), Bound> {
    let is_known = subscriptions.contains(filter);
    if asked.is_some_and(|asked| !subscriptions.rename(asked, filter, limits, account)) {
        return Err(Bound::Subscriptions);
    }
    let taken = subscriptions.insert(filter, grant, limits, account);
    if taken.is_err() && !is_known && asked.is_some_and(|asked| subscriptions.name_of(asked) == Some(filter)) {
        asked.into_iter().for_each(|asked| subscriptions.forget_name(asked));
    }
    taken
}

/// Answer of hooks about a subscription.
struct HookedSubscription {
    verdict: Result<(), ReasonCode>,
    /// Filter of the client, if the hooks have replaced it.
    asked: Option<TopicFilter>,
}

/// Asks hooks about subscriptions, which they may change.
#[cold]
fn ask_hooks(hooks: &Hooked, subscriptions: &mut [Subscription]) -> Vec<HookedSubscription> {
    let ask = |subscription: &mut Subscription| {
        let asked = subscription.filter.clone();
        let verdict = hooks.subscribe(subscription);
        subscription.options.no_local &= !subscription.filter.is_shared(); // [MQTT-3.8.3-4]
        HookedSubscription { verdict, asked: (asked != subscription.filter).then_some(asked) }
    };
    subscriptions.iter_mut().map(ask).collect()
}

/// Whether the client may subscribe to this filter.
fn judge(core: &Core, filter: &TopicFilter) -> Result<(), (ReasonCode, Cause)> {
    let (config, capabilities) = (&core.open.shared.config, &core.open.shared.sessions.capabilities);
    if filter.as_bytes().len() > config.topic_bytes_maximum() {
        return Err((ReasonCode::TopicFilterInvalid, Cause::Limit(Bound::TopicBytes)));
    }
    if filter.levels().count() > config.topic_levels_maximum() {
        return Err((ReasonCode::TopicFilterInvalid, Cause::Limit(Bound::TopicLevels)));
    }
    // For v5 these have ended the connection before.
    if filter.has_wildcard() && !capabilities.wildcard_subscriptions_available {
        return Err((ReasonCode::WildcardSubscriptionsNotSupported, Cause::NotSupported));
    }
    if filter.is_shared() && !capabilities.shared_subscriptions_available {
        return Err((ReasonCode::SharedSubscriptionsNotSupported, Cause::NotSupported));
    }
    let rights = &core.lease.client.rights;
    rights.check_subscription(filter).map_err(|reason| {
        let told = core.connection.version().is_v5();
        core.open.shared.operations.note_denied(Denied::Subscribe, core.open.peer, rights, filter, told);
        (reason, Cause::Acl)
    })
}

/// Removes subscriptions, and redelivers unsent messages of share groups to other members.
fn unsubscribe_some(
    core: &mut Core,
    filters: &[TopicFilter],
    reasons: &mut Vec<ReasonCode>,
    changes: &mut Changes,
    now: Instant,
) {
    let client = Arc::clone(&core.lease.client);
    let first = reasons.len();
    let refused: Vec<_> = match &core.hooks {
        Some(hooks) => filters.iter().map(|filter| hooks.unsubscribe(filter)).collect(),
        None => Vec::new(),
    };
    let refusal = |place: usize| refused.get(place).copied().flatten();
    let named = core.lease.state.subscriptions.are_renamed().then(|| replaced(core, filters, refusal));
    let filters = named.as_deref().unwrap_or(filters);
    let is_left = |filter: &TopicFilter| filter.is_shared() && core.lease.state.subscriptions.contains(filter);
    let groups = filters.iter().enumerate().filter(|(place, filter)| refusal(*place).is_none() && is_left(filter));
    let groups = groups.map(|(_, filter)| filter);
    // Before leaving: messages published in between must not overtake redelivered messages.
    let redelivery = core.open.shared.routing.router.begin_leaving(client.number, groups);
    let mut removed = 0;
    let mut edit = None;
    for (place, filter) in filters.iter().enumerate() {
        if let Some(reason) = refusal(place) {
            reasons.push(reason);
            continue;
        }
        if !core.lease.state.subscriptions.remove(filter) {
            reasons.push(ReasonCode::NoSubscriptionExisted);
            continue;
        }
        if let Some(session) = &core.lease.state.durable {
            changes.unsubscribed(session, filter);
        }
        lifecycle::leaves(&core.open.shared.routing, &client, filter, now);
        core.lease.state.suspended.remove(filter);
        let edit = edit.get_or_insert_with(|| core.open.shared.routing.router.edit());
        edit.unsubscribe(filter, client.number);
        core.lease.state.retained_pages.cancel(filter);
        removed += 1;
        reasons.push(ReasonCode::Success);
    }
    drop(edit);
    let left = redelivery.left();
    let waiting = match left.is_empty() {
        true => Vec::new(),
        false => client.outbox.withdraw(|delivery| delivery.share.is_some_and(|group| left.contains(&group))),
    };
    // Messages in flight keep their keys until they are acknowledged.
    core.open.shared.routing.router.keys_done(waiting.iter().filter_map(HeldKey::of), client.number);
    redelivery.finish(waiting, now, &mut Rng::new(client.number));
    core.open.shared.operations.metrics.subscriptions.subtract(removed);
    if let Some(hooks) = &core.hooks {
        filters.iter().zip(&reasons[first..]).for_each(|(filter, reason)| hooks.unsubscribed(filter, *reason));
    }
}

/// The subscriptions' filters where hooks have replaced those that the client names, and are no longer to be known by.
#[cold]
fn replaced(
    core: &mut Core,
    filters: &[TopicFilter],
    refusal: impl Fn(usize) -> Option<ReasonCode>,
) -> Vec<TopicFilter> {
    let subscriptions = &mut core.lease.state.subscriptions;
    let replace = |(place, filter): (usize, &TopicFilter)| {
        let name = subscriptions.name_of(filter).unwrap_or(filter).clone();
        if refusal(place).is_none() {
            subscriptions.forget_name(filter);
        }
        name
    };
    filters.iter().enumerate().map(replace).collect()
}

/// Stores changes of subscriptions; returns their commit point.
///
/// Even without a change it covers earlier ones: a previous connection may have ended before its own were durable.
fn keep(core: &Core, changes: &Changes) -> CommitPoint {
    match &core.open.shared.storage.durable {
        Some(durable) if core.lease.state.durable.is_some() => {
            durable.make(changes);
            durable.all()
        }
        _ => CommitPoint::NOW,
    }
}

/// Ends the connection before any change if the client cannot receive the answer, as it would not know the outcome.
fn expect_to_answer(core: &Core, answer: &Packet) -> Result<(), End> {
    if core.connection.takes(answer) { Ok(()) } else { Err(End::AnswerTooLarge(answer.packet_type())) }
}

/// Filters in one change of the index, while other tasks wait for it.
const SLICE_FILTERS: usize = 32;
/// Number of filters after which the task yields.
const TURN_FILTERS: u16 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turn_ends_after_many_filters_and_input_is_resumed() {
        let mut filters = Filters::default();
        filters.count(63);
        assert!(!filters.is_turn_over());
        assert!(!filters.begin_turn());
        filters.count(63);
        filters.count(1);
        assert!(filters.is_turn_over());
        assert!(filters.begin_turn());
        assert!(!filters.is_turn_over() && !filters.begin_turn());
        filters.count(1_000_000);
        assert!(filters.is_turn_over());
    }
}
