use super::Text;

/// Receivers of a topic, before the members of share groups are chosen.
#[derive(Debug)]
pub struct Targets {
    receivers: Vec<(Text, bool)>,
    groups: Vec<(String, bool)>,
}

impl Targets {
    pub(crate) fn new(receivers: Vec<Text>, groups: Vec<String>) -> Self {
        Self {
            receivers: receivers.into_iter().map(|receiver| (receiver, true)).collect(),
            groups: groups.into_iter().map(|group| (group, true)).collect(),
        }
    }

    /// Client Identifiers of the receivers with ordinary subscriptions.
    pub fn clients(&self) -> impl Iterator<Item = &Text> {
        self.receivers.iter().filter(|(_, stays)| *stays).map(|(client_id, _)| client_id)
    }

    /// Share groups that get the topic's messages, as `$share/NAME/FILTER`.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().filter(|(_, stays)| *stays).map(|(group, _)| &group[..])
    }

    /// Leaves out the receivers for which `wanted` is false.
    pub fn retain_clients(&mut self, wanted: impl Fn(&Text) -> bool) {
        self.receivers.iter_mut().for_each(|(client_id, stays)| *stays &= wanted(client_id));
    }

    /// Leaves out the share groups for which `wanted` is false.
    pub fn retain_groups(&mut self, wanted: impl Fn(&str) -> bool) {
        self.groups.iter_mut().for_each(|(group, stays)| *stays &= wanted(group));
    }

    /// Whether the receiver at `index` stays.
    pub(crate) fn has_client(&self, index: usize) -> bool {
        self.receivers.get(index).is_none_or(|(_, stays)| *stays)
    }

    /// Whether the group at `index` stays.
    pub(crate) fn has_group(&self, index: usize) -> bool {
        self.groups.get(index).is_none_or(|(_, stays)| *stays)
    }
}
