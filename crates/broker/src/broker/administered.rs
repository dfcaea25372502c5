//! Parts of the broker that its admin interface reaches.

use std::sync::Weak;

use tenbin_admin::ListenerView;

use super::{ConfigCheck, Parts};
use crate::Config;
use crate::control::{Difference, Reach};

/// A broker as far as [`Reach`] needs it.
///
/// The admin thread may outlive the broker for a moment, and must not keep its sockets open.
pub(super) struct Above(pub(super) Weak<Parts>);

impl Reach for Above {
    fn listening(&self) -> Vec<ListenerView> {
        self.0.upgrade().map(|parts| parts.listeners().views()).unwrap_or_default()
    }

    fn stop_accepting(&self, listener: Option<&str>) -> bool {
        self.0.upgrade().is_some_and(|parts| parts.listeners().stop_accepting(listener))
    }

    fn reload(&self, config: &Config) -> Result<Vec<Difference>, String> {
        let parts = self.0.upgrade().ok_or("the broker stops")?;
        let not_taken = parts.reload(config).map_err(|error| error.to_string())?;
        Ok(not_taken.into_iter().map(|found| [found.key, found.old, found.new]).collect())
    }

    fn check(&self, text: &str) -> (Vec<String>, Vec<Difference>) {
        let ConfigCheck { errors, differences } = ConfigCheck::of(text, std::iter::empty());
        (errors, differences)
    }
}
