//! The context of a trace in a message: the value of its first User Property `traceparent`, as the W3C defines it.

use tenbin_codec::Text;

/// Trace and span of a sampled message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TraceParent {
    pub(super) trace: u128,
    pub(super) span: u64,
    flags: u8,
}

impl TraceParent {
    /// Name of the User Property.
    pub(super) const NAME: &'static str = "traceparent";

    /// A sampled trace that begins.
    pub(super) fn root(trace: u128, span: u64) -> Self {
        Self { trace, span, flags: SAMPLED }
    }

    /// Reads a value; `None` if it is illegal, or says that the message is not sampled.
    ///
    /// ```text
    ///   version (2) - trace (32) - span (16) - flags (2)
    /// ```
    pub(super) fn sampled(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok().filter(|text| text.len() == BYTES)?;
        let mut parts = text.split('-');
        let mut digits = |count| {
            let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            parts.next().filter(|part: &&str| part.len() == count && part.bytes().all(is_digit))
        };
        let (version, trace, span, flags) = (digits(2)?, digits(32)?, digits(16)?, digits(2)?);
        let trace = u128::from_str_radix(trace, 16).ok()?;
        let (span, flags) = (u64::from_str_radix(span, 16).ok()?, u8::from_str_radix(flags, 16).ok()?);
        let is_legal = version != "ff" && trace != 0 && span != 0;
        (is_legal && flags & SAMPLED != 0).then_some(Self { trace, span, flags })
    }

    /// The value with this span, in version 00.
    pub(super) fn with_span(self, span: u64) -> Text {
        let text = format!("00-{:032x}-{span:016x}-{:02x}", self.trace, self.flags);
        Text::try_from(text).expect("digits are a text")
    }
}

/// Bytes of each value.
const BYTES: usize = 55;
const SAMPLED: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn illegal_and_unsampled_values_are_none() {
        let legal = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent = TraceParent::sampled(legal.as_bytes()).unwrap();
        assert_eq!(parent.with_span(parent.span).as_str(), legal);
        assert_eq!(parent.with_span(10).as_str(), "00-0af7651916cd43dd8448eb211c80319c-000000000000000a-01");
        let newer = legal.replacen("00", "01", 1).replace("-01", "-03");
        let newer = TraceParent::sampled(newer.as_bytes()).unwrap().with_span(1);
        assert!(newer.as_str().starts_with("00-") && newer.as_str().ends_with("-03"));
        for other in [
            legal.replace("-01", "-00"),
            legal.replace("-01", "-02"),
            legal.replacen("00", "ff", 1),
            legal.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            legal.replace("b7ad6b7169203331", &"0".repeat(16)),
            legal.to_uppercase(),
            legal.replace("b7ad6b7169203331", "+7ad6b7169203331"),
            legal.replace("b7ad6b7169203331-", "b7ad6b71692033311"),
            format!("{legal}-"),
            legal[1..].to_owned(),
            "é".repeat(27) + "a",
            String::new(),
        ] {
            assert_eq!(TraceParent::sampled(other.as_bytes()), None, "{other}");
        }
    }
}
