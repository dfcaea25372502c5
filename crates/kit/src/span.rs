//! Spans of time, as people write them.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::units;

/// A span of time in whole nanoseconds, at most a day.
///
/// It is written as a number and a unit: `250us`, `10.7ms`, `15s`, `2m` or `1h`. A number without a unit is in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(u64);

impl Span {
    /// The empty span.
    pub const ZERO: Self = Self(0);

    /// A span of `ns` nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// A span of `ms` milliseconds, to the nearest nanosecond.
    pub fn from_ms(ms: f64) -> Self {
        Self((ms * NS_PER_MS).round() as u64)
    }

    /// The span in nanoseconds.
    pub const fn ns(self) -> u64 {
        self.0
    }

    /// The span in milliseconds.
    pub fn ms(self) -> f64 {
        self.0 as f64 / NS_PER_MS
    }

    /// The span as a type of the standard library.
    pub fn duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ns = units::nanoseconds(text)
            .ok_or_else(|| format!("{text:?} is no time: give seconds, or a unit as in 250us, 10ms, 1.5s, 2m or 1h"))?;
        // A time that is not 0 must not become 0.
        let is_possible = ns == 0.0 || (0.5..=LONGEST_NS).contains(&ns);
        if is_possible { Ok(Self(ns.round() as u64)) } else { Err(format!("{text:?}: want 0 to 24 h")) }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ns if ns < 1_000_000 => write!(f, "{}us", ns as f64 / 1e3),
            ns if ns < 1_000_000_000 => write!(f, "{}ms", ns as f64 / NS_PER_MS),
            ns => write!(f, "{}s", ns as f64 / 1e9),
        }
    }
}

/// As the text of [`Display`](fmt::Display), which is read back exactly.
impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'_, str>>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

const NS_PER_MS: f64 = 1e6;
const LONGEST_NS: f64 = 86_400e9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_a_number_and_a_unit() {
        for (text, ns) in [
            ("10.7ms", 10_700_000),
            ("250us", 250_000),
            ("15s", 15_000_000_000),
            ("1.5m", 90_000_000_000),
            ("1h", 3_600_000_000_000),
            ("0s", 0),
        ] {
            assert_eq!(text.parse(), Ok(Span::from_ns(ns)), "{text}");
        }
        for (text, ns) in [("250µs", 250_000), ("10 ms", 10_000_000), ("1.5", 1_500_000_000), ("0", 0)] {
            assert_eq!(text.parse(), Ok(Span::from_ns(ns)), "{text}");
        }
        for text in ["", "ms", "-1s", "-1", "1e9", "NaN", "NaNs", "infs", "25h", "1441m", "0.0000001us"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }

    #[test]
    fn written_values_are_read_back() {
        for ns in [0, 1, 200_000, 10_700_000, 999_999_999, 2_000_000_000, 15_123_456_789] {
            assert_eq!(Span::from_ns(ns).to_string().parse(), Ok(Span::from_ns(ns)));
        }
    }
}
