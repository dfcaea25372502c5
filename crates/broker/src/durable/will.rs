use std::sync::Arc;
use std::time::Instant;

use tenbin_codec::{Text, Will};
use tenbin_session::SessionExpiry;
use tenbin_store::state::Table;

use super::published_wills::WillOf;
use super::record::{Owner, WillRecord, will_key};
use super::wall_clock::WallClock;
use super::{Changes, ClientOnDisk, CommitPoint, Durable};

impl Durable {
    /// Stores the Will of a connection, and its session if that outlives it. Returns the commit point.
    ///
    /// Call it when the connection begins, and when its client has got other rights.
    pub(crate) fn keep_connection(
        &self,
        mut client: ClientOnDisk<'_>,
        expiry: SessionExpiry,
        will: Option<&Will>,
    ) -> CommitPoint {
        let mut changes = Changes::default();
        let is_kept = client.session.is_some();
        let before = self.keep_session(&mut client, expiry, None, &mut changes);
        match will {
            Some(will) => self.keep_will(&mut client, will.clone(), None, &mut changes),
            None => forget_will(client.client_id, client.will, &mut changes),
        }
        let commit_point = before.and(self.make(&changes)).and(self.ended(client.client_id));
        self.session_changed(client, commit_point, is_kept);
        commit_point
    }

    /// Stores how long the session of an ended connection goes on, and when its Will is due.
    ///
    /// A Will that is due now stays until it is published: after a crash, the next start publishes it. `is_restored`:
    /// the Will is an earlier connection's, whose record the next connection has replaced.
    pub(crate) fn connection_ended(
        &self,
        mut client: ClientOnDisk<'_>,
        expiry: SessionExpiry,
        is_restored: bool,
        now: Instant,
    ) {
        let mut changes = Changes::default();
        let is_kept = client.session.is_some();
        let before = self.keep_session(&mut client, expiry, Some(now), &mut changes);
        match client.pending_will {
            Some((will, due)) if due > now || is_restored => {
                self.keep_will(&mut client, will.clone(), Some(due), &mut changes);
            }
            Some(_) => {}
            None => forget_will(client.client_id, client.will, &mut changes),
        }
        // A client that comes back at once may have nothing to write, but waits for this.
        self.session_changed(client, before.and(self.make(&changes)), is_kept);
    }

    /// Notes the commit point of a change of the session. `is_kept`: the session was on disk before.
    fn session_changed(&self, client: ClientOnDisk<'_>, commit_point: CommitPoint, is_kept: bool) {
        match client.session {
            Some(session) => session.changed(commit_point, !is_kept),
            None if is_kept => self.note_ending(client.client_id, commit_point), // it ends with the connection
            None => {}
        }
    }

    /// Removes the Will of a session that ends, whose number is taken from `will`.
    pub(crate) fn will_over(&self, client_id: &Text, will: &mut Option<u16>) {
        let mut changes = Changes::default();
        forget_will(client_id, will, &mut changes);
        self.make(&changes);
    }

    /// Forgets a published Will once its message is durable. Until then, the client's next Will is stored beside it.
    pub(crate) fn will_published(&self, client_id: &Text, number: u16, commit_point: CommitPoint) {
        if commit_point == CommitPoint::NOW {
            self.remove(Table::Wills, &will_key(client_id.as_bytes(), number));
        } else {
            self.published_wills.add(client_id, number, commit_point);
        }
    }

    /// Forgets the published Wills whose messages are durable by now.
    pub(super) fn forget_published_wills(&self) {
        let forget = |keys: Vec<WillOf>| {
            let mut changes = Changes::default();
            keys.iter().for_each(|(client_id, number)| changes.remove(Table::Wills, will_key(client_id, *number)));
            self.make(&changes);
        };
        self.published_wills.take(|at| self.is_safe(at), forget);
    }

    /// Waits until a published Will's message is durable, and forgets the Wills whose messages are.
    pub(crate) async fn forget_next_wills(self: &Arc<Self>) {
        match self.published_wills.first() {
            Some(commit_point) => self.safe(commit_point).await,
            None => self.published_wills.added.notified().await,
        }
        self.forget_published_wills();
    }

    /// Number of Wills on disk, published or not.
    #[cfg(test)]
    pub(crate) fn wills_on_disk(&self) -> usize {
        let mut wills = 0;
        self.state.scan(Table::Wills, &mut |_, _| wills += 1).unwrap();
        wills
    }

    #[cfg(test)]
    pub(crate) fn sessions_on_disk(&self) -> usize {
        let mut sessions = 0;
        self.state.scan(Table::Sessions, &mut |_, _| sessions += 1).unwrap();
        sessions
    }

    /// Blocks until all state changes are on disk.
    #[cfg(test)]
    pub(crate) fn wait_for_state(&self) {
        assert!(self.state.wait(self.state.last(), std::time::Duration::from_secs(60)));
    }

    /// Stores a Will. `due`: `None` while its client is connected.
    fn keep_will(&self, client: &mut ClientOnDisk<'_>, will: Will, due: Option<Instant>, changes: &mut Changes) {
        let owner = Owner::from(&*client.rights.principal());
        let record = WillRecord { owner, due: WallClock::now().to_wall(due), will };
        let number = client.will.unwrap_or_else(|| self.published_wills.number_behind(client.client_id));
        changes.put(Table::Wills, will_key(client.client_id.as_bytes(), number), record.encode());
        *client.will = Some(number);
    }
}

fn forget_will(client_id: &Text, will: &mut Option<u16>, changes: &mut Changes) {
    if let Some(number) = will.take() {
        changes.remove(Table::Wills, will_key(client_id.as_bytes(), number));
    }
}
