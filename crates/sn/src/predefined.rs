use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use rustc_hash::FxBuildHasher;
use tenbin_codec::{Text, TopicName};

/// Topic ids that clients and gateway know beforehand, with their names. `%c` in a name stands for the client id.
///
/// ```
/// use tenbin_sn::PredefinedTopics;
///
/// assert!(PredefinedTopics::new([(1, "plant/alarms"), (2, "plant/%c/temperature")]).is_ok());
/// assert!(PredefinedTopics::new([(0, "a")]).is_err());
/// assert!(PredefinedTopics::new([(1, "a/#")]).is_err());
/// ```
#[derive(Debug, Default)]
pub struct PredefinedTopics {
    names: HashMap<u16, Template, FxBuildHasher>,
    ids: HashMap<TopicName, u16, FxBuildHasher>,
    /// Ids of names with `%c`, ascending.
    per_client: Vec<u16>,
}

#[derive(Debug)]
enum Template {
    Fixed(TopicName),
    /// Parts before and after the client id.
    PerClient(String, String),
}

/// Reason why a topic cannot be predefined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PredefinedError {
    /// Ids 0x0000 and 0xFFFF are reserved.
    ReservedId(u16),
    /// Two names have this id.
    IdTwice(u16),
    /// Not a legal topic name.
    Name(String),
}

impl PredefinedTopics {
    /// Checks all names.
    ///
    /// # Errors
    /// The first entry that is illegal or repeats an id.
    pub fn new<'a>(entries: impl IntoIterator<Item = (u16, &'a str)>) -> Result<Self, PredefinedError> {
        let mut topics = Self::default();
        for (id, text) in entries {
            if matches!(id, 0 | u16::MAX) {
                return Err(PredefinedError::ReservedId(id)); // [SN-TOPICID-2]
            }
            let name = TopicName::try_from(text).map_err(|_| PredefinedError::Name(text.to_owned()))?;
            let template = match text.split_once("%c") {
                Some((before, after)) => {
                    topics.per_client.push(id);
                    Template::PerClient(before.to_owned(), after.to_owned())
                }
                None => {
                    topics.ids.insert(name.clone(), id);
                    Template::Fixed(name)
                }
            };
            if topics.names.insert(id, template).is_some() {
                return Err(PredefinedError::IdTwice(id));
            }
        }
        topics.per_client.sort_unstable();
        Ok(topics)
    }

    /// Whether the name of an id differs from client to client.
    pub fn is_per_client(&self, id: u16) -> bool {
        self.per_client.binary_search(&id).is_ok()
    }

    /// Name of an id for one client.
    pub(crate) fn name(&self, id: u16, client_id: &Text) -> Option<Cow<'_, TopicName>> {
        match self.names.get(&id)? {
            Template::Fixed(name) => Some(Cow::Borrowed(name)),
            Template::PerClient(before, after) => {
                let client_id = one_level(client_id)?;
                TopicName::try_from(format!("{before}{client_id}{after}").as_str()).ok().map(Cow::Owned)
            }
        }
    }

    /// Id of a name for one client.
    pub(crate) fn id(&self, name: &TopicName, client_id: &Text) -> Option<u16> {
        let is_its = |id: &u16| match self.names.get(id) {
            Some(Template::PerClient(before, after)) => {
                let rest = name.as_bytes().strip_prefix(before.as_bytes());
                let level = rest.and_then(|rest| rest.strip_suffix(after.as_bytes()));
                level.is_some_and(|level| level == client_id.as_bytes()) && one_level(client_id).is_some()
            }
            _ => false,
        };
        self.ids.get(name).copied().or_else(|| self.per_client.iter().copied().find(is_its))
    }
}

/// A client id that may stand in a topic name: no client reaches the topics of others by wildcards or levels in its id.
fn one_level(client_id: &Text) -> Option<&str> {
    Some(client_id.as_str()).filter(|id| !id.contains(['+', '#', '/']))
}

impl fmt::Display for PredefinedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReservedId(id) => write!(f, "topic id {id} is reserved"),
            Self::IdTwice(id) => write!(f, "topic id {id} has two names"),
            Self::Name(name) => write!(f, "{name:?} is no topic name"),
        }
    }
}

impl std::error::Error for PredefinedError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_id_stands_for_one_level_of_a_name() {
        let topics = PredefinedTopics::new([(1, "all"), (7, "x/%c/y")]).expect("legal");
        let name = |id, client: &'static str| {
            topics.name(id, &Text::from_static(client)).map(|name| name.text().as_str().to_owned())
        };
        assert_eq!(name(1, "c").as_deref(), Some("all"));
        assert_eq!(name(7, "c").as_deref(), Some("x/c/y"));
        assert_eq!(name(2, "c"), None);
        for client in ["+", "#", "a/b"] {
            assert_eq!(name(7, client), None, "{client}");
        }
        let id = |text: &str, client: &'static str| {
            topics.id(&TopicName::try_from(text).expect("a name"), &Text::from_static(client))
        };
        assert_eq!((id("all", "c"), id("x/c/y", "c"), id("x/d/y", "c")), (Some(1), Some(7), None));
        assert_eq!(id("x/a/b/y", "a/b"), None);
        assert_eq!(PredefinedTopics::new([(3, "a"), (3, "b")]).err(), Some(PredefinedError::IdTwice(3)));
        assert_eq!(PredefinedTopics::new([(u16::MAX, "a")]).err(), Some(PredefinedError::ReservedId(u16::MAX)));
    }
}
