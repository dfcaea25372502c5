//! Constructors for tests.

use std::sync::Arc;

use tenbin_balancer::{MemberLoad, Nanos};
use tenbin_codec::Text;

use super::Client;
use crate::Config;
use crate::auth::{Access, Identity, Principal, Rights, Settings};
use crate::outbox::{Budget, Limits, Outbox, OutboxCommon};
use crate::values::WhenFull;

impl Principal {
    /// An anonymous client that comes through `listener`.
    pub(crate) fn for_tests(listener: &str) -> Self {
        Self { client_id: Text::from_static("c"), identity: Identity::anonymous(), listener: listener.into() }
    }
}

impl Client {
    /// A session without a disk, where the listeners "inside" and "outside" have different rules.
    pub(crate) fn for_tests(principal: &Principal, number: u64) -> Self {
        let config = Config::parse(
            "[[listeners]]\nname = \"inside\"\naddress = \"127.0.0.1:0\"\nanonymous = true\nacl = false\n\
             [[listeners]]\nname = \"outside\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n\
             [[acl]]\nallow = \"all\"\ntopic = \"a\"\n",
        );
        let settings = Settings::load(&config.unwrap(), true).unwrap();
        let rights = Arc::new(Rights::new(Arc::new(Access::new(settings, [0; 32], None, None)), principal.clone()));
        let load = Arc::new(MemberLoad::new(Nanos(0)));
        let common =
            OutboxCommon::for_tests(Limits::for_tests(100, WhenFull::DropOldest), Arc::new(Budget::new(1 << 20)));
        let outbox = Arc::new(Outbox::new(Arc::new(common), Arc::clone(&load)));
        Self::new(principal.client_id.clone(), number, outbox, load, rights)
    }
}
