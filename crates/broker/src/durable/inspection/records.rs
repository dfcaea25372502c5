//! Decodes keys and values of all tables.

use std::collections::HashSet;
use std::num::NonZeroU64;

use tenbin_codec::{Text, TopicFilter};
use tenbin_store::state::{FORMAT_VERSION, Table, VERSION_KEY};

use crate::durable::bytes::{RecordError, text};
use crate::durable::groups::GROUP_KEY;
use crate::durable::record::{
    RetainedRecord, SessionRecord, SpeedRecord, WillRecord, decode_grant, decode_subscription_key, decode_will_key,
};
use crate::durable::{NUMBERS_KEY, RUN_KEY};
use crate::values::Grant;

/// A record of the state.
#[derive(Debug)]
pub(super) enum Entry {
    /// A number, by its name.
    Number(&'static str, u64),
    /// A share group with a queue: its name and filter, and the number of its queue.
    Group(Text, NonZeroU64),
    Session(Text, SessionRecord),
    /// A subscription, with the number of its session.
    Subscription(u64, TopicFilter, Grant),
    Retained(RetainedRecord),
    Will(Text, WillRecord),
    /// A speed, with the hash of client and group.
    Speed(u64, SpeedRecord),
    /// A record of another version, which a broker ignores too.
    Unknown,
}

/// Decodes a record of the state.
///
/// # Errors
/// A broker of this version does not write such a record.
pub(super) fn decode(table: Table, key: &[u8], value: &[u8]) -> Result<Entry, RecordError> {
    Ok(match table {
        Table::Meta => decode_meta(key, value)?,
        Table::Sessions => Entry::Session(text(key, "Client Identifier")?, SessionRecord::decode(value)?),
        Table::Subscriptions => {
            let (session, filter) = decode_subscription_key(key)?;
            Entry::Subscription(session, filter, decode_grant(value)?)
        }
        Table::Retained => {
            let record = RetainedRecord::decode(value)?;
            if key != record.publish.topic.as_bytes() {
                return Err(RecordError::Illegal("topic"));
            }
            Entry::Retained(record)
        }
        Table::Wills => Entry::Will(decode_will_key(key)?.0, WillRecord::decode(value)?),
        Table::Speeds => {
            let hash = key.try_into().map_err(|_| RecordError::Illegal("hash"))?;
            Entry::Speed(u64::from_le_bytes(hash), SpeedRecord::decode(value)?)
        }
    })
}

fn decode_meta(key: &[u8], value: &[u8]) -> Result<Entry, RecordError> {
    let number = || value.try_into().map(u64::from_le_bytes).map_err(|_| RecordError::Illegal("length"));
    Ok(match key {
        VERSION_KEY => Entry::Number("format version", FORMAT_VERSION.into()), // other versions cannot be opened
        NUMBERS_KEY => Entry::Number("session numbers", number()?),
        RUN_KEY => Entry::Number("run", number()?),
        _ => match key.strip_prefix(GROUP_KEY) {
            Some(name) => {
                let queue = NonZeroU64::new(number()?).ok_or(RecordError::Illegal("number"))?;
                Entry::Group(text(name, "share group")?, queue)
            }
            None => Entry::Unknown,
        },
    })
}

/// Numbers of sessions and share groups, which are the numbers of their queues.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The highest number that may have been given.
    last: u64,
    pub(super) sessions: HashSet<u64>,
    pub(super) groups: HashSet<u64>,
}

impl Numbers {
    /// Adds a record. The table of numbers and share groups has to come before the table of sessions.
    ///
    /// # Errors
    /// The record contradicts another one.
    pub(super) fn note(&mut self, entry: &Entry) -> Result<(), RecordError> {
        match entry {
            Entry::Number("session numbers", number) => self.last = self.last.max(*number),
            Entry::Group(_, queue) => {
                self.last = self.last.max(queue.get());
                self.groups.insert(queue.get());
            }
            Entry::Session(_, SessionRecord { number, .. }) => {
                let number = number.get();
                if number > self.last || self.groups.contains(&number) || !self.sessions.insert(number) {
                    return Err(RecordError::Illegal("number"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
