use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use tenbin_codec::{PacketId, Publish, QoS, TopicName};

/// QoS 1 and 2 messages of one side that the other one has not wholly acknowledged, by their Packet Identifiers.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Messages that were sent on this connection.
    open: HashMap<PacketId, Open>,
    /// Their number so far.
    sent: u64,
    /// Messages for which the destination has no quota yet, in order.
    waiting: VecDeque<Waiting>,
    /// Identifiers that the destination does not hold for an earlier message.
    clean: HashSet<PacketId>,
}

/// A message that waits for an acknowledgement of the destination.
#[derive(Debug, Clone)]
pub(crate) struct Open {
    /// QoS of the source.
    pub(crate) source_qos: QoS,
    /// QoS at the destination, which may be lower.
    pub(crate) qos: QoS,
    /// The source has sent it with DUP.
    pub(crate) is_repeated: bool,
    /// A PUBREL went before it, whose PUBCOMP has not come.
    pub(crate) is_clearing: bool,
    /// Topic of a PUBLISH without an answer.
    pub(crate) topic: Option<TopicName>,
    /// Place in the order of the connection; 0 = sent on an earlier one.
    pub(crate) number: u64,
}

/// A message without quota.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) since: Instant,
    pub(crate) source_qos: QoS,
    pub(crate) publish: Publish,
}

impl Flow {
    /// Messages that wait or are open.
    pub(crate) fn len(&self) -> usize {
        self.open.len() + self.waiting.len()
    }

    /// Whether the source has sent more than this number on this connection. A released message that was sent on an earlier
    /// one does not count.
    pub(crate) fn exceeds(&self, receive_maximum: u16) -> bool {
        let maximum = usize::from(receive_maximum);
        let released = || self.open.values().filter(|open| open.number == 0).count();
        self.len() > maximum && self.len() - released() > maximum
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn wait(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    /// Takes the first message if the destination, with this Receive Maximum, has quota for it. `is_slow`: the destination
    /// takes no QoS 0 messages now. `is_used`: identifiers of requests to the destination.
    pub(crate) fn next(
        &mut self,
        receive_maximum: u16,
        is_slow: bool,
        is_used: impl Fn(PacketId) -> bool,
    ) -> Option<Waiting> {
        let publish = &self.waiting.front()?.publish;
        let id = publish.packet_id?;
        let has_quota = || self.open.len() < usize::from(receive_maximum) || self.open.contains_key(&id);
        let goes = if publish.qos.is_acknowledged() { has_quota() && !is_used(id) } else { !is_slow };
        if goes { self.waiting.pop_front() } else { None }
    }

    /// Whether the destination may hold the identifier of this message for an earlier one.
    ///
    /// A source sends a message without DUP only if it has never sent it under this identifier. So a message that the
    /// destination still holds is of a session that the source has lost.
    pub(crate) fn may_be_stale(&self, publish: &Publish) -> bool {
        let is_unsure = |id| !self.clean.contains(&id) && !self.open.contains_key(&id);
        publish.qos == QoS::ExactlyOnce && !publish.dup && publish.packet_id.is_some_and(is_unsure)
    }

    /// Opens a message that is sent now.
    pub(crate) fn open(&mut self, publish: &Publish, id: PacketId, source_qos: QoS, is_clearing: bool) {
        self.sent += 1;
        let (qos, is_repeated, topic) = (publish.qos, publish.dup, Some(publish.topic.clone()));
        self.open.insert(id, Open { source_qos, qos, is_repeated, is_clearing, topic, number: self.sent });
    }

    /// The oldest message without an answer.
    pub(crate) fn oldest(&self) -> Option<(PacketId, &TopicName)> {
        let unanswered = self.open.iter().filter_map(|(id, open)| Some((open.number, *id, open.topic.as_ref()?)));
        unanswered.min_by_key(|(number, ..)| *number).map(|(_, id, topic)| (id, topic))
    }

    /// Opens a message whose source releases it, on this connection or after an earlier one.
    pub(crate) fn release(&mut self, id: PacketId) {
        let qos = QoS::ExactlyOnce;
        let released = Open { source_qos: qos, qos, is_repeated: false, is_clearing: false, topic: None, number: 0 };
        self.open.entry(id).or_insert(released);
    }

    /// Records the answer to a PUBLISH, and returns its message. Only the first answer has the topic.
    pub(crate) fn answered(&mut self, id: PacketId) -> Option<Open> {
        let open = self.open.get_mut(&id)?;
        let answered = open.clone();
        open.topic = None;
        Some(answered)
    }

    /// Ends a message.
    pub(crate) fn close(&mut self, id: PacketId) {
        self.open.remove(&id);
    }

    /// Records a PUBCOMP of the destination. False if it is the source's too; then the message has ended.
    pub(crate) fn cleared(&mut self, id: PacketId) -> bool {
        self.clean.insert(id);
        match self.open.get_mut(&id) {
            Some(open) if open.is_clearing => {
                open.is_clearing = false;
                true
            }
            Some(_) => {
                self.close(id);
                false
            }
            None => true,
        }
    }
}
