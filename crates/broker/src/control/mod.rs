//! The broker as operators see and change it: [`ControlPlane`] of the admin interface.
//!
//! ```text
//!   health    liveness of the threads, readiness for clients
//!   metrics   all metrics of a scrape; process: metrics of the process
//!   clients   sessions: lists, figures, ends
//!   groups    share groups: members, decisions, scale, drained members; arrivals: their rates, and what follows
//!   dead_letters  letters that wait in standing groups
//!   messages  receivers of a topic, retained messages, publication
//!   findings  what looks wrong, with what to do
//!   past      series of the last 24 hours, also of the last run
//!   events    samples for watchers
//!   trace     packets of a client or a topic, as they come
//!   opening   address and tokens of admin HTTP
//!   settings  status, configuration, level of the log
//!   bans      clients that may not connect, also after a restart
//!   drain     clients that go to other servers
//! ```

mod arrivals;
mod bans;
mod clients;
mod dead_letters;
mod drain;
mod events;
mod findings;
mod groups;
mod health;
mod messages;
mod metrics;
mod opening;
mod past;
mod process;
mod settings;
mod trace;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use tenbin_admin::{
    Answer, BanView, BoxFuture, BridgeView, Check, ClientDetailView, ClientQuery, ClientView, ConfigCheckView,
    ControlError, ControlPlane, DeadLetterView, DrainRequest, DrainView, Exposition, FindingView, KickQuery,
    KickedView, LettersQuery, ListenerView, LogRequest, MemberDrainView, Page, PageQuery, PublishRequest,
    PublishedView, ReceiverView, ReloadView, RemovedView, ReplayedView, RetainedQuery, RetainedView, Sample, ScaleView,
    StatusView, SubscriptionView, TopicQuery, TraceFeed, TraceQuery,
};
use tokio::task::AbortHandle;
use tracing::Level;

use crate::Config;
use crate::config::ConfigError;
use crate::gateways::BridgeState;
use crate::lifecycle::BrokerState;
use crate::values::DrainRefused;
use arrivals::Arrivals;
use bans::Bans;
use findings::Watch;

use health::Heartbeats;
pub use opening::NodeAdmin;
pub(crate) use opening::{check, open, serve};
use past::Past;
pub use process::write_process_metrics;

/// Parts of the program around a broker that its admin interface uses.
#[derive(Default)]
pub struct Administration {
    configuration: Option<Box<ReadConfig>>,
    log: Option<Box<SetLog>>,
}

pub(crate) type ReadConfig = dyn Fn() -> Result<Config, ConfigError> + Send + Sync;
type SetLog = dyn Fn(Level, Option<&str>, Option<Duration>) + Send + Sync;

impl Administration {
    /// Reads the configuration again with `read` when an operator reloads it.
    #[must_use]
    pub fn configuration(self, read: impl Fn() -> Result<Config, ConfigError> + Send + Sync + 'static) -> Self {
        Self { configuration: Some(Box::new(read)), ..self }
    }

    /// Changes the level of log lines with `set`: of all lines or those about one client, for good or for a time.
    #[must_use]
    pub fn log(self, set: impl Fn(Level, Option<&str>, Option<Duration>) + Send + Sync + 'static) -> Self {
        Self { log: Some(Box::new(set)), ..self }
    }
}

impl fmt::Debug for Administration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Administration").finish_non_exhaustive()
    }
}

/// The broker behind the admin interface.
pub(crate) struct Control {
    shared: Arc<BrokerState>,
    reach: Box<dyn Reach>,
    administration: Administration,
    heartbeats: Heartbeats,
    arrivals: Arrivals,
    watch: Watch,
    past: Past,
    bans: Mutex<Bans>,
    /// Held while the file of the bans is written. Taken before `bans`.
    writing_bans: Mutex<()>,
    started: Instant,
    started_at: SystemTime,
    /// State of the last run is restored, and clients are served.
    is_serving: AtomicBool,
}

/// Key, old value and new value.
pub(crate) type Difference = [String; 3];

/// Begins to send clients away; returns the task that does it. The flag becomes true before a listener opens again: from
/// then on the task sends no client away.
pub(crate) type SendAway<'a> = Box<dyn FnOnce(Arc<AtomicBool>) -> AbortHandle + 'a>;

/// Parts of the broker above this module.
pub(crate) trait Reach: Send + Sync {
    /// Open listening sockets.
    fn listening(&self) -> Vec<ListenerView>;

    /// Closes the listener of this name, or all, and calls `send_away`, whose task ends their connections.
    ///
    /// # Errors
    /// There is no such listener, or clients of an earlier drain still go. Then nothing changes.
    fn begin_drain(&self, listener: Option<&str>, send_away: SendAway<'_>) -> Result<(), DrainRefused>;

    /// Ends the drain, and opens the listeners that it has closed. Returns false without a drain.
    ///
    /// # Errors
    /// A listener cannot be opened; it stays closed.
    fn end_drain(&self) -> Result<bool, String>;

    /// Listeners, with a warning about their TLS files: newer ones that cannot be used, or an old revocation list.
    fn tls_warnings(&self) -> Vec<(Arc<str>, String)>;

    /// Whether drains have closed all listeners, at once or one by one.
    fn is_drained(&self) -> bool;

    /// Listener, name and end of each certificate of the broker, in seconds since 1970.
    fn certificate_ends(&self) -> Vec<(Arc<str>, Box<str>, i64)>;

    /// Name, URL of the other broker, and state of each running bridge.
    fn bridges(&self) -> Vec<(String, String, BridgeState)>;

    /// Whether the last reload failed.
    fn has_reload_failed(&self) -> bool;

    /// Reads and applies a configuration; returns the changed keys that are in effect, and those that need a restart.
    ///
    /// # Errors
    /// Something in it is wrong. Then nothing changes.
    fn reload(&self, read: &ReadConfig) -> Result<[Vec<Difference>; 2], String>;

    /// Errors of a configuration file, and its differences from the defaults.
    fn check(&self, text: &str) -> (Vec<String>, Vec<Difference>);
}

impl Control {
    /// Puts the bans of the last run into effect.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) fn new(
        shared: Arc<BrokerState>,
        reach: Box<dyn Reach>,
        administration: Administration,
    ) -> io::Result<Arc<Self>> {
        let directory = shared.storage.durable.as_ref().map(|durable| durable.directory());
        let (bans, past) = (Bans::load(directory)?, Past::new(directory));
        let control = Self {
            heartbeats: Heartbeats::new(&shared.operations),
            shared,
            reach,
            administration,
            arrivals: Arrivals::default(),
            watch: Watch::default(),
            past,
            bans: Mutex::new(bans),
            writing_bans: Mutex::default(),
            started: Instant::now(),
            started_at: SystemTime::now(),
            is_serving: AtomicBool::new(false),
        };
        control.restore_bans();
        control.restore_past();
        Ok(Arc::new(control))
    }

    /// Takes note that the state is restored and clients are served.
    pub(crate) fn begins_to_serve(&self) {
        self.is_serving.store(true, Ordering::Relaxed);
        let text = concat!("the broker serves clients, version ", env!("CARGO_PKG_VERSION"));
        self.shared.operations.chronicle.note("started", text);
    }

    /// Notes an operator's change as an event.
    fn note_operator(&self, text: &str) {
        self.shared.operations.chronicle.note("operator", text);
    }

    fn bans(&self) -> MutexGuard<'_, Bans> {
        self.bans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ControlPlane for Control {
    fn liveness(&self) -> Vec<Check> {
        self.heartbeats.check(Instant::now())
    }

    fn readiness(&self) -> Vec<Check> {
        self.ready_checks()
    }

    fn metrics(&self, into: &mut Exposition) {
        self.write_metrics(into);
    }

    fn tick(&self) {
        let now = Instant::now();
        self.look_at_arrivals();
        self.look_for_findings(now);
        self.keep_past(now);
    }

    fn sample(&self) -> Sample {
        self.take_sample()
    }

    fn findings(&self) -> Vec<FindingView> {
        self.watch.list()
    }

    fn past(&self) -> Value {
        self.show_past()
    }

    fn status(&self) -> StatusView {
        self.show_status()
    }

    fn config(&self) -> Value {
        self.show_config()
    }

    fn check_config(&self, text: &str) -> ConfigCheckView {
        self.check_text(text)
    }

    fn reload(&self) -> Answer<ReloadView> {
        self.reload_config()
    }

    fn set_log_level(&self, request: &LogRequest) -> Answer<()> {
        self.change_log_level(request)
    }

    fn clients(&self, query: &ClientQuery) -> Answer<Page<ClientView>> {
        self.list_clients(query)
    }

    fn client(&self, id: &str) -> BoxFuture<'_, Answer<ClientDetailView>> {
        Box::pin(self.client_details(id.to_owned()))
    }

    fn client_subscriptions(&self, id: &str, page: PageQuery) -> BoxFuture<'_, Answer<Page<SubscriptionView>>> {
        Box::pin(self.subscriptions_of(id.to_owned(), page))
    }

    fn kick(&self, id: &str, query: KickQuery) -> BoxFuture<'_, Answer<KickedView>> {
        Box::pin(self.kick_client(id.to_owned(), query))
    }

    fn receivers(&self, query: &TopicQuery) -> Answer<Page<ReceiverView>> {
        self.receivers_of(query)
    }

    fn retained(&self, query: &RetainedQuery) -> Answer<Page<RetainedView>> {
        self.list_retained(query)
    }

    fn remove_retained(&self, filter: &str) -> BoxFuture<'_, Answer<RemovedView>> {
        Box::pin(self.remove_retained_at(filter.to_owned()))
    }

    fn publish(&self, request: PublishRequest) -> BoxFuture<'_, Answer<PublishedView>> {
        self.publish_message(request)
    }

    fn groups(&self, page: &PageQuery) -> Answer<Page<Value>> {
        self.list_groups(page)
    }

    fn group(&self, name: &str, filter: &str) -> Answer<Value> {
        self.show_group(name, filter)
    }

    fn group_decisions(&self, name: &str, filter: &str) -> Answer<Value> {
        self.decisions_of(name, filter)
    }

    fn group_scale(&self, name: &str, filter: &str) -> Answer<ScaleView> {
        self.scale_of(name, filter)
    }

    fn dead_letters(&self, share_name: &str, query: LettersQuery) -> BoxFuture<'_, Answer<Page<DeadLetterView>>> {
        Box::pin(self.list_letters(share_name.to_owned(), query))
    }

    fn replay_dead_letters(&self, share_name: &str, query: LettersQuery) -> BoxFuture<'_, Answer<ReplayedView>> {
        Box::pin(self.replay_letters(share_name.to_owned(), query))
    }

    fn purge_dead_letters(&self, share_name: &str, query: LettersQuery) -> BoxFuture<'_, Answer<RemovedView>> {
        Box::pin(self.purge_letters(share_name.to_owned(), query))
    }

    fn drain_member(&self, name: &str, filter: &str, client: &str, drains: bool) -> Answer<MemberDrainView> {
        self.drain_member_of(name, filter, client, drains)
    }

    fn drain(&self, request: DrainRequest) -> Answer<DrainView> {
        self.begin_drain(request)
    }

    fn end_drain(&self) -> Answer<()> {
        self.cancel_drain()
    }

    fn trace(&self, query: TraceQuery) -> BoxFuture<'_, Answer<TraceFeed>> {
        Box::pin(self.begin_trace(query))
    }

    fn bridges(&self) -> Vec<BridgeView> {
        self.reach.bridges().into_iter().map(settings::bridge_view).collect()
    }

    fn bans(&self) -> Vec<BanView> {
        self.list_bans()
    }

    fn add_ban(&self, ban: BanView) -> Answer<BanView> {
        self.make_ban(ban)
    }

    fn remove_ban(&self, number: u64) -> Answer<()> {
        self.end_ban(number)
    }
}

/// Reads cursor and limit of a page: 0 for the first one, and the default limit.
fn page_of(page: &PageQuery) -> Answer<(u64, usize)> {
    let wrong = |cursor: &String| ControlError::Invalid(format!("cursor: {cursor:?} is none of this list"));
    let after = page.cursor.as_ref().map_or(Ok(0), |cursor| cursor.parse().map_err(|_| wrong(cursor)))?;
    match page.limit {
        Some(0 | LIMIT_ABOVE..) => Err(ControlError::Invalid(format!("limit: needs to be from 1 to {LIMIT_MAX}"))),
        limit => Ok((after, limit.unwrap_or(LIMIT))),
    }
}

/// Items of a page without a limit.
const LIMIT: usize = 100;
/// Most items of a page.
const LIMIT_MAX: usize = 1000;
const LIMIT_ABOVE: usize = LIMIT_MAX + 1;
