use bytes::{BufMut, Bytes, BytesMut};

/// Metadata of a scenario's message, in its payload.
///
/// ```text
/// 0         8        16           24           32       100
/// magic     run      sequence     created_ns   zeros
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Number of the run in this process, to distinguish leftovers of earlier runs.
    pub(crate) run: u64,
    /// 0, 1, 2, … in the order of publishing.
    pub(crate) sequence: u64,
    /// Creation time, by the run's clock.
    pub(crate) created_ns: u64,
}

impl Stamp {
    /// Size of a payload, in bytes, as in the published experiments.
    pub(crate) const PAYLOAD_LEN: usize = 100;

    /// Encodes a payload of the standard size.
    pub(crate) fn encode(self) -> Bytes {
        self.encode_as(Self::PAYLOAD_LEN)
    }

    /// Encodes a payload of `bytes` bytes, at least the stamp's size.
    pub(crate) fn encode_as(self, bytes: usize) -> Bytes {
        let mut payload = BytesMut::with_capacity(bytes);
        payload.put_slice(MAGIC);
        payload.put_u64(self.run);
        payload.put_u64(self.sequence);
        payload.put_u64(self.created_ns);
        payload.resize(bytes.max(payload.len()), 0);
        payload.freeze()
    }

    /// Decodes a payload; `None` if it is foreign.
    pub(crate) fn decode(payload: &[u8]) -> Option<Self> {
        if payload.len() != Self::PAYLOAD_LEN {
            return None;
        }
        Self::decode_any(payload)
    }

    /// As [`Stamp::decode`], for payloads of any size.
    pub(crate) fn decode_any(payload: &[u8]) -> Option<Self> {
        let (run, rest) = payload.strip_prefix(MAGIC)?.split_first_chunk()?;
        let (sequence, rest) = rest.split_first_chunk()?;
        let (created_ns, _) = rest.split_first_chunk()?;
        let [run, sequence, created_ns] = [run, sequence, created_ns].map(|bytes| u64::from_be_bytes(*bytes));
        Some(Self { run, sequence, created_ns })
    }
}

const MAGIC: &[u8; 8] = b"tenbinLG";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_survives_its_payload() {
        for (run, sequence, created_ns) in [(0, 0, 0), (2, 1499, 15_000_123_456), (u64::MAX, u64::MAX, u64::MAX)] {
            let stamp = Stamp { run, sequence, created_ns };
            let payload = stamp.encode();
            assert_eq!(payload.len(), Stamp::PAYLOAD_LEN);
            assert_eq!(Stamp::decode(&payload), Some(stamp));
            let payload = stamp.encode_as(4096);
            assert_eq!((payload.len(), Stamp::decode(&payload)), (4096, None));
            assert_eq!(Stamp::decode_any(&payload), Some(stamp));
        }
    }

    #[test]
    fn a_strange_payload_is_no_stamp() {
        let payload = Stamp { run: 0, sequence: 1, created_ns: 2 }.encode();
        assert_eq!(Stamp::decode(&payload[..99]), None);
        assert_eq!(Stamp::decode(&[0; 100]), None);
        assert_eq!(Stamp::decode(b""), None);
        assert_eq!(Stamp::decode_any(&payload[..31]), None);
    }
}
