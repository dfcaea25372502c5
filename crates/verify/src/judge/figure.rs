//! Figures of a phase, by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::{Rate, Time, trimmed};

/// A figure of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Acknowledged messages that never came.
    Lost,
    /// Further copies.
    Duplicated,
    /// Arrivals behind a later message of the same stream.
    OutOfOrder,
    /// Messages that were neither acknowledged nor refused.
    Unconfirmed,
    /// Messages that the system refused.
    Refused,
    /// Lost connections that were established again.
    Reconnects,
    /// Longest time in which nothing due was acknowledged.
    Unavailable,
    /// Time from the fault's end to normal operation.
    Recovered,
    /// Sent messages a second.
    SentMessages,
    /// Sent payload bytes a second.
    SentBytes,
    /// Published, that is acknowledged, messages a second.
    PublishedMessages,
    /// Published payload bytes a second.
    PublishedBytes,
    /// Received messages a second.
    ReceivedMessages,
    /// Received payload bytes a second.
    ReceivedBytes,
    /// Most messages that were due and had not come, at the end of a second.
    Backlog,
    /// Median latency from the due time.
    #[serde(rename = "p50")]
    P50,
    /// 90th percentile of the latency.
    #[serde(rename = "p90")]
    P90,
    /// 99th percentile of the latency.
    #[serde(rename = "p99")]
    P99,
    /// 99.9th percentile of the latency.
    #[serde(rename = "p99.9")]
    P999,
    /// Greatest latency.
    #[serde(rename = "max")]
    Max,
    /// Median time to acknowledgement.
    #[serde(rename = "ack_p50")]
    AckP50,
    /// 90th percentile of the time to acknowledgement.
    #[serde(rename = "ack_p90")]
    AckP90,
    /// 99th percentile of the time to acknowledgement.
    #[serde(rename = "ack_p99")]
    AckP99,
    /// 99.9th percentile of the time to acknowledgement.
    #[serde(rename = "ack_p99.9")]
    AckP999,
    /// Greatest time to acknowledgement.
    #[serde(rename = "ack_max")]
    AckMax,
}

/// Unit of a figure's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number.
    Count,
    /// Seconds.
    Time,
    /// Messages a second.
    Messages,
    /// Bytes a second.
    Bytes,
}

/// All figures with names, units and descriptions, in the order of `--help`.
pub(crate) const FIGURES: [(Figure, &str, Unit, &str); 25] = [
    (Figure::Lost, "lost", Unit::Count, "acknowledged messages that never came"),
    (Figure::Duplicated, "duplicated", Unit::Count, "further copies"),
    (Figure::OutOfOrder, "out_of_order", Unit::Count, "arrivals behind a later message of the same stream"),
    (Figure::Unconfirmed, "unconfirmed", Unit::Count, "messages neither acknowledged nor refused"),
    (Figure::Refused, "refused", Unit::Count, "messages that the system refused"),
    (Figure::Reconnects, "reconnects", Unit::Count, "lost connections that were established again"),
    (Figure::Unavailable, "unavailable", Unit::Time, "longest time in which nothing due was acknowledged"),
    (Figure::Recovered, "recovered", Unit::Time, "from the fault's end until rate, backlog and p99 are as before"),
    (Figure::SentMessages, "sent_messages", Unit::Messages, "messages sent, a second"),
    (Figure::SentBytes, "sent_bytes", Unit::Bytes, "payload bytes sent, a second"),
    (Figure::PublishedMessages, "published_messages", Unit::Messages, "messages acknowledged, a second"),
    (Figure::PublishedBytes, "published_bytes", Unit::Bytes, "payload bytes acknowledged, a second"),
    (Figure::ReceivedMessages, "received_messages", Unit::Messages, "messages received, a second"),
    (Figure::ReceivedBytes, "received_bytes", Unit::Bytes, "payload bytes received, a second"),
    (Figure::Backlog, "backlog", Unit::Count, "most messages that were due and had not come"),
    (Figure::P50, "p50", Unit::Time, "latency from the due time: median"),
    (Figure::P90, "p90", Unit::Time, "… of 90 % at most"),
    (Figure::P99, "p99", Unit::Time, "… of 99 % at most"),
    (Figure::P999, "p99.9", Unit::Time, "… of 99.9 % at most"),
    (Figure::Max, "max", Unit::Time, "… greatest"),
    (Figure::AckP50, "ack_p50", Unit::Time, "time to acknowledgement: median"),
    (Figure::AckP90, "ack_p90", Unit::Time, "… of 90 % at most"),
    (Figure::AckP99, "ack_p99", Unit::Time, "… of 99 % at most"),
    (Figure::AckP999, "ack_p99.9", Unit::Time, "… of 99.9 % at most"),
    (Figure::AckMax, "ack_max", Unit::Time, "… greatest"),
];

impl Figure {
    /// Name in assertions.
    pub fn name(self) -> &'static str {
        FIGURES[self as usize].1
    }

    /// Unit of its values.
    pub fn unit(self) -> Unit {
        FIGURES[self as usize].2
    }
}

impl Unit {
    /// Reads a value: a count, a time with its unit, or a rate.
    pub(crate) fn parse(self, text: &str) -> Result<f64, String> {
        match self {
            Self::Count => {
                let number =
                    text.replace('_', "").parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
                number.ok_or_else(|| format!("{text:?} is no number: give one as 0"))
            }
            // A number alone would be seconds, though many expect milliseconds of a latency.
            Self::Time if text.parse::<f64>().is_ok() => Err(format!("{text:?} has no unit: give us, ms or s")),
            Self::Time => text.parse::<Time>().map(Time::secs),
            Self::Messages => match text.parse::<Rate>() {
                Ok(Rate::Messages(rate)) => Ok(rate),
                _ if text == "0" => Ok(0.0),
                _ => Err(format!("{text:?} is no rate of messages: give 1000 msg/s")),
            },
            Self::Bytes => match text.parse::<Rate>() {
                Ok(Rate::Bytes(rate)) => Ok(rate),
                _ => Err(format!("{text:?} is no rate of bytes: give 10 MB/s")),
            },
        }
    }

    /// Shows a value.
    pub(crate) fn text(self, value: f64) -> String {
        match self {
            Self::Count => trimmed(value, 3),
            Self::Time => Time::from_secs_f64(value).to_string(),
            Self::Messages => format!("{} msg/s", trimmed(value, 1)),
            Self::Bytes => format!("{} MB/s", trimmed(value / 1e6, 3)),
        }
    }
}

impl FromStr for Figure {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = FIGURES.iter().find(|(_, name, ..)| *name == text).map(|(figure, ..)| *figure);
        found.ok_or_else(|| {
            let names = FIGURES.iter().map(|(_, name, ..)| *name);
            let near = names.min_by_key(|name| strsim::damerau_levenshtein(name, text)).unwrap_or_default();
            format!("unknown figure {text:?}: did you mean {near:?}?")
        })
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_order_of_the_figures() {
        for (index, (figure, name, ..)) in FIGURES.iter().enumerate() {
            assert_eq!((*figure as usize, name.parse()), (index, Ok(*figure)));
            assert_eq!(serde_json::to_string(figure).unwrap(), format!("{name:?}"), "JSON has the same name");
        }
    }
}
