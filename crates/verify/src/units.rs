//! Values with units: times, sizes, rates and shares.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) use tenbin_kit::units::trimmed;
use tenbin_kit::units::{byte_unit, bytes, nanoseconds, number_and_unit};

/// A length of time or a moment of a run, in nanoseconds. JSON has seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// No time, or the end of the warm-up.
    pub const ZERO: Self = Self(0);

    /// A time of `ns` nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// A time of whole seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds * 1_000_000_000)
    }

    /// The nearest time to `seconds`; negative ones become 0.
    pub fn from_secs_f64(seconds: f64) -> Self {
        Self((seconds * 1e9).round() as u64)
    }

    /// Nanoseconds.
    pub const fn ns(self) -> u64 {
        self.0
    }

    /// Seconds.
    pub fn secs(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The same time as a `Duration`.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// The sum; the greatest time on overflow.
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, at least 0.
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl From<Duration> for Time {
    fn from(time: Duration) -> Self {
        Self(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no time: give seconds, or a unit as in 250us, 10ms, 1.5s, 2m or 1h");
        // A year; more would overflow sums.
        let ns = nanoseconds(text).filter(|ns| (0.0..=3.2e16).contains(ns)).ok_or_else(wrong)?;
        Ok(Self(ns.round() as u64))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("0 s"),
            ns if ns >= 1_000_000_000 => write!(f, "{} s", trimmed(self.secs(), 3)),
            ns if ns >= 1_000_000 => write!(f, "{} ms", trimmed(self.secs() * 1e3, 3)),
            ns => write!(f, "{} µs", trimmed(ns as f64 / 1e3, 3)),
        }
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.secs())
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        f64::deserialize(deserializer).map(Self::from_secs_f64)
    }
}

/// A difference of clocks, in nanoseconds. JSON has seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offset(i64);

impl Offset {
    /// Nanoseconds; negative for a clock that is behind.
    pub const fn ns(self) -> i64 {
        self.0
    }
}

impl FromStr for Offset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (sign, size) = match text.trim().strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, text.trim().trim_start_matches('+')),
        };
        size.parse::<Time>().map(|time| Self(sign * time.ns() as i64))
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "−" } else { "+" };
        write!(f, "{sign}{}", Time(self.0.unsigned_abs()))
    }
}

impl Serialize for Offset {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0 as f64 / 1e9)
    }
}

impl<'de> Deserialize<'de> for Offset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        f64::deserialize(deserializer).map(|seconds| Self((seconds * 1e9).round() as i64))
    }
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Size(u64);

impl Size {
    /// A size of `bytes`.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is no size: give bytes, or a unit as in 100B, 16kB, 64KiB, 10MB, 1MiB or 1GiB");
        bytes(text).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("GB", 1_000_000_000), ("MB", 1_000_000)];
        let fitting = units.into_iter().find(|&(_, size)| self.0 >= size && self.0.is_multiple_of(size));
        let (unit, size) = fitting.unwrap_or(("B", 1));
        write!(f, "{} {unit}", self.0 / size)
    }
}

/// Publishing rate of a client's publishers together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rate {
    /// As fast as the system takes messages, in a closed loop.
    Max,
    /// Share of the rate that a closed loop reached before the run: 0.7 for `70% of max`.
    OfMax(f64),
    /// Messages a second.
    Messages(f64),
    /// Payload bytes a second.
    Bytes(f64),
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no rate: give 1000, 1000 msg/s, 10 MB/s, 70% of max or max");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if words == "max" {
            return Ok(Self::Max);
        }
        if let Some(percent) = words.strip_suffix("% of max") {
            let share = positive(percent.trim()).filter(|&percent| percent <= 100.0);
            return share.map(|percent| Self::OfMax(percent / 100.0)).ok_or_else(wrong);
        }
        let (number, unit) = number_and_unit(&words).filter(|&(number, _)| number > 0.0).ok_or_else(wrong)?;
        match unit {
            "" | "msg/s" | "/s" => Ok(Self::Messages(number)),
            unit => {
                let factor = unit.strip_suffix("/s").filter(|unit| !unit.is_empty()).and_then(byte_unit);
                factor.map(|factor| Self::Bytes(number * factor)).ok_or_else(wrong)
            }
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Max => f.write_str("as fast as possible"),
            Self::OfMax(share) => write!(f, "{} % of the maximum", trimmed(share * 100.0, 2)),
            Self::Messages(rate) => write!(f, "{} msg/s", trimmed(*rate, 3)),
            Self::Bytes(rate) => write!(f, "{} MB/s", trimmed(rate / 1e6, 6)),
        }
    }
}

/// Throughput of a link, in bits a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BitRate(u64);

impl BitRate {
    /// Bits a second.
    pub const fn bits(self) -> u64 {
        self.0
    }
}

impl FromStr for BitRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no rate of a link: give 10Mbit/s, 256kbit/s or 1MB/s");
        let (number, unit) = number_and_unit(text).filter(|&(number, _)| number > 0.0).ok_or_else(wrong)?;
        let factor = match unit {
            "bit/s" => 1.0,
            "kbit/s" => 1e3,
            "Mbit/s" => 1e6,
            "Gbit/s" => 1e9,
            other => {
                8.0 * other.strip_suffix("/s").filter(|unit| !unit.is_empty()).and_then(byte_unit).ok_or_else(wrong)?
            }
        };
        Ok(Self((number * factor).round() as u64))
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bits if bits >= 1_000_000 => write!(f, "{} Mbit/s", trimmed(bits as f64 / 1e6, 3)),
            bits => write!(f, "{} kbit/s", trimmed(bits as f64 / 1e3, 3)),
        }
    }
}

/// A probability or a part of a whole, from 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Share(f64);

impl Share {
    /// The whole.
    pub const WHOLE: Self = Self(1.0);

    /// From 0 to 1.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no share: give 1% or 0.01");
        let value = match text.trim().strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
            None => text.trim().parse(),
        };
        value.ok().filter(|value| (0.0..=1.0).contains(value)).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", trimmed(self.0 * 100.0, 4))
    }
}

/// Parses `100ppm`: how much faster a clock runs, in parts of a million.
pub(crate) fn drift(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix("ppm").and_then(|number| number.trim().parse::<f64>().ok());
    number
        .filter(|drift| drift.abs() <= 500_000.0)
        .ok_or_else(|| format!("{text:?} is no drift of a clock: give 100ppm or -100ppm"))
}

fn positive(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|number| *number > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_seconds_or_have_a_unit() {
        for (text, ns) in [
            ("40", 40_000_000_000),
            ("0.5", 500_000_000),
            ("10ms", 10_000_000),
            ("250 us", 250_000),
            ("2m", 120_000_000_000),
            ("1h", 3_600_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Time::from_ns(ns)), "{text}");
        }
        for text in ["", "s", "-1", "10 sec", "1e9", "inf", "100000000"] {
            assert!(text.parse::<Time>().is_err(), "{text}");
        }
        let shown = [40_000_000_000, 1_500_000_000, 10_000_000, 250_000].map(|ns| Time::from_ns(ns).to_string());
        assert_eq!(shown, ["40 s", "1.5 s", "10 ms", "250 µs"]);
        assert_eq!(
            "-1h".parse::<Offset>().map(|offset| (offset.ns(), offset.to_string())),
            Ok((-3_600_000_000_000, "−3600 s".to_owned()))
        );
    }

    #[test]
    fn times_survive_json() {
        for ns in [0, 1, 1_234_567_891, 90_000_000_000] {
            let text = serde_json::to_string(&Time::from_ns(ns)).unwrap();
            assert_eq!(serde_json::from_str::<Time>(&text).unwrap().ns(), ns, "{text}");
        }
    }

    #[test]
    fn sizes_have_decimal_and_binary_units() {
        for (text, bytes) in
            [("100", 100), ("100B", 100), ("1KiB", 1024), ("64 KiB", 65_536), ("1kB", 1000), ("1.5MB", 1_500_000)]
        {
            assert_eq!(text.parse(), Ok(Size::new(bytes)), "{text}");
        }
        for text in ["", "1.5", "-1", "1Kb", "1 MiB/s"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        assert_eq!(
            ["4KiB", "1MB", "1500"].map(|text| text.parse::<Size>().unwrap().to_string()),
            ["4 KiB", "1 MB", "1500 B"]
        );
    }

    #[test]
    fn rates_are_messages_bytes_or_shares_of_the_maximum() {
        for (text, rate) in [
            ("1000", Rate::Messages(1000.0)),
            ("1000 msg/s", Rate::Messages(1000.0)),
            ("10 MB/s", Rate::Bytes(1e7)),
            ("1MiB/s", Rate::Bytes(1_048_576.0)),
            ("70% of max", Rate::OfMax(0.7)),
            ("70 % of  max", Rate::OfMax(0.7)),
            ("max", Rate::Max),
        ] {
            assert_eq!(text.parse(), Ok(rate), "{text}");
        }
        for text in ["", "0", "-5", "120% of max", "10 MB", "fast", "10 msg/m"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        assert_eq!("10Mbit/s".parse::<BitRate>().map(BitRate::bits), Ok(10_000_000));
        assert_eq!("1MB/s".parse::<BitRate>().map(BitRate::bits), Ok(8_000_000));
        assert!("10".parse::<BitRate>().is_err() && "0kbit/s".parse::<BitRate>().is_err());
    }

    #[test]
    fn shares_are_percentages_or_parts_of_one() {
        assert_eq!("1%".parse::<Share>().map(Share::get), Ok(0.01));
        assert_eq!("0.5".parse::<Share>().map(Share::get), Ok(0.5));
        assert!(["5", "101%", "-1%", "x"].iter().all(|text| text.parse::<Share>().is_err()));
        assert_eq!((drift("100ppm"), drift("-20 ppm")), (Ok(100.0), Ok(-20.0)));
        assert!(drift("100").is_err());
    }
}
