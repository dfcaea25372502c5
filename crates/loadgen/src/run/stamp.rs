/// Metadata of a message, at the start of its payload.
///
/// ```text
/// 0          8      10        14          18         20 …
/// due_ns     tag    stream    sequence    late       filler
/// ```
///
/// All fields are big endian. `late` is a number of microseconds with a 4-bit exponent and a 12-bit mantissa, to fit
/// into two bytes: exact up to 4 ms, then to 0.05 %, up to 134 s. The stamp fits into the 20 bytes of MQTTLoader's
/// default payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Due time of the message, in nanoseconds since 1970-01-01 UTC by the controller's clock.
    pub due_ns: u64,
    /// [`Plan::tag`](super::Plan).
    pub tag: u16,
    /// `publisher · topics + topic`: messages of one stream are ordered.
    pub stream: u32,
    /// 0, 1, 2, … in the stream.
    pub sequence: u32,
    /// Time from due to sent, in microseconds.
    pub late_us: u32,
}

impl Stamp {
    /// Size of a stamp, in bytes.
    pub const LEN: usize = 20;
    /// Size of the first field, in bytes. Smaller payloads than [`Stamp::LEN`] carry only this field.
    pub const TIME_LEN: usize = 8;

    /// Writes the stamp to the start of `payload`: all of it if it fits, else the due time, else nothing.
    pub fn encode(&self, payload: &mut [u8]) {
        let Some((due, rest)) = payload.split_first_chunk_mut() else { return };
        *due = self.due_ns.to_be_bytes();
        let Some(rest) = rest.first_chunk_mut::<{ Self::LEN - Self::TIME_LEN }>() else { return };
        rest[..2].copy_from_slice(&self.tag.to_be_bytes());
        rest[2..6].copy_from_slice(&self.stream.to_be_bytes());
        rest[6..10].copy_from_slice(&self.sequence.to_be_bytes());
        rest[10..].copy_from_slice(&late_code(self.late_us).to_be_bytes());
    }

    /// Reads the stamp of a payload; `None` if it is too short. [`Stamp::tag`] identifies the run.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let (due, rest) = payload.split_first_chunk()?;
        let (tag, rest) = rest.split_first_chunk()?;
        let (stream, rest) = rest.split_first_chunk()?;
        let (sequence, rest) = rest.split_first_chunk()?;
        let (late, _) = rest.split_first_chunk()?;
        Some(Self {
            due_ns: u64::from_be_bytes(*due),
            tag: u16::from_be_bytes(*tag),
            stream: u32::from_be_bytes(*stream),
            sequence: u32::from_be_bytes(*sequence),
            late_us: late_us(u16::from_be_bytes(*late)),
        })
    }

    /// Reads the due time alone, which all payloads of a run carry.
    pub fn decode_due_ns(payload: &[u8]) -> Option<u64> {
        payload.first_chunk().map(|due| u64::from_be_bytes(*due))
    }
}

/// Encodes microseconds as exponent and mantissa, rounded down; saturates.
fn late_code(late_us: u32) -> u16 {
    let exponent = (u32::BITS - late_us.leading_zeros()).saturating_sub(MANTISSA_BITS);
    u16::try_from(exponent << MANTISSA_BITS | late_us >> exponent).unwrap_or(u16::MAX)
}

/// Decodes such a code.
fn late_us(code: u16) -> u32 {
    let code = u32::from(code);
    (code & ((1 << MANTISSA_BITS) - 1)) << (code >> MANTISSA_BITS)
}

const MANTISSA_BITS: u32 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_survives_a_payload_that_is_long_enough() {
        let stamp = Stamp { due_ns: u64::MAX - 1, tag: 7, stream: u32::MAX, sequence: 0x0102_0304, late_us: 4095 };
        for len in [Stamp::LEN, 21, 600] {
            let mut payload = vec![0xAA; len];
            stamp.encode(&mut payload);
            assert_eq!(Stamp::decode(&payload), Some(stamp));
            assert_eq!(Stamp::decode_due_ns(&payload), Some(stamp.due_ns));
            assert!(payload[Stamp::LEN..].iter().all(|&byte| byte == 0xAA), "the filler stays");
        }
    }

    #[test]
    fn a_payload_that_is_too_short_carries_the_time_alone() {
        let stamp = Stamp { due_ns: 5, tag: 1, stream: 2, sequence: 3, late_us: 4 };
        for len in Stamp::TIME_LEN..Stamp::LEN {
            let mut payload = vec![0; len];
            stamp.encode(&mut payload);
            assert_eq!(Stamp::decode(&payload), None);
            assert_eq!(Stamp::decode_due_ns(&payload), Some(5));
            assert!(payload[Stamp::TIME_LEN..].iter().all(|&byte| byte == 0));
        }
        let mut payload = [0; 7];
        stamp.encode(&mut payload);
        assert_eq!((payload, Stamp::decode_due_ns(&payload)), ([0; 7], None));
    }

    #[test]
    fn lateness_is_exact_to_4_ms_then_to_0_05_percent() {
        for exact in [0, 1, 4095, 4096, 8190, 4095 << 15] {
            assert_eq!(late_us(late_code(exact)), exact);
        }
        for late in (1..134_000_000).step_by(99_991) {
            let read = late_us(late_code(late));
            assert!(read <= late && late - read <= late / 2048, "{late} {read}");
        }
        for too_late in [4096 << 15, u32::MAX] {
            assert_eq!(late_us(late_code(too_late)), 4095 << 15);
        }
    }

    #[test]
    fn a_later_message_never_has_a_lower_code() {
        let codes: Vec<u16> = (0..400_000_000).step_by(1009).map(late_code).collect();
        assert!(codes.is_sorted());
    }
}
