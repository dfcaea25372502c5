//! Figures of a phase, by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::{Rate, Time, trimmed};

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

/// Declares all figures with names, units and descriptions, in the order of `--help`.
macro_rules! figures {
    ($($figure:ident $name:literal $unit:ident $what:literal,)*) => {
        /// A figure of a phase.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        pub enum Figure {
            $(#[doc = $what] #[serde(rename = $name)] $figure,)*
        }

        /// All figures with names, units and descriptions.
        pub(crate) const FIGURES: &[(Figure, &str, Unit, &str)] =
            &[$((Figure::$figure, $name, Unit::$unit, $what),)*];
    };
}

figures! {
    Lost "lost" Count "acknowledged messages that never came",
    Duplicated "duplicated" Count "further copies",
    OutOfOrder "out_of_order" Count "arrivals behind a later message of the same stream",
    Unconfirmed "unconfirmed" Count "messages neither acknowledged nor refused",
    Refused "refused" Count "messages that the system refused",
    Reconnects "reconnects" Count "lost connections that were established again",
    LeaderChanges "leader_changes" Count "times that another node took the lead; of Tenbin with a mode",
    TwoLeaders "two_leaders" Count "times that a node led although another one led later; of Tenbin with a mode",
    Unavailable "unavailable" Time "longest time in which nothing due was acknowledged",
    Recovered "recovered" Time "from the fault's end until rate, backlog and p99 are as before",
    SentMessages "sent_messages" Messages "messages sent, a second",
    SentBytes "sent_bytes" Bytes "payload bytes sent, a second",
    PublishedMessages "published_messages" Messages "messages acknowledged, a second",
    PublishedBytes "published_bytes" Bytes "payload bytes acknowledged, a second",
    ReceivedMessages "received_messages" Messages "messages received, a second",
    ReceivedBytes "received_bytes" Bytes "payload bytes received, a second",
    Backlog "backlog" Count "most messages that were due and had not come",
    P50 "p50" Time "latency from the due time: median",
    P90 "p90" Time "… of 90 % at most",
    P99 "p99" Time "… of 99 % at most",
    P999 "p99.9" Time "… of 99.9 % at most",
    Max "max" Time "… greatest",
    AckP50 "ack_p50" Time "time to acknowledgement: median",
    AckP90 "ack_p90" Time "… of 90 % at most",
    AckP99 "ack_p99" Time "… of 99 % at most",
    AckP999 "ack_p99.9" Time "… of 99.9 % at most",
    AckMax "ack_max" Time "… greatest",
}

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
