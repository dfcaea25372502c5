//! The part `measure`: times of a run.

use serde::{Deserialize, Serialize};

use super::error::{Complaints, Place};
use super::fields::Fields;
use super::node::YamlNode;
use crate::units::Time;

/// Times of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// From the end of the warm-up to the last message.
    pub time: Time,
    /// Load before that time.
    pub warm_up: WarmUp,
    /// Length of the phase `before`.
    pub before: Time,
    /// Most time to wait for messages under way after the last one.
    pub drain: Time,
    /// Number of runs of each variant.
    pub repeat: u32,
    /// Time of the closed loop that finds the maximum rate.
    pub max: Time,
}

/// End of the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WarmUp {
    /// When nothing is overdue and the p99 is flat for 5 s, after 60 s at most.
    Steady,
    /// After this time.
    For(Time),
}

impl WarmUp {
    /// Most time of a warm-up.
    pub const fn most(self) -> Time {
        match self {
            Self::Steady => Time::from_secs(60),
            Self::For(time) => time,
        }
    }
}

/// Length of the phase `before` by default; shorter if the first fault begins earlier.
const BEFORE: Time = Time::from_secs(20);

/// Reads `measure`, for actions of which the first begins at `first` at the earliest.
pub(crate) fn read(node: Option<&YamlNode>, first: Option<Time>, complaints: &mut Complaints) -> Measure {
    let room = first.unwrap_or(BEFORE);
    let mut measure = Measure {
        time: Time::from_secs(60),
        warm_up: WarmUp::Steady,
        before: BEFORE.min(room),
        drain: Time::from_secs(30),
        repeat: 1,
        max: Time::from_secs(20),
    };
    let Some(mut fields) = node.and_then(|node| Fields::of(node, "measure", complaints)) else { return measure };
    let positive = |text: &str| match text.parse::<Time>() {
        Ok(Time::ZERO) => Err(format!("{text:?} is too short: give more than 0")),
        other => other,
    };
    measure.time = fields.parsed("time", complaints, positive).unwrap_or(measure.time);
    let warm_up = fields.parsed("warm_up", complaints, |text| match text {
        "steady" => Ok(WarmUp::Steady),
        time => {
            time.parse().map(WarmUp::For).map_err(|_| format!("{text:?} is no warm-up: give steady, or a time as 5s"))
        }
    });
    measure.warm_up = warm_up.unwrap_or(measure.warm_up);
    if let Some(before) = fields.parsed("before", complaints, positive) {
        let place = fields.node("before").map_or(Place::default(), |node| node.place);
        if before > room && first.is_some() {
            complaints.add(
                place,
                format!("before is {before}, and the first fault may begin at {room}"),
                format!("give at most {room}, or begin the fault later"),
            );
        }
        measure.before = before;
    }
    measure.drain = fields.value("drain", complaints).unwrap_or(measure.drain);
    measure.repeat = fields.count("repeat", 100, complaints).unwrap_or(1);
    measure.max = fields.parsed("max", complaints, positive).unwrap_or(measure.max);
    fields.finish(complaints);
    measure
}
