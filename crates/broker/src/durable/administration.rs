//! `tenbin sessions` and `tenbin store prune`: list and remove sessions of an unused data directory.

mod groups;

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tenbin_codec::Text;
use tenbin_store::spool::{self, QueueId};
use tenbin_store::state::{BackendError, Snapshot, Table};
use tenbin_store::{LockedDirectory, Sync};

use super::bytes::{RecordError, text};
use super::error::{Cause, decode_each};
use super::queue::{QueueKind, StoredQueue};
use super::record::{SessionRecord, decode_subscription_key, decode_will_key};
use super::{Changes, Durable, Ended, StoreError, realms};
use crate::Config;
use crate::auth::{Access, AccessError, Settings, Standing};

pub use groups::{GroupWithoutRule, groups_without_rule, groups_without_rule_at_start, prune_groups};

/// Selects sessions that meet all of its conditions; without any, all sessions.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    /// One of these Client Identifiers; none = any.
    pub client_ids: Vec<String>,
    /// Sessions of this user.
    pub user: Option<String>,
    /// Sessions of anonymous clients.
    pub anonymous: bool,
    /// Sessions of users of this realm.
    pub realm: Option<String>,
    /// Sessions whose last connection came through this listener.
    pub listener: Option<String>,
    /// Sessions whose user or listener is missing in this configuration and its password files.
    pub orphaned_in: Option<Config>,
}

/// Why sessions were not listed or removed. The text is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdministrationError {
    /// The data directory is in use, cannot be read, or cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The configuration, or a password file that it names, cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// There is no session with this Client Identifier.
    #[error("there is no session {0:?}; nothing was removed")]
    NoSuchSession(String),
    /// The disk did not confirm the changes in this directory.
    #[error("the disk did not confirm the changes in {0}: list its sessions again")]
    NotWritten(PathBuf),
    /// The output cannot be written.
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// Writes a JSON object a line for each session that `filter` selects. Returns their number. Changes nothing.
///
/// # Errors
/// The directory or the configuration cannot be read, or `out` cannot be written.
pub fn list_sessions(
    directory: &Path,
    filter: &SessionFilter,
    out: &mut dyn Write,
) -> Result<usize, AdministrationError> {
    let selected = select(directory, filter)?;
    print(&selected, out)?;
    Ok(selected.len())
}

/// Removes the sessions that `filter` selects, and writes them as [`list_sessions`] does.
///
/// Their subscriptions, messages and Wills go too. The Wills are not published.
///
/// # Errors
/// As [`list_sessions`]; a Client Identifier of `filter` has no session; the directory cannot be written.
pub fn remove_sessions(
    directory: &Path,
    filter: &SessionFilter,
    out: &mut dyn Write,
) -> Result<usize, AdministrationError> {
    let selected = select(directory, filter)?;
    let is_selected = |id: &String| selected.iter().any(|session| session.client_id.as_str() == id);
    if let Some(missing) = filter.client_ids.iter().find(|id| !is_selected(id)) {
        return Err(AdministrationError::NoSuchSession(missing.clone()));
    }
    if !selected.is_empty() {
        let durable = Durable::open(directory, Sync::Always, 0)?;
        remove(&durable, &selected)?;
        if !durable.flush(PATIENCE) {
            return Err(AdministrationError::NotWritten(directory.to_owned()));
        }
    }
    print(&selected, out)?;
    Ok(selected.len())
}

struct Selected {
    client_id: Text,
    record: SessionRecord,
    subscriptions: usize,
    /// Number of messages; `None` = the log of messages cannot be read.
    waiting: Option<usize>,
}

fn select(directory: &Path, filter: &SessionFilter) -> Result<Vec<Selected>, AdministrationError> {
    let locked = LockedDirectory::open_to_read(directory).map_err(Cause::Directory)?;
    let state = Snapshot::open(&locked).map_err(Cause::Open)?;
    let orphans = filter.orphaned_in.as_ref().map(|config| Orphans::of(config, &state)).transpose()?;
    let mut selected = Vec::new();
    each(&state, Table::Sessions, |key, value| {
        let (client_id, record) = (text(key, "Client Identifier")?, SessionRecord::decode(value)?);
        if filter.has(&client_id, &record) && orphans.as_ref().is_none_or(|orphans| orphans.has(&client_id, &record)) {
            selected.push(Selected { client_id, record, subscriptions: 0, waiting: None });
        }
        Ok(())
    })?;
    let mut by_number: HashMap<_, _> =
        selected.iter_mut().map(|session| (session.record.number.get(), &mut session.subscriptions)).collect();
    each(&state, Table::Subscriptions, |key, _| {
        let (session, _) = decode_subscription_key(key)?;
        if let Some(subscriptions) = by_number.get_mut(&session) {
            **subscriptions += 1;
        }
        Ok(())
    })?;
    if let Ok(messages) = spool::Snapshot::open(&directory.join("spool")) {
        for session in &mut selected {
            let content = messages.queue(QueueId(session.record.number.get()));
            session.waiting = Some(content.map_or(0, |content| content.waiting));
        }
    }
    Ok(selected)
}

fn remove(durable: &Durable, sessions: &[Selected]) -> Result<(), AdministrationError> {
    let mut changes = Changes::default();
    let numbers: HashSet<_> = sessions.iter().map(|session| session.record.number.get()).collect();
    let clients: HashSet<_> = sessions.iter().map(|session| &session.client_id).collect();
    let failed = |table: Table| move |error: BackendError| Cause::Table(table.name(), error);
    let scan = |table, visit: &mut dyn FnMut(&[u8])| {
        durable.state.scan(table, &mut |key, _| visit(key)).map_err(failed(table))
    };
    scan(Table::Subscriptions, &mut |key| {
        if decode_subscription_key(key).is_ok_and(|(session, _)| numbers.contains(&session)) {
            changes.remove(Table::Subscriptions, key.to_vec());
        }
    })?;
    scan(Table::Wills, &mut |key| {
        if decode_will_key(key).is_ok_and(|(client_id, _)| clients.contains(&client_id)) {
            changes.remove(Table::Wills, key.to_vec());
        }
    })?;
    for Selected { client_id, record, .. } in sessions {
        changes.remove(Table::Sessions, client_id.as_bytes().to_vec());
        durable.end_queue(Ended::Pruned, &StoredQueue::new(QueueKind::Session, record.number, 1));
    }
    durable.make(&changes);
    Ok(())
}

fn print(sessions: &[Selected], out: &mut dyn Write) -> Result<(), AdministrationError> {
    /// Times are milliseconds since 1970.
    #[derive(Serialize)]
    struct Line<'a> {
        client_id: &'a str,
        user: Option<&'a str>,
        realm: &'a str,
        listener: &'a str,
        /// 4294967295: for ever.
        expiry_seconds: u32,
        /// When its connection ended.
        ended: Option<u64>,
        /// The address that began it, if it counts for `sessions.per_address_maximum`.
        address: Option<IpAddr>,
        subscriptions: usize,
        waiting: Option<usize>,
    }
    for Selected { client_id, record, subscriptions, waiting } in sessions {
        let line = Line {
            client_id: client_id.as_str(),
            user: record.owner.user.as_ref().map(Text::as_str),
            realm: &record.owner.realm,
            listener: &record.owner.listener,
            expiry_seconds: record.expiry,
            ended: (record.ended != 0).then_some(record.ended),
            address: record.address.map(|address| address.to_canonical()),
            subscriptions: *subscriptions,
            waiting: *waiting,
        };
        serde_json::to_writer(&mut *out, &line).map_err(io::Error::from)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Calls `decode` with every record of a table.
fn each(
    state: &Snapshot,
    table: Table,
    decode: impl FnMut(&[u8], &[u8]) -> Result<(), RecordError>,
) -> Result<(), Cause> {
    decode_each(table, |visit| state.scan(table, visit), decode)
}

impl SessionFilter {
    /// Whether a session meets all conditions but [`SessionFilter::orphaned_in`].
    fn has(&self, client_id: &Text, SessionRecord { owner, .. }: &SessionRecord) -> bool {
        let user = owner.user.as_ref().map(Text::as_str);
        (self.client_ids.is_empty() || self.client_ids.iter().any(|id| id == client_id.as_str()))
            && self.user.as_deref().is_none_or(|wanted| user == Some(wanted))
            && (!self.anonymous || user.is_none())
            && self.realm.as_deref().is_none_or(|realm| user.is_some() && *owner.realm == *realm)
            && self.listener.as_deref().is_none_or(|listener| *owner.listener == *listener)
    }
}

/// Finds sessions whose user or listener is missing in a configuration.
struct Orphans {
    access: Access,
    listeners: Vec<Arc<str>>,
}

impl Orphans {
    fn of(config: &Config, state: &Snapshot) -> Result<Self, AdministrationError> {
        let mut settings = Settings::load(config, true)?;
        let mut known = Vec::new();
        each(state, Table::Meta, |key, value| {
            if key == realms::REALMS_KEY {
                known = realms::decode(value)?;
            }
            Ok(())
        })?;
        settings.recall(&known);
        let listeners = config.listener_names();
        Ok(Self { access: Access::new(settings, [0; 32], None, None), listeners })
    }

    fn has(&self, client_id: &Text, record: &SessionRecord) -> bool {
        let owner = self.access.owner_now(&self.listeners, record.owner.principal(client_id.clone()));
        self.access.standing(&owner) == Standing::Revoked
    }
}

impl From<Cause> for AdministrationError {
    fn from(cause: Cause) -> Self {
        Self::Store(cause.into())
    }
}

/// How long to wait until the disk has confirmed the changes.
const PATIENCE: Duration = Duration::from_secs(60);
