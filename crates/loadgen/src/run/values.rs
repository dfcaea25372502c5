//! Parsers for argument values of `run`.

use std::str::FromStr;
use std::time::Duration;

use tenbin_simulator::scenario::{Pause, ServiceStep};
use tenbin_simulator::{Distribution, Span};

use super::{CutWhose, Cuts, OnLost, Version, WorkerKind};
use crate::values::{duration, positive_duration};

/// Parses `5` or `3.1.1`; MQTTLoader calls the latter `3`.
pub(crate) fn version(text: &str) -> Result<Version, String> {
    match text {
        "5" | "5.0" => Ok(Version::V5),
        "3" | "3.1.1" => Ok(Version::V311),
        _ => Err("want 5 or 3.1.1".to_owned()),
    }
}

/// Protocol of the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Mqtt(Version),
    MqttSn,
    Http,
}

/// Parses a version of MQTT, `mqtt-sn`, or `http`.
pub(crate) fn protocol(text: &str) -> Result<Protocol, String> {
    match text {
        "mqtt-sn" => Ok(Protocol::MqttSn),
        "http" => Ok(Protocol::Http),
        _ => version(text).map(Protocol::Mqtt).map_err(|_| "want 5, 3.1.1, mqtt-sn or http".to_owned()),
    }
}

/// Parses `0`, `1` or `2`.
pub(crate) fn qos(text: &str) -> Result<u8, String> {
    crate::values::qos(text).map(|qos| qos.bits())
}

/// Parses a size of at least 8 bytes, as `100` or `4KiB`.
pub(crate) fn payload(text: &str) -> Result<u32, String> {
    let bytes = tenbin_kit::units::bytes(text).and_then(|bytes| u32::try_from(bytes).ok()).filter(|bytes| *bytes >= 8);
    bytes.ok_or_else(|| "want 8 bytes to 4 GiB, as 100 or 4KiB".to_owned())
}

/// Parses `25ms`, `exp:MEAN`, `pareto:MEAN:SHAPE`, `jitter:MEAN:BY`, `step:BEFORE:AFTER:AT` or
/// `pause:SERVICE:AT:LASTS`.
pub(crate) fn service(text: &str) -> Result<WorkerKind, String> {
    let words: Vec<_> = text.split(':').collect();
    let number = |text: &str| text.parse::<f64>().map_err(|_| format!("{text:?} is no number"));
    let span = |text| duration(text).map(|duration| Span::from_ns(duration.as_nanos() as u64));
    let steady = |text| positive_duration(text).and_then(|_| span(text)).map(WorkerKind::of);
    let kind = match words.as_slice() {
        [fixed] => steady(fixed)?,
        ["exp", mean] => WorkerKind { distribution: Distribution::Exponential, ..steady(mean)? },
        ["pareto", mean, shape] => WorkerKind { distribution: Distribution::Pareto(number(shape)?), ..steady(mean)? },
        ["jitter", mean, by] => WorkerKind { distribution: Distribution::Jitter(number(by)?), ..steady(mean)? },
        ["step", before, after, at] => {
            WorkerKind { steps: vec![ServiceStep { at: span(at)?, service: span(after)? }], ..steady(before)? }
        }
        ["pause", service, at, lasts] => {
            positive_duration(lasts)?;
            WorkerKind { pauses: vec![Pause { at: span(at)?, length: span(lasts)? }], ..steady(service)? }
        }
        _ => return Err(format!("{text:?}: {SERVICES}")),
    };
    kind.fault().map_or(Ok(kind), |(_, message)| Err(message))
}

/// Parses `100ms,2s` or `100ms`: first and longest pause before an attempt to reconnect.
pub(crate) fn reconnect(text: &str) -> Result<OnLost, String> {
    let (first, most) = text.split_once(',').unwrap_or((text, text));
    let (first, most) = (positive_duration(first)?, positive_duration(most)?);
    if most < first {
        return Err(format!("the longest pause, {most:?}, is shorter than the first, {first:?}"));
    }
    Ok(OnLost::Reconnect { first, most })
}

/// Parses `subscribers:2s` or `subscribers:2s/500ms`: kind of connection, interval, time away.
pub(crate) fn cuts(text: &str) -> Result<Cuts, String> {
    let wanted = || "want WHOSE:EVERY[/AWAY] with WHOSE publishers, subscribers or idle".to_owned();
    let (whose, times) = text.split_once(':').ok_or_else(wanted)?;
    let whose = match whose {
        "publishers" => CutWhose::Publishers,
        "subscribers" => CutWhose::Subscribers,
        "idle" => CutWhose::Idle,
        _ => return Err(wanted()),
    };
    let (every, away) = match times.split_once('/') {
        Some((every, away)) => (positive_duration(every)?, duration(away)?),
        None => (positive_duration(times)?, Duration::ZERO),
    };
    Ok(Cuts { every, whose, away })
}

/// `[NAME=]PID`: a broker's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PidArg {
    /// The broker's name; required if there are several.
    pub(crate) broker: Option<String>,
    pub(crate) pid: u32,
}

impl FromStr for PidArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (broker, pid) = match text.rsplit_once('=') {
            Some((broker, pid)) => (Some(broker.to_owned()), pid),
            None => (None, text),
        };
        Ok(Self { broker, pid: pid.parse().map_err(|_| format!("{pid:?} is no process id"))? })
    }
}

const SERVICES: &str =
    "want TIME, exp:MEAN, pareto:MEAN:SHAPE, jitter:MEAN:BY, step:BEFORE:AFTER:AT or pause:SERVICE:AT:LASTS";

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_service_time_may_be_drawn_or_change() {
        let span = |ms| Span::from_ms(ms);
        let kind = WorkerKind::of(span(25.0));
        let step = ServiceStep { at: span(5000.0), service: span(200.0) };
        let pause = Pause { at: Span::ZERO, length: span(2000.0) };
        for (text, expected) in [
            ("25ms", kind.clone()),
            ("exp:25ms", WorkerKind { distribution: Distribution::Exponential, ..kind.clone() }),
            ("pareto:25ms:1.5", WorkerKind { distribution: Distribution::Pareto(1.5), ..kind.clone() }),
            ("jitter:25ms:0.2", WorkerKind { distribution: Distribution::Jitter(0.2), ..kind.clone() }),
            ("step:25ms:200ms:5s", WorkerKind { steps: vec![step], ..kind.clone() }),
            ("pause:25ms:0:2s", WorkerKind { pauses: vec![pause], ..kind.clone() }),
        ] {
            assert_eq!(service(text), Ok(expected), "{text}");
        }
        for text in ["", "exp", "exp:0ms", "pareto:1ms:1", "pareto:1ms:NaN", "jitter:1ms:1.5", "step:1ms:2ms", "x:1ms"]
        {
            assert!(service(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_cut_says_whose_how_often_and_for_how_long() {
        let every = ms(2000);
        assert_eq!(cuts("idle:2s"), Ok(Cuts { every, whose: CutWhose::Idle, away: ms(0) }));
        assert_eq!(cuts("publishers:2s/500ms"), Ok(Cuts { every, whose: CutWhose::Publishers, away: ms(500) }));
        for text in ["", "idle", "idle:", "idle:0s", "brokers:1s", "idle:1s/x"] {
            assert!(cuts(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_process_id_may_name_its_broker() {
        assert_eq!("42".parse(), Ok(PidArg { broker: None, pid: 42 }));
        assert_eq!("a=42".parse(), Ok(PidArg { broker: Some("a".into()), pid: 42 }));
        assert!("a".parse::<PidArg>().is_err() && "a=".parse::<PidArg>().is_err());
    }
}
