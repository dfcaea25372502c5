use tenbin_codec::{Text, TopicName};
use tenbin_session::Delivery;

use crate::hooks::{self, DropReason, Events, HookSet};

/// Messages that a queue has dropped, for hooks.
#[derive(Debug)]
pub(crate) struct DroppedNames {
    /// The queue's client.
    client_id: Text,
    messages: Vec<(Box<[u8]>, DropReason)>,
}

impl DroppedNames {
    pub(crate) fn of_client(client_id: Text) -> Self {
        Self { client_id, messages: Vec::new() }
    }

    #[cold]
    pub(crate) fn note(&mut self, delivery: &Delivery, reason: DropReason) {
        self.messages.push((delivery.template.topic().into(), reason));
    }

    /// One message alone.
    pub(crate) fn one(&self, topic: &TopicName, reason: DropReason) -> Self {
        Self { client_id: self.client_id.clone(), messages: vec![(topic.as_bytes().into(), reason)] }
    }

    /// Takes the messages so far; `None` if there are none.
    #[cold]
    pub(crate) fn take(&mut self) -> Option<Box<Self>> {
        let messages = std::mem::take(&mut self.messages);
        (!messages.is_empty()).then(|| Box::new(Self { client_id: self.client_id.clone(), messages }))
    }

    /// Tells hooks. Not under the queue's lock, since a hook may publish.
    #[cold]
    pub(crate) fn tell(&self, hooks: &HookSet) {
        for (topic, reason) in &self.messages {
            let dropped = hooks::Dropped::new(&self.client_id, topic, *reason);
            hooks.tell(Events::DROPPED, |hooks| hooks.dropped(&dropped));
        }
    }
}
