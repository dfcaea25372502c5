mod admission;
mod message_checks;
mod operations;
mod routing;
mod sessions;
mod storage;

use std::sync::Arc;
use std::time::Instant;

use tenbin_balancer::MemberLoad;

pub(crate) use self::admission::Admission;
use self::message_checks::MessageChecks;
pub(crate) use self::operations::Operations;
pub(crate) use self::routing::Routing;
pub(crate) use self::sessions::Sessions;
pub(crate) use self::storage::Storage;
use crate::Config;
use crate::auth::{Access, Identity, Principal, Rights};
use crate::durable::Durable;
use crate::hooks::HookSet;
use crate::metrics::Metrics;
use crate::outbox::{Budget, Limits, Outbox, OutboxCommon};
use crate::registry::{Client, SlowReceivers};
use crate::router::Receiver;
use crate::threads::Threads;
use crate::values::{Clock, WhenFull};

/// State that all tasks of one broker share, by owner.
///
/// Lock order, outermost first: a session's lease · the index's writers · the groups by number · a group's writers · a
/// registry shard · the retained tree · a group's backlog · an outbox · the expiry queue · the remembered speeds · a
/// group's decisions · the numbers of durable sessions · the state's changes. All locks but the lease guard short work
/// in memory and are never held across an await point.
#[derive(Debug)]
pub(crate) struct BrokerState {
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) admission: Admission,
    pub(crate) storage: Storage,
    pub(crate) routing: Routing,
    pub(crate) sessions: Sessions,
    pub(crate) operations: Operations,
}

impl BrokerState {
    pub(crate) fn new(
        config: Config,
        access: Access,
        is_configured_only: bool,
        threads: Option<Threads>,
        durable: Option<Arc<Durable>>,
        hooks: Arc<HookSet>,
    ) -> Self {
        let clock = Clock::new();
        let (access, metrics) = (Arc::new(access), Arc::<Metrics>::default());
        let slow_receivers = SlowReceivers::default();
        let queues = OutboxCommon {
            limits: queue_limits(&config, durable.is_some()),
            budget: Arc::new(Budget::new(config.queue_total_bytes_maximum())),
            metrics: Arc::clone(&metrics),
            clock,
            concerns: Arc::clone(&slow_receivers.concerns),
            durable,
            hooks: Arc::clone(&hooks),
        };
        let storage = Storage::new(&config, queues);
        Self {
            clock,
            routing: Routing::new(&config, Arc::clone(&access), &storage, slow_receivers),
            storage,
            admission: Admission::new(&config, access, is_configured_only, threads.as_ref().map_or(1, Threads::len)),
            sessions: Sessions::new(&config),
            operations: Operations::new(&config, metrics, hooks, threads),
            config,
        }
    }

    /// Creates a session for `principal`.
    pub(crate) fn new_client(&self, principal: &Principal, number: u64, now: Instant) -> Client {
        let load = Arc::new(MemberLoad::new(self.clock.nanos(now)));
        let outbox = Outbox::new(Arc::clone(&self.storage.queues), Arc::clone(&load)).of_client(&principal.client_id);
        let rights = Rights::new(Arc::clone(&self.admission.access), principal.clone());
        Client::new(principal.client_id.clone(), number, Arc::new(outbox), load, Arc::new(rights))
    }

    /// Creates a receiver in the embedding program, with a queue in memory alone.
    pub(crate) fn embedded_receiver(&self, now: Instant) -> Receiver {
        let load = Arc::new(MemberLoad::new(self.clock.nanos(now)));
        let client_id = self.sessions.next_assigned_id();
        let outbox = Outbox::new(Arc::clone(&self.storage.embedded_queues), Arc::clone(&load)).of_client(&client_id);
        let principal = Principal { client_id, identity: Identity::anonymous(), listener: Arc::default() };
        let rights = Rights::new(Arc::new(self.admission.access.of_program()), principal);
        let number = self.sessions.registry.next_number();
        Receiver { number, outbox: Arc::new(outbox), load, rights: Arc::new(rights) }
    }
}

/// Bounds of one session's queue, and of one share group's.
fn queue_limits(config: &Config, has_store: bool) -> Limits {
    let when_full = match config.queue.when_full {
        WhenFull::Spool if !has_store => WhenFull::DropOldest,
        when_full => when_full,
    };
    Limits {
        messages: config.queue_messages_maximum(),
        bytes: config.queue_bytes_maximum(),
        when_full,
        stored_bytes: config.store.queue_bytes_maximum(),
        has_store,
    }
}
