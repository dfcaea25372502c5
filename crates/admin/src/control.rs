use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;

use crate::exposition::Exposition;
use crate::trace::{TraceFeed, TraceQuery};
use crate::views::{
    BanView, BridgeView, ClientDetailView, ClientQuery, ClientView, ConfigCheckView, DeadLetterView, DrainRequest,
    DrainView, FindingView, KickQuery, KickedView, LettersQuery, LogRequest, MemberDrainView, Page, PageQuery,
    PublishRequest, PublishedView, ReceiverView, ReloadView, RemovedView, ReplayedView, RetainedQuery, RetainedView,
    Sample, ScaleView, StatusView, SubscriptionView, TopicQuery,
};

/// Result of a request.
pub type Answer<T> = Result<T, ControlError>;

/// State of all routes.
pub(crate) type Plane = Arc<dyn ControlPlane>;

/// A boxed answer that takes time.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Parts of a broker that the admin interface shows and changes.
///
/// Methods return within milliseconds: they run on the thread of the server. Those with a future may take longer, and
/// [`check_config`](Self::check_config), [`reload`](Self::reload), [`end_drain`](Self::end_drain),
/// [`add_ban`](Self::add_ban) and [`remove_ban`](Self::remove_ban), which run on a thread for blocking work.
pub trait ControlPlane: Send + Sync + 'static {
    /// Checks whether the process works: its threads answer.
    fn liveness(&self) -> Vec<Check>;

    /// Checks whether clients should be sent here.
    fn readiness(&self) -> Vec<Check>;

    /// Writes all metrics.
    fn metrics(&self, into: &mut Exposition);

    /// Is called every two seconds.
    fn tick(&self);

    /// Takes a sample for watchers; is called each second while there are any.
    fn sample(&self) -> Sample;

    /// Lists what looks wrong, the most urgent first.
    fn findings(&self) -> Vec<FindingView>;

    /// Shows the last 24 hours: series of figures, and the last events.
    fn past(&self) -> Value;

    /// Shows the broker as a whole.
    fn status(&self) -> StatusView;

    /// Shows the configuration in effect, without secrets.
    fn config(&self) -> Value;

    /// Checks the text of a configuration file.
    fn check_config(&self, text: &str) -> ConfigCheckView;

    /// Reads the configuration again.
    ///
    /// # Errors
    /// There is no file, or something in it is wrong. Then nothing changes.
    fn reload(&self) -> Answer<ReloadView>;

    /// Changes the level of log lines.
    ///
    /// # Errors
    /// The level is unknown, or the log cannot be changed.
    fn set_log_level(&self, request: &LogRequest) -> Answer<()>;

    /// Lists sessions.
    ///
    /// # Errors
    /// The query has an illegal value.
    fn clients(&self, query: &ClientQuery) -> Answer<Page<ClientView>>;

    /// Shows one session.
    ///
    /// # Errors
    /// There is no such session, or its connection does not answer.
    fn client(&self, id: &str) -> BoxFuture<'_, Answer<ClientDetailView>>;

    /// Lists the subscriptions of a session, by filter.
    ///
    /// # Errors
    /// There is no such session, or its connection does not answer.
    fn client_subscriptions(&self, id: &str, page: PageQuery) -> BoxFuture<'_, Answer<Page<SubscriptionView>>>;

    /// Ends a connection, and the session if that is wanted.
    ///
    /// # Errors
    /// There is no such session, or it does not end.
    fn kick(&self, id: &str, query: KickQuery) -> BoxFuture<'_, Answer<KickedView>>;

    /// Lists the receivers of a topic, with the filters by which they get it.
    ///
    /// # Errors
    /// The topic is illegal.
    fn receivers(&self, query: &TopicQuery) -> Answer<Page<ReceiverView>>;

    /// Lists retained messages by topic.
    ///
    /// # Errors
    /// The filter is illegal.
    fn retained(&self, query: &RetainedQuery) -> Answer<Page<RetainedView>>;

    /// Removes up to 1,000 retained messages.
    ///
    /// # Errors
    /// The filter is illegal.
    fn remove_retained(&self, filter: &str) -> BoxFuture<'_, Answer<RemovedView>>;

    /// Publishes a message; returns when it is stored as its QoS requires.
    ///
    /// # Errors
    /// The message is illegal.
    fn publish(&self, request: PublishRequest) -> BoxFuture<'_, Answer<PublishedView>>;

    /// Lists share groups with their members, as `$SYS/share` has them.
    ///
    /// # Errors
    /// The cursor is illegal.
    fn groups(&self, page: &PageQuery) -> Answer<Page<Value>>;

    /// Shows one share group.
    ///
    /// # Errors
    /// There is no such group.
    fn group(&self, name: &str, filter: &str) -> Answer<Value>;

    /// Shows the last decisions of a share group, and the agreement with its shadow policy.
    ///
    /// # Errors
    /// There is no such group.
    fn group_decisions(&self, name: &str, filter: &str) -> Answer<Value>;

    /// Shows by how many members a share group should be served.
    ///
    /// # Errors
    /// There is no such group.
    fn group_scale(&self, name: &str, filter: &str) -> Answer<ScaleView>;

    /// Lists the dead letters of the groups of a share name, which wait in standing groups.
    ///
    /// # Errors
    /// No rule makes such letters, no standing group keeps them, or they cannot be read.
    fn dead_letters(&self, share_name: &str, query: LettersQuery) -> BoxFuture<'_, Answer<Page<DeadLetterView>>>;

    /// Publishes the originals of dead letters, and ends each letter once its original is durable.
    ///
    /// # Errors
    /// As [`dead_letters`](Self::dead_letters).
    fn replay_dead_letters(&self, share_name: &str, query: LettersQuery) -> BoxFuture<'_, Answer<ReplayedView>>;

    /// Removes dead letters.
    ///
    /// # Errors
    /// As [`dead_letters`](Self::dead_letters).
    fn purge_dead_letters(&self, share_name: &str, query: LettersQuery) -> BoxFuture<'_, Answer<RemovedView>>;

    /// Gives a member no more messages until its next connection, and its queued ones to others; `drains` false ends
    /// that.
    ///
    /// # Errors
    /// There is no such group or member.
    fn drain_member(&self, name: &str, filter: &str, client: &str, drains: bool) -> Answer<MemberDrainView>;

    /// Closes listeners and ends their connections at an even rate.
    ///
    /// # Errors
    /// There is no such listener, a value is illegal, or clients of an earlier drain still go.
    fn drain(&self, request: DrainRequest) -> Answer<DrainView>;

    /// Ends the drain: clients that are still there stay, and the listeners open again.
    ///
    /// # Errors
    /// There is no drain, or a listener cannot be opened.
    fn end_drain(&self) -> Answer<()>;

    /// Begins a trace of packets.
    ///
    /// # Errors
    /// The query is illegal, or too many traces run.
    fn trace(&self, query: TraceQuery) -> BoxFuture<'_, Answer<TraceFeed>>;

    /// Bridges that the broker runs.
    fn bridges(&self) -> Vec<BridgeView>;

    /// Lists the bans of the configuration and the bans made here.
    fn bans(&self) -> Vec<BanView>;

    /// Bans clients, also after a restart if the broker has a data directory.
    ///
    /// # Errors
    /// The ban is illegal, or cannot be stored, or is not in the copy of a cluster yet. In the last two cases it is in effect.
    fn add_ban(&self, ban: BanView) -> Answer<BanView>;

    /// Ends a ban that was made here.
    ///
    /// # Errors
    /// There is no such ban, or its end cannot be stored, or is not in the copy of a cluster yet. In the last two cases the
    /// end is in effect.
    fn remove_ban(&self, number: u64) -> Answer<()>;
}

/// A node of a cluster, as its admin server shows it. The server is open while the node runs, and has a broker behind it
/// while the node leads.
pub trait Node: Send + Sync + 'static {
    /// The node's present state; `None` = the node does not answer in time.
    fn view(&self) -> BoxFuture<'_, Option<NodeView>>;
}

/// State of a node.
#[derive(Debug, Default)]
pub struct NodeView {
    /// All of it, as `tenbin cluster status --json` prints it.
    pub status: Value,
    /// Role of the node in a word.
    pub role: &'static str,
    /// Whether the node leads.
    pub is_leader: bool,
    /// The leader, if the node knows one.
    pub leader: Option<LeaderView>,
    /// Checks whether clients should be sent to this node. A leader's broker has more of them.
    pub checks: Vec<Check>,
    /// Metrics of the node and of the process.
    pub metrics: Exposition,
}

/// The leader of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaderView {
    /// Name of the node.
    pub node: String,
    /// URL of its admin HTTP, if other machines reach it.
    pub admin: Option<String>,
}

/// Result of one check of the broker's health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Name of the checked part.
    pub name: &'static str,
    /// Its problem; `None` = none.
    pub problem: Option<String>,
    /// Whether the broker works with the problem all the same.
    pub is_warning: bool,
}

impl Check {
    /// A check of `name` that has found `problem`.
    pub fn new(name: &'static str, problem: Option<String>) -> Self {
        Self { name, problem, is_warning: false }
    }

    /// A check of `name` that has found a problem with which the broker works all the same.
    pub fn warning(name: &'static str, problem: String) -> Self {
        Self { name, problem: Some(problem), is_warning: true }
    }
}

/// Why a request to the broker failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The named thing does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The request has an illegal value.
    #[error("{0}")]
    Invalid(String),
    /// The state of the broker does not permit it.
    #[error("{0}")]
    Conflict(String),
    /// As many of this kind run as may run at a time.
    #[error("{0}")]
    TooMany(String),
    /// The broker cannot do it at present.
    #[error("{0}")]
    Unavailable(String),
}
