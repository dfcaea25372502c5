//! Retained messages for new subscriptions.

use std::task::Context;
use std::time::Instant;

use tenbin_session::Delivery;

use super::core::Core;
use super::refill::Refill;
use crate::durable::{Room, bytes_of};
use crate::outbox::Batch;
use crate::router::Paged;

/// Takes a page of retained messages; returns whether there may be more.
#[cold] // beside the path of messages, which most laps take
pub(super) fn take(
    core: &mut Core,
    refill: &mut Refill,
    context: &mut Context<'_>,
    quota: usize,
    bytes: usize,
    into: &mut Batch,
) -> bool {
    let Core { open, lease, .. } = core;
    let shared = &open.shared;
    let quota = if refill.rests_from_retained(context) { 0 } else { quota };
    let keeps = shared.storage.durable.as_ref().filter(|_| lease.client.outbox.stored().is_some());
    let mut booked: Option<Room> = None;
    let has_room = |page: &[Delivery]| {
        let Some(durable) = keeps else { return true };
        let acknowledged = page.iter().filter(|delivery| delivery.qos.is_acknowledged());
        let bytes = acknowledged.map(bytes_of).sum();
        if bytes == 0 {
            return true;
        }
        let Some(room) = durable.take_room(bytes, false) else { return false };
        match &mut booked {
            Some(booked) => booked.join(room),
            None => booked = Some(room),
        }
        true
    };
    let taken = into.deliveries().iter().filter(|delivery| delivery.qos.is_acknowledged()).count();
    let mut page = Vec::new();
    let quota = quota.saturating_sub(taken);
    let pages = &mut lease.state.retained_pages;
    let paged = pages.take(&shared.routing.router, quota, bytes, Instant::now(), &mut page, has_room);
    let found = page.len();
    page.retain(|delivery| lease.client.rights.may_receive_encoded(delivery.template.topic()));
    if let Some(hooks) = &core.hooks {
        page.iter().for_each(|delivery| hooks.retained_sent(delivery.template.topic()));
    }
    // Messages that the client may not receive leave their quota to others.
    let has_more = paged != Paged::Enough || page.len() < found;
    keep(core, &mut page, booked);
    if paged == Paged::NoRoom {
        refill.rest_from_retained(); // QoS 0 messages go on
    }
    page.into_iter().for_each(|delivery| into.add(delivery));
    has_more
}

/// Stores retained messages for the client, which are in flight from now on like any other. `room` is booked for them;
/// `None` if none of them needs storing.
fn keep(core: &Core, page: &mut [Delivery], room: Option<Room>) {
    let Some((durable, room)) = core.open.shared.storage.durable.as_ref().zip(room) else { return };
    if let Some(queue) = core.lease.client.outbox.stored() {
        let mut log = durable.append();
        for delivery in page.iter_mut().filter(|delivery| delivery.qos.is_acknowledged()) {
            log.place(&queue, delivery, &room);
            log.close(None);
        }
    }
    durable.give_room(room);
}
