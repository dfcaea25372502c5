use tenbin_sn_codec::v1_2::Message;

/// Requests of a client that wait until the broker has answered its CONNECT, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Held {
    messages: Vec<Box<[u8]>>,
    bytes: usize,
}

/// Requests that wait; further ones are dropped, and the client repeats them.
const MESSAGES_MAXIMUM: usize = 16;
const BYTES_MAXIMUM: usize = 4096;

impl Held {
    /// Keeps a request. False if there is no room.
    #[must_use]
    pub(crate) fn push(&mut self, message: &Message<'_>) -> bool {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let has_room = self.messages.len() < MESSAGES_MAXIMUM && self.bytes + bytes.len() <= BYTES_MAXIMUM;
        if has_room {
            self.bytes += bytes.len();
            self.messages.push(bytes.into());
        }
        has_room
    }

    pub(crate) fn into_messages(self) -> Vec<Box<[u8]>> {
        self.messages
    }
}
