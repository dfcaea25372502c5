use std::time::Instant;

use tenbin_codec::Will;
use tenbin_session::SessionExpiry;
use tenbin_store::state::Table;

use super::record::{Owner, WillRecord};
use super::wall_clock::WallClock;
use super::{Changes, Durable, SafeAt};
use crate::registry::Lease;

impl Durable {
    /// A connection begins: its session, if that outlives it, and its Will, whether or not.
    pub(crate) fn connection_begins(&self, lease: &mut Lease, expiry: SessionExpiry, will: Option<&Will>) -> SafeAt {
        let mut changes = Changes::default();
        let is_kept = lease.state.durable.is_some();
        let before = self.keep_session(lease, expiry, None, &mut changes);
        match will {
            Some(will) => keep_will(lease, will.clone(), None, &mut changes),
            None => forget_will(lease, &mut changes),
        }
        let safe_at = before.and(self.make(&changes)).and(self.ended(lease));
        match &mut lease.state.durable {
            Some(session) => session.safe_at = safe_at,
            None if is_kept => self.note_ending(lease, safe_at), // it ends with this connection
            None => {}
        }
        safe_at
    }

    /// A connection has ended, and its session goes on without one: also a Will that waits for its delay does.
    pub(crate) fn connection_ended(&self, lease: &mut Lease, expiry: SessionExpiry, now: Instant) {
        let mut changes = Changes::default();
        let before = self.keep_session(lease, expiry, Some(now), &mut changes);
        match lease.state.will.as_ref().map(|pending| (pending.will.clone(), pending.due)) {
            Some((will, due)) => keep_will(lease, will, Some(due), &mut changes),
            None => forget_will(lease, &mut changes),
        }
        let safe_at = before.and(self.make(&changes));
        // Whoever comes back at once may find nothing that has to be written again.
        if let Some(session) = &mut lease.state.durable {
            session.safe_at = safe_at;
        }
    }

    /// The Will was published, or taken away.
    pub(crate) fn will_over(&self, lease: &mut Lease) {
        let mut changes = Changes::default();
        forget_will(lease, &mut changes);
        self.make(&changes);
    }
}

/// `due`: `None` while its client is connected.
fn keep_will(lease: &mut Lease, will: Will, due: Option<Instant>, changes: &mut Changes) {
    let owner = Owner::from(&*lease.client.rights.principal());
    let record = WillRecord { owner, due: WallClock::now().to_wall(due), will };
    changes.put(Table::Wills, lease.client.id.as_bytes().to_vec(), record.encode());
    lease.state.will_is_kept = true;
}

fn forget_will(lease: &mut Lease, changes: &mut Changes) {
    if std::mem::take(&mut lease.state.will_is_kept) {
        changes.remove(Table::Wills, lease.client.id.as_bytes().to_vec());
    }
}
