use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::{Bytes, BytesMut};
use tenbin_balancer::MemberLoad;
use tenbin_codec::{MessageProperties, ReasonCode, ReportCarrier, Text, TopicName, Will};
use tenbin_pending::PendingPeers;
use tenbin_session::Publication;
use tenbin_session::handshake::Capabilities;
use tokio::sync::watch;

use super::denials::Denials;
use super::{ExpiryQueue, Leadership, LongEnds};
use crate::Config;
use crate::admission::Admission;
use crate::auth::{Access, Identity, Principal, Rights};
use crate::connection_settings::ConnectionSettings;
use crate::descriptors;
use crate::durable::{self, CommitPoint, Durable};
use crate::gateways::Gateways;
use crate::hooks::HookSet;
use crate::log_limiter::LogLimiter;
use crate::memory::{Memory, Owner};
use crate::metrics::Metrics;
use crate::outbox::{Budget, Limits, Outbox, OutboxCommon};
use crate::registry::{AddressQuota, Client, ClientRegistry, RememberedSpeeds, SlowReceivers};
use crate::router::{DecisionBudget, GroupQueues, KeyHasher, Receiver, RetainedLimits, Router, UnreadGroups};
use crate::threads::Threads;
use crate::trace::Traces;
use crate::values::{Bound, Clock, SessionLimits, WhenFull};

/// State that all tasks of one broker share.
///
/// Lock order, outermost first: a session's lease · the index's writers · the groups by number · a group's writers · a
/// registry shard · the retained tree · a group's backlog · an outbox · the expiry queue · the remembered speeds · a
/// group's decisions · the numbers of durable sessions · the state's changes. All locks but the lease guard short work
/// in memory and are never held across an await point.
#[derive(Debug)]
pub(crate) struct BrokerState {
    pub(crate) config: Config,
    pub(crate) access: Arc<Access>,
    /// True if the configuration alone decides which clients may connect.
    pub(crate) is_configured_only: bool,
    pub(crate) capabilities: Capabilities,
    pub(crate) connection_settings: ConnectionSettings,
    pub(crate) hooks: Arc<HookSet>,
    pub(crate) router: Router,
    pub(crate) registry: ClientRegistry,
    pub(crate) address_quota: Arc<AddressQuota>,
    pub(crate) speeds: RememberedSpeeds,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) traces: Traces,
    pub(crate) clock: Clock,
    /// Store; `None` = nothing is stored.
    pub(crate) durable: Option<Arc<Durable>>,
    pub(crate) expiry: ExpiryQueue,
    pub(crate) long_ends: LongEnds,
    pub(crate) budget: Arc<Budget>,
    pub(crate) memory: Arc<Memory>,
    /// Common settings of the session queues.
    queues: Arc<OutboxCommon>,
    /// As `queues`, for receivers in the embedding program.
    embedded_queues: Arc<OutboxCommon>,
    pub(crate) admission: Admission,
    /// Connections whose client has not logged in yet.
    pub(crate) pending: Arc<PendingPeers>,
    pub(crate) log_limiter: Arc<LogLimiter>,
    pub(crate) denials: Denials,
    /// Opens the listeners that the embedding program serves.
    pub(crate) gateways: Option<Arc<dyn Gateways>>,
    /// Clients that have closed their side and wait for the authenticator: at most [`HALF_CLOSED`] of each address.
    ///
    /// FIN says only that a client sends nothing more. It may listen for its CONNACK, or be gone for good, which shows
    /// only when the broker writes to it. A client that connects and closes over and over holds no socket open itself.
    /// It takes no more than these places from the clients that wait.
    pub(crate) half_closed: Arc<AddressQuota>,
    pub(crate) slow_receivers: SlowReceivers,
    /// Worker threads; without them, a connection runs on the runtime that accepted it.
    pub(crate) threads: Option<Threads>,
    /// Maximum number of connections with sockets: the configured one, lowered to the available file descriptors.
    pub(crate) connections_maximum: usize,
    /// Connections that are open now.
    pub(crate) connections: AtomicUsize,
    /// Those of them without a socket: clients of an MQTT-SN gateway.
    pub(crate) connections_in_memory: AtomicUsize,
    /// Server that clients are referred to when an operator sends them away.
    #[cfg(feature = "admin")]
    pub(crate) server_reference: arc_swap::ArcSwapOption<Text>,
    /// Whether the broker may act.
    pub(crate) leadership: Leadership,
    /// Becomes true once, before the broker shuts connections down.
    pub(crate) stopping: watch::Sender<bool>,
    /// Counter for assigned Client Identifiers.
    pub(crate) assigned_ids: AtomicUsize,
    /// Start of the broker in milliseconds since 1970. Keeps assigned identifiers of different runs apart.
    started_at: u128,
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
        let connections_maximum =
            descriptors::connections_maximum(config.connections.maximum, threads.as_ref().map_or(1, Threads::len));
        let slow_receivers = SlowReceivers::default();
        let access = Arc::new(access);
        let metrics = Arc::<Metrics>::default();
        let budget = Arc::new(Budget::new(config.queue_total_bytes_maximum()));
        let memory = Memory::new(config.memory_limits());
        let groups = GroupQueues {
            keys: KeyHasher::new(&durable.as_ref().map_or_else(durable::new_secret, |durable| durable.hash_key())),
            limits: queue_limits(&config, durable.is_some()),
            budget: Arc::clone(&budget),
            metrics: Arc::clone(&metrics),
            concerns: Arc::clone(&slow_receivers.concerns),
            durable: durable.clone(),
            hooks: Arc::clone(&hooks),
            decisions: Arc::new(DecisionBudget::new(config.decisions())),
            clock,
            unread: UnreadGroups::default(),
            standing: memory.account(Owner::StandingGroups),
            groups_per_topic: config.groups_per_topic_maximum(),
        };
        let (concerns, kept_in) = (Arc::clone(&slow_receivers.concerns), durable.clone());
        let limits = queue_limits(&config, durable.is_some());
        let retained =
            RetainedLimits { messages: config.retained.messages_maximum, bytes: config.retained.bytes_maximum };
        Self {
            capabilities: config.capabilities(),
            connection_settings: ConnectionSettings::new(&config),
            router: Router::new(
                config.share_rules(),
                retained,
                groups,
                Arc::clone(&access),
                durable.clone(),
                clock,
                Arc::clone(&concerns),
            ),
            registry: ClientRegistry::default(),
            address_quota: AddressQuota::new(config.session_limits()),
            speeds: RememberedSpeeds::new(
                config.remembered_speeds(),
                durable.as_ref().map_or_else(durable::new_secret, |durable| durable.speed_key()),
            ),
            clock,
            durable,
            expiry: ExpiryQueue::default(),
            long_ends: LongEnds::default(),
            admission: Admission::new(config.admission(connections_maximum), Instant::now()),
            pending: Arc::new(PendingPeers::new(LOGIN_TIME)),
            log_limiter: Arc::new(LogLimiter::new(&config)),
            denials: Denials::default(),
            gateways: None,
            half_closed: AddressQuota::new(SessionLimits {
                per_address: HALF_CLOSED,
                per_loopback_address: HALF_CLOSED,
            }),
            slow_receivers,
            embedded_queues: Arc::new(OutboxCommon {
                limits: Limits { when_full: WhenFull::DropOldest, has_store: false, ..limits },
                budget: Arc::clone(&budget),
                metrics: Arc::clone(&metrics),
                clock,
                concerns: Arc::clone(&concerns),
                durable: None,
                hooks: Arc::clone(&hooks),
            }),
            queues: Arc::new(OutboxCommon {
                limits,
                budget: Arc::clone(&budget),
                metrics: Arc::clone(&metrics),
                clock,
                concerns,
                durable: kept_in,
                hooks: Arc::clone(&hooks),
            }),
            threads,
            budget,
            connections_maximum,
            memory,
            connections: AtomicUsize::new(0),
            connections_in_memory: AtomicUsize::new(0),
            #[cfg(feature = "admin")]
            server_reference: arc_swap::ArcSwapOption::empty(),
            leadership: Leadership::default(),
            stopping: watch::Sender::new(false),
            assigned_ids: AtomicUsize::new(0),
            started_at: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis()),
            hooks,
            metrics,
            traces: Traces::default(),
            access,
            is_configured_only,
            config,
        }
    }

    /// Creates a session for `principal`.
    pub(crate) fn new_client(&self, principal: &Principal, number: u64, now: Instant) -> Client {
        let load = Arc::new(MemberLoad::new(self.clock.nanos(now)));
        let outbox = Outbox::new(Arc::clone(&self.queues), Arc::clone(&load)).of_client(&principal.client_id);
        let rights = Rights::new(Arc::clone(&self.access), principal.clone());
        Client::new(principal.client_id.clone(), number, Arc::new(outbox), load, Arc::new(rights))
    }

    /// Creates a receiver in the embedding program, with a queue in memory alone.
    pub(crate) fn embedded_receiver(&self, now: Instant) -> Receiver {
        let load = Arc::new(MemberLoad::new(self.clock.nanos(now)));
        let client_id = self.next_assigned_id();
        let outbox = Outbox::new(Arc::clone(&self.embedded_queues), Arc::clone(&load)).of_client(&client_id);
        let principal = Principal { client_id, identity: Identity::anonymous(), listener: Arc::default() };
        let rights = Rights::new(Arc::new(self.access.of_program()), principal);
        Receiver { number: self.registry.next_number(), outbox: Arc::new(outbox), load, rights: Arc::new(rights) }
    }
}

impl BrokerState {
    /// Waits until the commit point `at` is durable.
    pub(crate) async fn safe(&self, at: CommitPoint) {
        if let Some(durable) = &self.durable {
            durable.safe(at).await;
        }
    }

    /// Checks that a client's message may be forwarded.
    ///
    /// # Errors
    /// The Reason Code of its acknowledgement.
    pub(crate) fn check_publish(&self, publication: &Publication) -> Result<(), ReasonCode> {
        self.check_topic(&publication.topic)?;
        if self.config.capabilities.payload_format_check {
            check_payload_format(publication.properties.as_deref(), &publication.payload)?;
        }
        Ok(())
    }

    /// Checks that a message of the embedding program may be forwarded, or one that its hooks have changed.
    ///
    /// # Errors
    /// The Reason Code of the refusal.
    pub(crate) fn check_own(&self, publication: &Publication) -> Result<(), ReasonCode> {
        if publication.topic.is_empty() || publication.topic.as_bytes() == ReportCarrier::TOPIC.as_bytes() {
            return Err(ReasonCode::TopicNameInvalid);
        }
        self.check_topic(&publication.topic).map_err(|reason| match reason {
            ReasonCode::Success => ReasonCode::NotAuthorized, // reserved all the same
            reason => reason,
        })?;
        let properties = publication.properties.as_deref();
        let response_topic = properties.and_then(|properties| properties.response_topic.as_ref());
        if response_topic.is_some_and(|topic| TopicName::try_from(topic.as_str()).is_err()) {
            return Err(ReasonCode::TopicNameInvalid); // [MQTT-3.3.2-14]
        }
        check_payload_format(properties, &publication.payload)?;
        let bytes_maximum = self.config.packet_bytes_maximum() as usize;
        let correlation = properties.and_then(|properties| properties.correlation_data.as_ref()).map_or(0, Bytes::len);
        let has_room = publication.payload.len() <= bytes_maximum
            && correlation <= u16::MAX.into()
            && publication.template(&mut BytesMut::new()).len() <= bytes_maximum;
        if has_room { Ok(()) } else { Err(ReasonCode::PacketTooLarge) }
    }

    /// Checks that a Will may be published later.
    ///
    /// # Errors
    /// The Reason Code of CONNACK.
    pub(crate) fn check_will(&self, will: &Will) -> Result<(), ReasonCode> {
        match self.check_topic(&will.topic) {
            Ok(()) if will.topic.as_bytes() == ReportCarrier::TOPIC.as_bytes() => {
                return Err(ReasonCode::TopicNameInvalid);
            }
            Ok(()) | Err(ReasonCode::Success) => {}
            Err(_) => return Err(ReasonCode::TopicNameInvalid),
        }
        if self.config.capabilities.payload_format_check {
            check_payload_format(will.properties.as_deref(), &will.payload)?;
        }
        Ok(())
    }

    /// Checks that clients may publish to this topic.
    ///
    /// `$SYS` and the like are reserved for the broker (MQTT 5.0 §4.7.2), and length and number of levels are bounded.
    /// `$load` itself carries load reports.
    ///
    /// # Errors
    /// The Reason Code of the answer; [`ReasonCode::Success`] if the message is acknowledged and dropped.
    pub(crate) fn check_topic(&self, name: &TopicName) -> Result<(), ReasonCode> {
        let topic = name.as_bytes();
        let levels_maximum = self.config.topic_levels_maximum();
        // A topic with n separators has n + 1 levels and at least n bytes, so the length check rules out nearly all
        // topics.
        let has_separator = |&byte: &u8| u8::from(byte == b'/');
        let separators_in = |bytes: &[u8]| usize::from(bytes.iter().map(has_separator).sum::<u8>());
        let separators = || topic.chunks(u8::MAX.into()).map(separators_in).sum::<usize>();
        let has_too_many_levels = || topic.len() >= levels_maximum && separators() >= levels_maximum;
        if topic.len() > self.config.topic_bytes_maximum() || has_too_many_levels() {
            return Err(ReasonCode::TopicNameInvalid);
        }
        let is_reserved = || {
            topic != ReportCarrier::TOPIC.as_bytes()
                && RESERVED.contains(&topic.split(|&byte| byte == b'/').next().unwrap_or_default())
        };
        if topic.first() == Some(&b'$') && is_reserved() {
            // A Mosquitto bridge publishes its own state here and takes a refusal for a failure: accept and drop it.
            return Err(if is_bridge_state(name) { ReasonCode::Success } else { ReasonCode::NotAuthorized });
        }
        Ok(())
    }

    /// The bound that a topic exceeds, after [`BrokerState::check_topic`] has refused it.
    pub(crate) fn topic_bound(&self, topic: &TopicName) -> Option<Bound> {
        let is_long = topic.as_bytes().len() > self.config.topic_bytes_maximum();
        let is_deep = || topic.as_bytes().split(|&byte| byte == b'/').count() > self.config.topic_levels_maximum();
        if is_long { Some(Bound::TopicBytes) } else { is_deep().then_some(Bound::TopicLevels) }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Waits until the broker is stopping.
    pub(crate) async fn stopped(&self) {
        // The sender lives in `self`, so the wait ends only by the value.
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    /// As [`stopped`](Self::stopped), without keeping the state.
    pub(crate) fn when_stopped(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let mut stopping = self.stopping.subscribe();
        async move {
            let _ = stopping.wait_for(|stopping| *stopping).await; // an error: the state is gone
        }
    }

    /// Returns a new Client Identifier for a client that sent none.
    pub(crate) fn next_assigned_id(&self) -> Text {
        let number = self.assigned_ids.fetch_add(1, Ordering::Relaxed);
        let id = format!("tenbin-{:x}-{number}", self.started_at);
        Text::try_from(id).unwrap_or(Text::EMPTY)
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

/// Returns [`ReasonCode::PayloadFormatInvalid`] if a payload declared as UTF-8 is not (MQTT 5.0 §3.3.2.3.2).
fn check_payload_format(properties: Option<&MessageProperties>, payload: &[u8]) -> Result<(), ReasonCode> {
    let is_text = properties.is_some_and(|properties| properties.payload_format_indicator == Some(true));
    if is_text && std::str::from_utf8(payload).is_err() {
        return Err(ReasonCode::PayloadFormatInvalid);
    }
    Ok(())
}

/// Whether `topic` is `$SYS/broker/connection/<bridge>/state`.
fn is_bridge_state(topic: &TopicName) -> bool {
    let bridge = topic.as_bytes().strip_prefix(b"$SYS/broker/connection/");
    bridge.and_then(|rest| rest.strip_suffix(b"/state")).is_some_and(|bridge| !bridge.contains(&b'/'))
}

/// Time that a client has for its login, while places for connections are short.
const LOGIN_TIME: Duration = Duration::from_secs(1);
/// Half-closed clients of one address that may wait: enough for scripts that pipe packets into a socket.
const HALF_CLOSED: u32 = 4;
/// First levels of topics that clients may not publish to.
const RESERVED: [&[u8]; 3] = [b"$SYS", b"$share", ReportCarrier::TOPIC.as_bytes()];
