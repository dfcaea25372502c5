//! `tenbin store prune --without-rule` and `tenbin broker --check --data`: share groups without a rule.

use std::collections::HashSet;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::path::Path;

use serde::Serialize;
use tenbin_codec::SharedFilter;
use tenbin_store::spool::{self, QueueId};
use tenbin_store::state::{OpenError, Snapshot, State, Table};
use tenbin_store::{DirectoryError, LockedDirectory, Sync};

use super::{AdministrationError, PATIENCE, each};
use crate::Config;
use crate::durable::bytes::RecordError;
use crate::durable::error::Cause;
use crate::durable::groups::{GROUP_KEY, GroupRecord, name};
use crate::durable::queue::{QueueKind, StoredQueue};
use crate::durable::record::decode_subscription_key;
use crate::durable::{Changes, Durable, Ended, RUN_KEY};

/// A share group with waiting messages that has no member, and that no rule of a configuration makes stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GroupWithoutRule {
    /// Its share name.
    pub group: String,
    /// Its filter.
    pub filter: String,
    /// Seconds for which its messages wait, by the last rule with which it stood; 4294967295: for ever, `None`: none.
    pub keep_seconds: Option<u32>,
    /// Messages that wait with it.
    pub waiting: usize,
    #[serde(skip)]
    queue: NonZeroU64,
    #[serde(skip)]
    key: Vec<u8>,
}

/// As [`groups_without_rule`], for a broker that is about to start in `directory`, or that runs there.
///
/// A directory in which nothing is stored yet has no groups. `None` = a process uses the directory.
///
/// # Errors
/// The directory cannot be read, or a broker would refuse it.
pub fn groups_without_rule_at_start(
    directory: &Path,
    config: &Config,
) -> Result<Option<Vec<GroupWithoutRule>>, AdministrationError> {
    // A lock that is missing is no error: a start creates it.
    let _locked = match LockedDirectory::open_to_read(directory) {
        Ok(locked) => Some(locked),
        Err(DirectoryError::InUse(_)) => return Ok(None),
        Err(DirectoryError::Io(_, error)) if directory.is_dir() && error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(Cause::Directory(error).into()),
    };
    if State::is_blank(directory).map_err(Cause::Open)? {
        return Ok(Some(Vec::new()));
    }
    groups_without_rule(directory, config).map(Some)
}

/// Finds the share groups of a data directory that no rule of `config` makes stand, and that have messages and no member.
///
/// # Errors
/// A broker uses the directory, or it cannot be read.
pub fn groups_without_rule(directory: &Path, config: &Config) -> Result<Vec<GroupWithoutRule>, AdministrationError> {
    let locked = LockedDirectory::open_to_read(directory).map_err(Cause::Directory)?;
    let state = Snapshot::open(&locked).map_err(Cause::Open)?;
    let mut had_run = false;
    each(&state, Table::Meta, |key, _| {
        had_run |= key == RUN_KEY;
        Ok(())
    })?;
    state.check_messages(&locked, had_run).map_err(|mismatch| Cause::Open(OpenError::Mismatch(mismatch)))?;
    let path = directory.join("spool");
    // A start that was killed may have left a state alone.
    let messages = path.exists().then(|| spool::Snapshot::open(&path)).transpose().map_err(Cause::Spool)?;
    let mut kept: HashSet<_> = config.share_rules().standing_groups().map(|group| text(&group)).collect();
    each(&state, Table::Subscriptions, |key, _| {
        let (_, filter) = decode_subscription_key(key)?;
        kept.extend(filter.shared().map(|group| text(&group)));
        Ok(())
    })?;
    let mut found = Vec::new();
    each(&state, Table::Meta, |key, value| {
        if !key.starts_with(GROUP_KEY) {
            return Ok(());
        }
        let GroupRecord { queue, keep_seconds, .. } =
            GroupRecord::decode(value).ok_or(RecordError::Illegal("number"))?;
        let group = name(key).ok_or(RecordError::Illegal("share group"))?;
        let waiting = messages.as_ref().and_then(|messages| messages.queue(QueueId(queue.get())));
        let waiting = waiting.map_or(0, |content| content.waiting);
        if waiting > 0 && !kept.contains(&text(&group)) {
            found.push(GroupWithoutRule {
                group: group.share_name.text().as_str().to_owned(),
                filter: group.filter.text().as_str().to_owned(),
                keep_seconds: keep_seconds.map(Into::into),
                waiting,
                queue,
                key: key.to_vec(),
            });
        }
        Ok(())
    })?;
    Ok(found)
}

/// Writes the groups of [`groups_without_rule`], a JSON object a line. With `remove`, removes them and their messages.
/// Returns their number.
///
/// # Errors
/// As [`groups_without_rule`]; the directory cannot be written; `out` cannot be written.
pub fn prune_groups(
    directory: &Path,
    config: &Config,
    remove: bool,
    out: &mut dyn Write,
) -> Result<usize, AdministrationError> {
    let found = groups_without_rule(directory, config)?;
    if remove && !found.is_empty() {
        let durable = Durable::open(directory, Sync::Always, 0)?;
        let mut changes = Changes::default();
        for GroupWithoutRule { queue, key, .. } in &found {
            changes.remove(Table::Meta, key.clone());
            durable.end_queue(Ended::Pruned, &StoredQueue::new(QueueKind::Group, *queue, 1));
        }
        durable.make(&changes);
        if !durable.flush(PATIENCE) {
            return Err(AdministrationError::NotWritten(directory.to_owned()));
        }
    }
    for group in &found {
        serde_json::to_writer(&mut *out, group).map_err(io::Error::from)?;
        out.write_all(b"\n")?;
    }
    Ok(found.len())
}

fn text(SharedFilter { share_name, filter }: &SharedFilter) -> String {
    format!("{}/{}", share_name, filter.text())
}
