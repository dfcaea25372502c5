//! Changed permissions of the connected client.

use std::cell::RefCell;
use std::time::Instant;

use tenbin_session::{Delivery, SentId};

use super::ConnectionTask;
use crate::auth::Standing;
use crate::hooks::{Events, QosDropReason};
use crate::lifecycle::enforcement::{self, NotKept};
use crate::net::end::End;
use crate::net::stream::Stream;

impl<S: Stream> ConnectionTask<S> {
    /// Applies changed permissions, and abandons resends that these forbid.
    ///
    /// # Errors
    /// [`End::Revoked`] if the user may not stay connected.
    #[cold]
    pub(super) fn take_rights_over(&mut self) -> Result<(), End> {
        let Self { core, gate, .. } = self;
        let rights = &core.lease.client.rights;
        let not_kept = NotKept::default();
        let is_hooked = core.hooks.as_ref().is_some_and(|hooks| hooks.wants(Events::QOS_DROPPED));
        let dropped = RefCell::new(Vec::new());
        let is_forbidden = |id: SentId, delivery: &Delivery| {
            let is_forbidden = enforcement::is_forbidden(rights, delivery) && not_kept.note_sent(id, delivery);
            if is_forbidden && is_hooked {
                dropped.borrow_mut().push(id.packet_id);
            }
            is_forbidden
        };
        let now = Instant::now();
        let given_up = core.connection.give_up_resends(is_forbidden, now, &mut core.out);
        if given_up > 0 {
            tracing::info!(peer = %core.shared.peer, client = ?core.lease.client.id, given_up, "messages in flight are no longer authorized");
        }
        if let Some(hooks) = &core.hooks {
            dropped.into_inner().into_iter().for_each(|id| hooks.qos_dropped(id, QosDropReason::NotAuthorized));
        }
        for (id, stored, share) in not_kept.take_released() {
            gate.sends().received(core, id.packet_id, stored, share, now);
        }
        gate.settle(core);
        not_kept.settle(&core.shared, &core.lease.client);
        let standing = enforcement::catch_up(&core.shared, &mut core.lease);
        let principal = core.lease.client.rights.principal();
        let suspect = core.shared.suspect(&principal);
        match standing {
            Standing::Current if core.shared.access.is_banned(&suspect) => Err(End::Revoked),
            Standing::Current if core.shared.is_trusted() => Ok(()),
            Standing::Current | Standing::Stale | Standing::Revoked => Err(End::Revoked),
        }
    }
}
