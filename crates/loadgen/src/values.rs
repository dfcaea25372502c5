//! Parsers for argument values.

use std::time::Duration;

use tenbin_codec::{ProtocolVersion, QoS};

/// Parses `250us`, `10.7ms`, `15s` or `2m`.
pub(crate) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(OUT_OF_RANGE.to_owned()),
        duration => Ok(duration),
    }
}

/// As [`positive_duration`], or 0, with or without a unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let unit_at = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return Err("want a number and a unit: us, ms, s or m".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is no number"))?;
    match Duration::try_from_secs_f64(number * seconds) {
        Ok(duration) if duration <= LONGEST && (number == 0.0 || !duration.is_zero()) => Ok(duration),
        _ => Err(OUT_OF_RANGE.to_owned()),
    }
}

/// As [`positive_duration`], or a plain number of seconds.
pub(crate) fn positive_seconds(text: &str) -> Result<Duration, String> {
    if text.parse::<f64>().is_ok() { positive_duration(&format!("{text}s")) } else { positive_duration(text) }
}

/// Parses whole seconds: `2` or `2s`.
pub(crate) fn whole_seconds(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    number.parse().ok().filter(|seconds| *seconds <= LONGEST.as_secs() as u32).ok_or("want whole seconds".to_owned())
}

/// As [`whole_seconds`], but not 0.
pub(crate) fn positive_whole_seconds(text: &str) -> Result<u32, String> {
    match whole_seconds(text)? {
        0 => Err("want at least 1 s".to_owned()),
        seconds => Ok(seconds),
    }
}

/// Parses a number above 0, also as `1e5`.
pub(crate) fn positive_number(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err("want a number above 0".to_owned()),
    }
}

pub(crate) fn qos(text: &str) -> Result<QoS, String> {
    let bits = text.parse().map_err(|_| "want 0, 1 or 2".to_owned())?;
    QoS::from_bits(bits).ok_or_else(|| "want 0, 1 or 2".to_owned())
}

pub(crate) fn version(text: &str) -> Result<ProtocolVersion, String> {
    match text {
        "5" | "5.0" => Ok(ProtocolVersion::V5),
        "3.1.1" => Ok(ProtocolVersion::V311),
        _ => Err("want 5 or 3.1.1".to_owned()),
    }
}

const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

const OUT_OF_RANGE: &str = "want more than zero and at most 24 h";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_number_and_a_unit() {
        for (text, expected) in [
            ("10ms", Duration::from_millis(10)),
            ("10.7ms", Duration::from_micros(10_700)),
            ("250us", Duration::from_micros(250)),
            ("250µs", Duration::from_micros(250)),
            ("15s", Duration::from_secs(15)),
            ("1.5m", Duration::from_secs(90)),
        ] {
            assert_eq!(positive_duration(text), Ok(expected), "{text}");
            assert_eq!(duration(text), Ok(expected), "{text}");
        }
        for text in ["", "10", "ms", "0ms", "0", "-1s", "1e99s", "10 ms", "1h", "NaNs", "infs", "0.0000001us"] {
            assert!(positive_duration(text).is_err(), "{text}");
        }
        assert_eq!((duration("0"), duration("0us")), (Ok(Duration::ZERO), Ok(Duration::ZERO)));
        assert!(duration("0.0000001us").is_err());
    }

    #[test]
    fn seconds_need_no_unit() {
        assert_eq!(positive_seconds("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(positive_seconds("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!((whole_seconds("2"), whole_seconds("0s")), (Ok(2), Ok(0)));
        for text in ["", "0", "-1", "NaN", "1e9"] {
            assert!(positive_seconds(text).is_err(), "{text}");
        }
        for text in ["", "s", "1.5", "-1", "100000"] {
            assert!(whole_seconds(text).is_err(), "{text}");
        }
        assert!(positive_whole_seconds("1s").is_ok() && positive_whole_seconds("0").is_err());
    }

    #[test]
    fn numbers_may_be_written_with_an_exponent() {
        assert_eq!(positive_number("1e5"), Ok(100_000.0));
        for text in ["0", "-1", "inf", "NaN", "x", ""] {
            assert!(positive_number(text).is_err(), "{text}");
        }
    }
}
