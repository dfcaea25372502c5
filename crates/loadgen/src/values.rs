//! Parsers for argument values.

use std::time::Duration;

use clap::ValueEnum;
use tenbin_codec::QoS;
use tenbin_simulator::Span;

/// Parses `250us`, `10.7ms`, `15s`, `2m` or `1h`; a number without a unit is in seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<Span>().map(Span::duration)
}

/// As [`duration`], but not 0.
pub(crate) fn positive_duration(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| if time.is_zero() { Err("want more than 0".to_owned()) } else { Ok(time) })
}

/// As [`duration`], in whole seconds.
pub(crate) fn whole_seconds(text: &str) -> Result<u32, String> {
    let time = duration(text)?;
    if time.subsec_nanos() == 0 { Ok(time.as_secs() as u32) } else { Err("want whole seconds".to_owned()) }
}

/// As [`whole_seconds`], but not 0.
pub(crate) fn positive_whole_seconds(text: &str) -> Result<u32, String> {
    positive_duration(text).and_then(|_| whole_seconds(text))
}

/// As [`whole_seconds`], at most 65,535.
pub(crate) fn keep_alive(text: &str) -> Result<u16, String> {
    u16::try_from(whole_seconds(text)?).map_err(|_| "want at most 65535 s".to_owned())
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

/// Carrier of a worker's load reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reports {
    /// No reports, like any other MQTT client
    None,
    /// Extended PINGREQs
    Pingreq,
    /// Acknowledgements, at QoS 1 and 2
    Ack,
    /// Messages to $load
    Publish,
}

/// Arguments of a command line that begins with the command's name.
#[cfg(test)]
pub(crate) fn parsed<A: clap::Args>(line: &str) -> Result<A, clap::Error> {
    let command = A::augment_args(clap::Command::new("command"));
    command.try_get_matches_from(line.split_whitespace()).and_then(|matches| A::from_arg_matches(&matches))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_or_are_in_seconds() {
        for (text, expected) in [
            ("10.7ms", Duration::from_micros(10_700)),
            ("250µs", Duration::from_micros(250)),
            ("1.5m", Duration::from_secs(90)),
            ("1h", Duration::from_secs(3600)),
            ("1.5", Duration::from_millis(1500)),
        ] {
            assert_eq!((positive_duration(text), duration(text)), (Ok(expected), Ok(expected)), "{text}");
        }
        assert_eq!((duration("0"), duration("0us")), (Ok(Duration::ZERO), Ok(Duration::ZERO)));
        for text in ["", "ms", "0ms", "0", "-1s", "1e9", "25h", "NaN"] {
            assert!(positive_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn whole_seconds_have_no_fraction() {
        assert_eq!((whole_seconds("2"), whole_seconds("0s"), whole_seconds("2000ms")), (Ok(2), Ok(0), Ok(2)));
        for text in ["", "s", "1.5", "-1", "100000"] {
            assert!(whole_seconds(text).is_err(), "{text}");
        }
        assert!(positive_whole_seconds("1s").is_ok() && positive_whole_seconds("0").is_err());
        assert!(keep_alive("65535") == Ok(65_535) && keep_alive("65536").is_err());
    }

    #[test]
    fn numbers_may_be_written_with_an_exponent() {
        assert_eq!(positive_number("1e5"), Ok(100_000.0));
        for text in ["0", "-1", "inf", "NaN", "x", ""] {
            assert!(positive_number(text).is_err(), "{text}");
        }
    }
}
