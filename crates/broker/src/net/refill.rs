//! Reading a client's on-disk backlog into its queue, and pauses after the disk could not do something.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tenbin_session::Delivery;
use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::core::Core;
use crate::backlog::{NextPage, Refilled};
use crate::durable::{Page, PageOf};
use crate::lifecycle::{Storage, enforcement};
use crate::registry::Client;

/// Reads of one connection from the disk.
#[derive(Debug, Default)]
pub(super) struct Refill(
    /// Boxed, and present only while a page is read or a pause goes on.
    Option<Box<Reads>>,
);

#[derive(Debug, Default)]
struct Reads {
    /// The page being read.
    page: Option<oneshot::Receiver<Page>>,
    /// Pause after a failed read.
    read_rest: Option<Pin<Box<Sleep>>>,
    /// Pause before the next request for disk space for retained messages.
    retained_rest: Option<Pin<Box<Sleep>>>,
}

/// Reads the first page of a returning client's backlog, so that its messages precede answers to the client's packets.
pub(super) async fn read_first_page(storage: &Storage, client: &Client) {
    let Some(durable) = &storage.durable else { return };
    let NextPage::Read(page) = client.outbox.next_page(Instant::now()) else { return };
    if let Ok(page) = durable.reader.page(page).await {
        take_page(client, page);
    }
}

/// Adds messages that were read to the client's queue. Forbidden ones are withheld.
fn take_page(client: &Client, page: Page) {
    let is_forbidden = |delivery: &Delivery| enforcement::is_forbidden(&client.rights, delivery);
    let Refilled { failed, .. } = client.outbox.refill(page, Instant::now(), is_forbidden);
    if failed.is_some_and(|failed| failed.is_first) {
        tracing::error!(client = ?client.id, "messages of the session cannot be read: they stay on disk");
    }
}

impl Refill {
    /// Reads the on-disk backlog while the in-memory head runs out; returns whether the queue has got more messages.
    pub(super) fn poll(&mut self, core: &Core, context: &mut Context<'_>) -> bool {
        let Some(durable) = &core.open.shared.storage.durable else { return false };
        let mut has_read = false;
        while !self.0.as_mut().is_some_and(|reads| goes_on(&mut reads.read_rest, context)) {
            if self.0.as_ref().is_none_or(|reads| reads.page.is_none()) {
                let next = core.open.references().map(|references| {
                    let quota = core.quota().saturating_sub(core.lease.client.outbox.queued_messages());
                    references.next_page(&core.connection, core.hooks.is_some(), quota)
                });
                let Ok(by_reference) = next.unwrap_or(Ok(None)) else { break };
                match core.lease.client.outbox.next_page(Instant::now()) {
                    NextPage::Read(page) => {
                        let page = durable.reader.page(PageOf { by_reference, ..page });
                        self.0.get_or_insert_default().page = Some(page);
                    }
                    NextPage::At(at) => {
                        let rest = Box::pin(tokio::time::sleep_until(at.into()));
                        self.0.get_or_insert_default().read_rest = Some(rest);
                        continue;
                    }
                    NextPage::None => break,
                }
            }
            let Some(reads) = &mut self.0 else { break };
            let Some(page) = &mut reads.page else { break };
            let Poll::Ready(page) = Pin::new(page).poll(context) else { break };
            reads.page = None;
            let Ok(page) = page else { break }; // the broker stops
            core.open.references().into_iter().for_each(|references| references.take(&page));
            take_page(&core.lease.client, page);
            has_read = true;
        }
        self.0.take_if(|reads| reads.page.is_none() && reads.read_rest.is_none() && reads.retained_rest.is_none());
        has_read
    }

    /// Pauses sending of retained messages, because the disk has no room for them.
    #[cold]
    pub(super) fn rest_from_retained(&mut self) {
        self.0.get_or_insert_default().retained_rest = Some(Box::pin(tokio::time::sleep(RETAINED_AGAIN)));
    }

    /// Whether the pause of retained messages goes on; if so, registers to be woken.
    pub(super) fn rests_from_retained(&mut self, context: &mut Context<'_>) -> bool {
        self.0.as_mut().is_some_and(|reads| goes_on(&mut reads.retained_rest, context))
    }

    /// Drops timers after a migration: the new task makes its own.
    pub(super) fn migrated(&mut self) {
        if let Some(reads) = &mut self.0 {
            (reads.retained_rest, reads.read_rest) = (None, None);
        }
    }
}

/// Whether a pause goes on; if so, registers to be woken.
fn goes_on(pause: &mut Option<Pin<Box<Sleep>>>, context: &mut Context<'_>) -> bool {
    pause.take_if(|pause| pause.as_mut().poll(context).is_ready());
    pause.is_some()
}

/// Pause after the disk had no room for retained messages; the log checks its free space as often.
const RETAINED_AGAIN: Duration = Duration::from_secs(1);
