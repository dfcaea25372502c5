/// What a message says about itself, at the start of its payload.
///
/// ```text
///   0          8      10        14          18         20 …
///   due_ns     tag    stream    sequence    late       filler
/// ```
///
/// All big endian. `late` is a number of microseconds as a 4 bit exponent and a 12 bit mantissa, so that it costs two
/// bytes: exact up to 4 ms, then to 0.05 %, up to 134 s. The stamp fits into the 20 bytes that MQTTLoader's payloads
/// have by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// When the message was to go out, in nanoseconds since 1970-01-01 UTC by the controller's clock.
    pub due_ns: u64,
    /// [`Plan::tag`](super::Plan).
    pub tag: u16,
    /// `publisher · topics + topic`: messages of one stream are in order.
    pub stream: u32,
    /// 0, 1, 2, … in the stream.
    pub sequence: u32,
    /// By how many microseconds it went out after `due_ns`.
    pub late_us: u32,
}

impl Stamp {
    /// Bytes of a stamp.
    pub const LEN: usize = 20;
    /// Bytes of its first field, which stands alone in payloads that are too small for all of it.
    pub const TIME_LEN: usize = 8;
}
