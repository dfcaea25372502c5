//! Will and Session Expiry Interval: they take effect at the end of a connection.

use tenbin_codec::Disconnect;
use tenbin_session::{Session, SessionExpiry, Violation};

use super::core::Core;
use super::end::End;
use crate::durable::CommitPoint;
use crate::lifecycle::ConnectionEnd;
use crate::registry::ChargedWill;

/// Settings of CONNECT for the end of the connection; DISCONNECT may change them.
#[derive(Debug)]
pub(super) struct Departure {
    will: Option<Box<ChargedWill>>,
    session_expiry: SessionExpiry,
}

impl Departure {
    pub(super) fn new(will: Option<Box<ChargedWill>>, session_expiry: SessionExpiry) -> Self {
        Self { will, session_expiry }
    }

    /// Stores the Will and the session with the present rights of the client. Returns the commit point.
    pub(super) fn store(&self, core: &mut Core) -> CommitPoint {
        let Some(durable) = core.open.shared.storage.durable.clone() else { return CommitPoint::NOW };
        let will = self.will.as_deref().map(|charged| &charged.will);
        durable.keep_connection(core.lease.on_disk(), self.session_expiry, will)
    }

    /// Handles DISCONNECT from the client.
    pub(super) fn disconnected(&mut self, core: &Core, disconnect: &Disconnect) -> End {
        let expiry = disconnect.properties.as_ref().and_then(|properties| properties.session_expiry_interval);
        if let Some(seconds) = expiry {
            if self.session_expiry == SessionExpiry::AtDisconnect && seconds > 0 {
                return End::Violation(Violation::SessionExpiryRaised);
            }
            let maximum = core.open.shared.sessions.capabilities.session_expiry_maximum.seconds();
            self.session_expiry = SessionExpiry::from_seconds(seconds.min(maximum));
        }
        End::Disconnect(disconnect.reason)
    }

    /// The end of the connection for its session. `is_normal`: DISCONNECT 0x00 has removed the Will.
    pub(super) fn end(self, session: Session, settled_at: CommitPoint, is_normal: bool) -> ConnectionEnd {
        ConnectionEnd { settled_at, session, will: self.will.filter(|_| !is_normal), expiry: self.session_expiry }
    }
}
