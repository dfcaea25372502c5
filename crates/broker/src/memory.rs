//! Memory that clients occupy outside of their queues, bounded in total and for each owner.
//!
//! Each item kept for a client has a [`Charge`]. The charge counts in the [`Account`] of the client's owner and in
//! [`Memory`]; dropping the charge releases it.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tenbin_codec::{Text, TopicFilter};

use crate::values::{Bound, Identity, MatchBound, MemoryLimits, Rate, TokenBucket, network};

/// Memory of all accounts, by kind.
#[derive(Debug)]
pub(crate) struct Memory {
    limits: MemoryLimits,
    /// Looked up once per connection. An account removes itself with its last charge and last connection.
    accounts: DashMap<Owner, Weak<Account>>,
    /// Relaxed, as all counters here: they guard no other memory, and a race lets in a few bytes too many at worst.
    kinds: [KindUsage; Kind::ALL.len()],
    /// Rate of log lines on refusals, for all accounts together. An account logs one refusal; a new account of the same
    /// owner may log again.
    lines: Mutex<TokenBucket>,
}

/// Fraction of a bound that is reserved for some kinds, so that no kind takes another's room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// State of sessions, for as long as they exist.
    Lasting,
    /// Caches. Without room a publisher works without one.
    Cached,
    /// Incomplete packets. Without room the connection stops reading.
    Input,
    /// Messages that are not durable yet. Without room the connection stops reading.
    Unacknowledged,
}

/// Purpose of a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Sessions and their Client Identifiers.
    Sessions,
    /// Subscriptions, in the session and in the index.
    Subscriptions,
    /// Wills of connections, and delayed Wills.
    Wills,
    /// Routes that publishers cache.
    Routes,
    /// Packets that have arrived in part.
    Input,
    /// Messages whose acknowledgement waits for the disk.
    Unacknowledged,
    /// In-memory entries of messages in on-disk backlogs.
    Backlog,
}

#[derive(Debug, Default)]
struct KindUsage {
    bytes: AtomicUsize,
    /// Charges refused since the start.
    refused: AtomicU64,
}

/// Memory of one owner.
#[derive(Debug)]
pub(crate) struct Account {
    memory: Arc<Memory>,
    owner: Owner,
    maximum: usize,
    /// Bytes of each [`Part`].
    parts: [AtomicUsize; Part::COUNT],
    /// Bytes of [`Kind::Subscriptions`], which are part of [`Part::Lasting`].
    subscriptions: AtomicUsize,
    /// Number of sessions; each adds [`SESSION_ALLOWANCE`] to the maximum.
    sessions: AtomicUsize,
    /// Number of connected clients; each adds [`CLIENT_ALLOWANCE`] to the maximum, for subscriptions.
    clients: AtomicUsize,
    /// Bytes of subscriptions of sessions without a connection, up to [`CLIENT_ALLOWANCE`] each. They add to the maximum,
    /// for subscriptions.
    away: AtomicUsize,
    /// Set once a refusal was logged.
    is_logged: AtomicBool,
    /// Share groups with its clients as members. No other lock is taken under it.
    groups: Mutex<MatchBound>,
}

/// Owner of an account.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// Authenticated user, with the realm that knows the user.
    User(Arc<str>, Text),
    /// Network address of anonymous clients.
    Address(IpAddr),
    /// Anonymous clients of the last run whose addresses are not on disk. Bounded only in total.
    Restored,
    /// Standing share groups, which exist without members: at most half of the whole.
    StandingGroups,
}

/// Bytes charged to an account, released on drop.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Arc<Account>,
    /// At most 4 GiB; bytes beyond that do not count.
    bytes: u32,
    kind: Kind,
    /// Whether it counts in [`Account::away`].
    is_away: bool,
}

/// A connected client, which counts for its account until this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectedClient(Arc<Account>);

/// Error of a refused charge: the owner, or all owners together, have used up the memory of this bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OverLimit(pub(crate) Bound);

impl Memory {
    pub(crate) fn new(limits: MemoryLimits) -> Arc<Self> {
        let kinds = Default::default();
        let lines = Mutex::new(TokenBucket::full(Instant::now()));
        Arc::new(Self { limits, accounts: DashMap::new(), kinds, lines })
    }

    /// Creates accounting without any bound.
    #[cfg(test)]
    pub(crate) fn unlimited() -> Arc<Self> {
        Self::new(MemoryLimits { all: usize::MAX, user: 0, address: 0, loopback_address: 0 })
    }

    /// Returns the account of a client with the verified `identity`, from `address` if that is known.
    pub(crate) fn account_of(self: &Arc<Self>, identity: &Identity, address: Option<IpAddr>) -> Arc<Account> {
        self.account(match (&identity.user, address) {
            (Some(user), _) => Owner::User(Arc::clone(&identity.realm), user.detach()),
            (None, Some(address)) => Owner::Address(network(address)),
            (None, None) => Owner::Restored,
        })
    }

    pub(crate) fn account(self: &Arc<Self>, owner: Owner) -> Arc<Account> {
        let new = || {
            let MemoryLimits { all, user, address, loopback_address } = self.limits;
            let maximum = match &owner {
                Owner::User(..) => user,
                Owner::Address(from) if from.to_canonical().is_loopback() => loopback_address,
                Owner::Address(_) => address,
                Owner::Restored => 0,
                Owner::StandingGroups => all / 2,
            };
            let maximum = if maximum == 0 { all } else { maximum };
            Arc::new(Account {
                memory: Arc::clone(self),
                owner: owner.clone(),
                maximum,
                parts: Default::default(),
                subscriptions: AtomicUsize::new(0),
                sessions: AtomicUsize::new(0),
                clients: AtomicUsize::new(0),
                away: AtomicUsize::new(0),
                is_logged: AtomicBool::new(false),
                groups: Mutex::default(),
            })
        };
        match self.accounts.entry(owner.clone()) {
            Entry::Occupied(mut known) => known.get().upgrade().unwrap_or_else(|| {
                let account = new();
                known.insert(Arc::downgrade(&account));
                account
            }),
            Entry::Vacant(place) => {
                let account = new();
                place.insert(Arc::downgrade(&account));
                account
            }
        }
    }

    /// Bytes of all kinds.
    pub(crate) fn used(&self) -> usize {
        self.by_kind().map(|(_, bytes, _)| bytes).sum()
    }

    fn used_of(&self, part: Part) -> usize {
        self.by_kind().filter(|(kind, ..)| kind.part() == part).map(|(_, bytes, _)| bytes).sum()
    }

    fn may_log(&self, now: Instant) -> bool {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        Rate::per_second(LINES_PER_SECOND).is_none_or(|rate| lines.try_take(rate, now))
    }

    /// Returns each kind with its bytes and its number of refusals.
    pub(crate) fn by_kind(&self) -> impl Iterator<Item = (Kind, usize, u64)> {
        Kind::ALL.into_iter().zip(&self.kinds).map(|((kind, ..), usage)| {
            (kind, usage.bytes.load(Ordering::Relaxed), usage.refused.load(Ordering::Relaxed))
        })
    }
}

impl Account {
    /// Charges `bytes`.
    ///
    /// # Errors
    /// The limit of the account or of all accounts is reached.
    pub(crate) fn charge(self: &Arc<Self>, kind: Kind, bytes: usize) -> Result<Charge, OverLimit> {
        let mut charge = Charge::nothing(self, kind);
        charge.resize(bytes).map(|()| charge)
    }

    /// Charges `bytes` beyond any limit, for an item that exists already.
    pub(crate) fn charge_always(self: &Arc<Self>, kind: Kind, bytes: usize) -> Charge {
        let mut charge = Charge::nothing(self, kind);
        charge.set(bytes);
        charge
    }

    /// Counts a connected client.
    pub(crate) fn connected(self: &Arc<Self>) -> ConnectedClient {
        self.clients.fetch_add(1, Ordering::Relaxed);
        ConnectedClient(Arc::clone(self))
    }

    /// Whether nothing more may be charged.
    #[cfg(test)]
    pub(crate) fn is_full(&self) -> bool {
        self.check(Kind::Input, 1).is_err()
    }

    /// Network address of the owner, if it is anonymous.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self.owner {
            Owner::Address(address) => Some(address),
            Owner::User(..) | Owner::Restored | Owner::StandingGroups => None,
        }
    }

    /// Bytes that are charged now.
    pub(crate) fn bytes(&self) -> usize {
        self.parts.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }

    /// Whether the owner may have another share group with this filter, if at most `maximum` of its groups may match one
    /// topic.
    pub(crate) fn may_add_group(&self, filter: &TopicFilter, maximum: usize) -> bool {
        self.groups().has_room_for_group(filter, maximum)
    }

    /// Counts a share group with this filter, of which a client of this owner is a member.
    pub(crate) fn add_group(&self, filter: &TopicFilter) {
        self.groups().add_group(filter);
    }

    /// Counts a share group out, of which no client of this owner is a member any more.
    pub(crate) fn remove_group(&self, filter: &TopicFilter) {
        self.groups().remove_group(filter);
    }

    /// Upper bound of the owner's share groups that a topic matches.
    #[cfg(test)]
    pub(crate) fn groups_of_a_topic(&self) -> usize {
        self.groups().total()
    }

    fn groups(&self) -> MutexGuard<'_, MatchBound> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that both the owner's bound and the total bound have room for `bytes` more.
    ///
    /// # Errors
    /// The bound that has none.
    fn check(&self, kind: Kind, bytes: usize) -> Result<(), Bound> {
        let part = kind.part();
        let of_owner = self.parts[part as usize].load(Ordering::Relaxed).saturating_add(bytes);
        let of_all = self.memory.used_of(part).saturating_add(bytes);
        let (owner_maximum, all_maximum) = (part.of(self.maximum), part.of(self.memory.limits.all));
        let (fits_owner, fits_all) = match part {
            Part::Lasting => {
                let kept_free = if of_owner <= SMALL_OWNER { 0 } else { all_maximum / 8 };
                let fits_owner = self.has_lasting_room(kind, bytes, of_owner, (owner_maximum, all_maximum));
                (fits_owner, of_all <= all_maximum - kept_free)
            }
            _ => (of_owner <= owner_maximum, of_all <= all_maximum),
        };
        match (fits_owner, fits_all) {
            (true, true) => Ok(()),
            (false, _) if self.maximum < self.memory.limits.all => Err(self.owner.bound()),
            _ => Err(Bound::MemoryOfAll),
        }
    }

    /// Whether the owner's bound has room for `bytes` more of lasting state, of which it then has `of_owner`.
    ///
    /// Sessions raise the bound up to half of the total, and subscriptions up to three quarters.
    fn has_lasting_room(&self, kind: Kind, bytes: usize, of_owner: usize, maxima: (usize, usize)) -> bool {
        let (owner_maximum, all_maximum) = maxima;
        let allowance = self.sessions.load(Ordering::Relaxed).saturating_mul(SESSION_ALLOWANCE);
        let raised = owner_maximum.saturating_add(allowance).min(owner_maximum.max(all_maximum / 2));
        let new = if kind == Kind::Subscriptions { bytes } else { 0 };
        let subscriptions = self.subscriptions.load(Ordering::Relaxed).saturating_add(new);
        let clients = self.clients.load(Ordering::Relaxed).saturating_mul(CLIENT_ALLOWANCE);
        let allowed = clients.saturating_add(self.away.load(Ordering::Relaxed));
        of_owner - subscriptions.min(allowed).min(of_owner) <= raised
            && of_owner <= owner_maximum.max(all_maximum / 4 * 3)
    }

    #[cold]
    fn refuse(&self, kind: Kind, bound: Bound) -> OverLimit {
        self.memory.kinds[kind as usize].refused.fetch_add(1, Ordering::Relaxed);
        if !self.is_logged.load(Ordering::Relaxed) && self.memory.may_log(Instant::now()) {
            self.is_logged.store(true, Ordering::Relaxed);
            let (bytes, clients) = (self.bytes(), self.clients.load(Ordering::Relaxed));
            let limit = bound.key();
            tracing::warn!(owner = %self.owner, kind = kind.name(), bytes, clients, limit, "memory limit reached: further requests are refused");
        }
        OverLimit(bound)
    }

    fn add(&self, kind: Kind, bytes: usize) {
        self.parts[kind.part() as usize].fetch_add(bytes, Ordering::Relaxed);
        if kind == Kind::Subscriptions {
            self.subscriptions.fetch_add(bytes, Ordering::Relaxed);
        }
        self.memory.kinds[kind as usize].bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn subtract(&self, kind: Kind, bytes: usize) {
        self.parts[kind.part() as usize].fetch_sub(bytes, Ordering::Relaxed);
        if kind == Kind::Subscriptions {
            self.subscriptions.fetch_sub(bytes, Ordering::Relaxed);
        }
        self.memory.kinds[kind as usize].bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // A new account of the same owner may have taken the entry already.
        self.memory.accounts.remove_if(&self.owner, |_, known| known.strong_count() == 0);
    }
}

impl Charge {
    /// Creates a charge of 0 bytes.
    pub(crate) fn nothing(account: &Arc<Account>, kind: Kind) -> Self {
        if kind == Kind::Sessions {
            account.sessions.fetch_add(1, Ordering::Relaxed);
        }
        Self { account: Arc::clone(account), bytes: 0, kind, is_away: false }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Grows or shrinks to `bytes`.
    ///
    /// # Errors
    /// Growing would exceed a limit. Then the charge stays as it is.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), OverLimit> {
        let grows_by = bytes.saturating_sub(self.bytes());
        if grows_by > 0 {
            self.account.check(self.kind, grows_by).map_err(|bound| self.account.refuse(self.kind, bound))?;
        }
        self.set(bytes);
        Ok(())
    }

    /// Whether [`Charge::resize`] would succeed.
    pub(crate) fn may_become(&self, bytes: usize) -> bool {
        self.bound_below(bytes).is_none()
    }

    /// The bound by which [`Charge::resize`] would fail.
    pub(crate) fn bound_below(&self, bytes: usize) -> Option<Bound> {
        self.account.check(self.kind, bytes.saturating_sub(self.bytes())).err()
    }

    /// Grows or shrinks to `bytes`, beyond any limit if need be.
    pub(crate) fn set(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let is_away = self.is_away;
        self.set_away(false);
        if bytes > self.bytes {
            self.account.add(self.kind, (bytes - self.bytes) as usize);
        } else if bytes < self.bytes {
            self.account.subtract(self.kind, (self.bytes - bytes) as usize);
        }
        self.bytes = bytes;
        self.set_away(is_away);
    }

    /// Begins or ends to count subscriptions as subscriptions of an absent session, whose bytes, up to
    /// [`CLIENT_ALLOWANCE`], raise the account's maximum.
    pub(crate) fn set_away(&mut self, is_away: bool) {
        if is_away != self.is_away {
            let (away, bytes) = (&self.account.away, self.bytes().min(CLIENT_ALLOWANCE));
            match is_away {
                true => away.fetch_add(bytes, Ordering::Relaxed),
                false => away.fetch_sub(bytes, Ordering::Relaxed),
            };
            self.is_away = is_away;
        }
    }

    /// Moves the charge to `account`, beyond its limits if need be.
    pub(crate) fn move_to(&mut self, account: &Arc<Account>) {
        if !Arc::ptr_eq(&self.account, account) {
            let is_away = self.is_away;
            *self = account.charge_always(self.kind, self.bytes());
            self.set_away(is_away);
        }
    }
}

impl Drop for ConnectedClient {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
        if self.kind == Kind::Sessions {
            self.account.sessions.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Kind {
    /// All kinds, in the order of their declaration: each with its part of a bound, and its name.
    const ALL: [(Self, Part, &'static str); 7] = [
        (Self::Sessions, Part::Lasting, "sessions"),
        (Self::Subscriptions, Part::Lasting, "subscriptions"),
        (Self::Wills, Part::Lasting, "wills"),
        (Self::Routes, Part::Cached, "routes"),
        (Self::Input, Part::Input, "input"),
        (Self::Unacknowledged, Part::Unacknowledged, "unacknowledged"),
        (Self::Backlog, Part::Lasting, "backlog"),
    ];

    fn part(self) -> Part {
        Self::ALL[self as usize].1
    }

    /// Name in topics below `$SYS/broker/` and in the log.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL[self as usize].2
    }
}

impl Part {
    const COUNT: usize = 4;

    /// Bytes of this part in a bound of `maximum`.
    fn of(self, maximum: usize) -> usize {
        let sixteenths = match self {
            Self::Lasting => 9,
            Self::Cached => 2,
            Self::Input => 4,
            Self::Unacknowledged => 1,
        };
        // Divide first: `maximum` may be `usize::MAX`, as in tests.
        (maximum / 16).saturating_mul(sixteenths)
    }
}

impl Owner {
    fn bound(&self) -> Bound {
        match self {
            Self::User(..) => Bound::MemoryOfUser,
            Self::Address(from) if from.to_canonical().is_loopback() => Bound::MemoryOfLoopback,
            Self::Address(_) => Bound::MemoryOfAddress,
            Self::Restored | Self::StandingGroups => Bound::MemoryOfAll,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(_, name) => write!(f, "user {name:?}"),
            Self::Address(address) => write!(f, "address {address}"),
            Self::Restored => f.write_str("anonymous clients of the last run"),
            Self::StandingGroups => f.write_str("standing share groups"),
        }
    }
}

/// Bytes that each session adds to its owner's maximum, up to half of the total.
///
/// They cover the session itself and a few short subscriptions. The number of sessions has separate limits, so any
/// number of honest clients can share one address.
pub(crate) const SESSION_ALLOWANCE: usize = 4096;
/// Bytes that each connected client adds to its owner's maximum for subscriptions, up to three quarters of the total.
///
/// They cover fifty subscriptions with a wildcard and four levels. A fleet behind one address may be large, and each of
/// its clients holds a connection. A session without one adds the bytes of its subscriptions, up to this number: a
/// fleet may be mostly offline, and needs the same room when its clients disconnect. No client can use the rest.
pub(crate) const CLIENT_ALLOWANCE: usize = 64 << 10;

/// An owner below this size may use the last eighth of the total.
const SMALL_OWNER: usize = 64 << 10;
/// Rate limit of log lines on refusals.
const LINES_PER_SECOND: u64 = 10;

#[cfg(test)]
mod tests;
