use std::fmt;

use super::TopicFilter;
use crate::Text;

/// The name between the slashes of `$share/name/filter`: no `/`, `+`, `#` `[MQTT-4.8.2-2]`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShareName(pub(super) Text);

impl ShareName {
    /// The name's text.
    pub fn text(&self) -> &Text {
        &self.0
    }
}

impl fmt::Display for ShareName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for ShareName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The two parts of a shared subscription, which together name its group (MQTT 5.0 §4.8.2).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SharedFilter {
    /// The group's name.
    pub share_name: ShareName,
    /// The group's filter.
    pub filter: TopicFilter,
}

impl SharedFilter {
    /// A copy that does not keep the buffer it was read from alive.
    #[must_use]
    pub fn detach(&self) -> Self {
        Self { share_name: ShareName(self.share_name.0.detach()), filter: self.filter.detach() }
    }
}
