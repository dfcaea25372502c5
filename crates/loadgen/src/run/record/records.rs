//! Records of single messages as they travel: rows of bytes, as text. A million arrivals are 43 MB; spelled out in JSON
//! they would be 120.

use serde::{Deserializer, Serializer, de};

use super::base64;
use crate::run::{MessageRecord, PublishRecord};

/// A record of a fixed number of bytes.
pub(super) trait Row: Copy {
    const LEN: usize;

    fn write(&self, bytes: &mut Vec<u8>);

    /// `bytes` has [`Row::LEN`] bytes.
    fn read(bytes: &[u8]) -> Option<Self>;
}

pub(super) fn serialize<R: Row, S: Serializer>(rows: &[R], serializer: S) -> Result<S::Ok, S::Error> {
    let mut bytes = Vec::with_capacity(rows.len() * R::LEN);
    rows.iter().for_each(|row| row.write(&mut bytes));
    base64::serialize(&bytes, serializer)
}

pub(super) fn deserialize<'de, R: Row, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<R>, D::Error> {
    let bytes = base64::deserialize(deserializer)?;
    let rows = bytes.chunks(R::LEN).map(R::read).collect::<Option<_>>();
    rows.ok_or_else(|| de::Error::custom(format_args!("{} bytes are no rows of {}", bytes.len(), R::LEN)))
}

impl Row for MessageRecord {
    const LEN: usize = 32;

    fn write(&self, bytes: &mut Vec<u8>) {
        for number in [self.stream, self.sequence, self.receiver, self.late_us] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(self.due_ns.to_be_bytes());
        bytes.extend(self.received_ns.to_be_bytes());
    }

    fn read(mut bytes: &[u8]) -> Option<Self> {
        Some(Self {
            stream: u32::from_be_bytes(next(&mut bytes)?),
            sequence: u32::from_be_bytes(next(&mut bytes)?),
            receiver: u32::from_be_bytes(next(&mut bytes)?),
            late_us: u32::from_be_bytes(next(&mut bytes)?),
            due_ns: u64::from_be_bytes(next(&mut bytes)?),
            received_ns: u64::from_be_bytes(next(&mut bytes)?),
        })
    }
}

impl Row for PublishRecord {
    const LEN: usize = 16;

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.stream.to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.published_ns.to_be_bytes());
    }

    fn read(mut bytes: &[u8]) -> Option<Self> {
        Some(Self {
            stream: u32::from_be_bytes(next(&mut bytes)?),
            sequence: u32::from_be_bytes(next(&mut bytes)?),
            published_ns: u64::from_be_bytes(next(&mut bytes)?),
        })
    }
}

fn next<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::run::record::records;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Both {
        #[serde(with = "records")]
        arrivals: Vec<MessageRecord>,
        #[serde(with = "records")]
        departures: Vec<PublishRecord>,
    }

    #[test]
    fn records_survive_their_journey() {
        let arrival =
            MessageRecord { stream: 1, sequence: 2, receiver: 3, due_ns: u64::MAX, late_us: 5, received_ns: 6 };
        let departure = PublishRecord { stream: 1, sequence: u32::MAX, published_ns: 7 };
        let both = Both { arrivals: vec![arrival; 3], departures: vec![departure] };
        let text = serde_json::to_string(&both).unwrap();
        assert_eq!(serde_json::from_str::<Both>(&text).unwrap(), both);
        let cut = text.replacen("AAAAAQ", "", 1);
        assert!(serde_json::from_str::<Both>(&cut).is_err());
    }
}
