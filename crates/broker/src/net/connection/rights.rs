//! Changed permissions of the connected client.

use std::time::Instant;

use super::ConnectionTask;
use crate::auth::Standing;
use crate::lifecycle::enforcement;
use crate::net::end::End;
use crate::net::stream::Stream;

impl<S: Stream> ConnectionTask<S> {
    /// Applies changed permissions, and holds back resends that these forbid.
    ///
    /// # Errors
    /// [`End::Revoked`] if the user may not stay connected.
    #[cold]
    pub(super) fn take_rights_over(&mut self) -> Result<(), End> {
        let now = Instant::now();
        let Self { core, gate, .. } = self;
        let standing = enforcement::catch_up(&core.open.shared, &mut core.lease);
        let rights = &core.lease.client.rights;
        let is_forbidden = |delivery: &_| enforcement::is_forbidden(rights, delivery);
        let held = core.connection.hold_resends(is_forbidden, now, &mut core.out);
        if held > 0 {
            let (peer, client) = (core.open.peer, &core.lease.client.id);
            tracing::info!(%peer, ?client, messages = held, "messages in flight wait for the right to receive them");
        }
        gate.settle(core);
        self.count_dropped_resends(now);
        let core = &mut self.core;
        let principal = core.lease.client.rights.principal();
        let suspect = core.open.suspect(&principal);
        match standing {
            Standing::Current if core.open.shared.admission.access.is_banned(&suspect) => Err(End::Revoked),
            Standing::Current if core.open.is_trusted() => Ok(()),
            Standing::Current | Standing::Stale | Standing::Revoked => Err(End::Revoked),
        }
    }
}
