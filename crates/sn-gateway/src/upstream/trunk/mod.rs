//! Connections to the broker that many clients share.
//!
//! ```text
//!   peer ─► MemberStream ─► Hub.out ─► task ─► broker       a trunk: one connection, one task, one hub under a lock
//!        ◄─              ◄─ Member.inbound ◄─┘
//! ```
//!
//! To its peer a trunk looks like a broker: CONNECT, SUBSCRIBE and PUBLISH of MQTT 5.0 go in, and their answers come
//! out. The hub gives each message a Packet Identifier of the trunk, subscribes to the union of all members' filters,
//! and publishes Wills. A client without Clean Session, or with a shared subscription, has a connection of its own.

mod hub;
mod limits;
mod member;
mod own;
mod replacement;
mod subscriptions;
mod task;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustc_hash::FxBuildHasher;
use tenbin_codec::Text;
use tenbin_sn::Login;

use super::{Stream, tcp};
use hub::Hub;
use member::MemberStream;

/// Trunks to one broker.
pub(super) struct Trunks {
    broker: Arc<tcp::Address>,
    trunks: Box<[Arc<Trunk>]>,
}

/// One connection that many clients share.
struct Trunk {
    settings: Settings,
    hub: Mutex<Hub>,
}

/// CONNECT of a trunk.
struct Settings {
    client_id: Text,
    login: Option<Login>,
    keep_alive: Duration,
    timeout: Duration,
}

impl Trunks {
    pub(super) fn new(broker: tcp::Address, count: usize, settings: &tenbin_sn::Settings) -> Self {
        // Several gateways may share a broker.
        let number = RandomState::new().build_hasher().finish();
        let payload_bytes_maximum = usize::from(settings.datagram_bytes_maximum);
        let trunk = |index| {
            let client_id = Text::try_from(format!("tenbin-sn-{number:016x}-{index}")).expect("it has no NUL");
            let settings = Settings {
                client_id,
                login: settings.upstream_login.clone(),
                keep_alive: settings.upstream_keep_alive,
                timeout: settings.upstream_timeout,
            };
            Arc::new(Trunk { settings, hub: Mutex::new(Hub::new(payload_bytes_maximum)) })
        };
        let trunks = (0..count.max(1)).map(trunk).collect();
        Self { broker: Arc::new(broker), trunks }
    }

    /// A stream for a client.
    pub(super) fn open(self: &Arc<Self>) -> Stream {
        Box::new(MemberStream::new(Arc::clone(self)))
    }

    /// The trunk of a client id: the same for each of its connections.
    fn of(&self, client_id: &Text) -> Arc<Trunk> {
        let number = (FxBuildHasher.hash_one(client_id.as_bytes()) >> 32) as usize % self.trunks.len();
        Arc::clone(&self.trunks[number])
    }

    /// Messages that were dropped, since their receivers were slow.
    pub(super) fn dropped(&self) -> u64 {
        self.trunks.iter().map(|trunk| trunk.hub().dropped()).sum()
    }
}

impl Trunk {
    fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
