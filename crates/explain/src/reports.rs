//! The broker's reports on one group, in their wire format.

use serde::Deserialize;
use serde_json::{Value, json};

/// Reports on one group. Times are in milliseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reports {
    pub(crate) members: Option<Members>,
    pub(crate) shadow: Option<Shadow>,
    pub(crate) decisions: Vec<Decision>,
    /// The reports as received.
    raw: [Value; 3],
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Members {
    pub(crate) group: String,
    pub(crate) filter: String,
    pub(crate) policy: String,
    pub(crate) is_ordered: bool,
    pub(crate) messages: u64,
    pub(crate) waiting: u64,
    /// Time that the members need for them; `None` = unknown.
    pub(crate) waiting_ms: Option<f64>,
    /// Messages that members did not process; brokers of earlier versions do not tell.
    #[serde(default)]
    pub(crate) failures: Failures,
    pub(crate) members_total: u64,
    pub(crate) members: Vec<Member>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Failures {
    pub(crate) rejected: u64,
    pub(crate) overdue: u64,
    pub(crate) dead_lettered: u64,
    #[serde(default)]
    pub(crate) letters_refused: u64,
    pub(crate) retries: u64,
    pub(crate) oldest_retry_ms: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Member {
    pub(crate) client: String,
    pub(crate) state: String,
    pub(crate) weight: u32,
    pub(crate) messages: u64,
    pub(crate) share: f64,
    pub(crate) predicted_wait_ms: f64,
    pub(crate) pending: u64,
    pub(crate) in_flight: u64,
    /// `None` = any number.
    pub(crate) in_flight_maximum: Option<u64>,
    /// How it serves messages, as learnt. Older brokers report none of the next five.
    #[serde(default)]
    pub(crate) service: String,
    #[serde(default)]
    pub(crate) alone_ms: f64,
    #[serde(default)]
    pub(crate) busy_ms: f64,
    #[serde(default)]
    pub(crate) tries: u64,
    #[serde(default)]
    pub(crate) last_try_ms: f64,
    pub(crate) round_trip_ms: f64,
    pub(crate) reported_processing_time_ms: f64,
    pub(crate) processing_time_ms: f64,
    pub(crate) is_speed_known: bool,
    /// How many times faster than the group's mean it seems to be, if suspiciously fast. Older brokers do not report it.
    pub(crate) times_faster: Option<u64>,
    pub(crate) late_ms: f64,
    pub(crate) late_reports: u64,
    pub(crate) redispatches: u64,
    /// Rejections among its last 20 acknowledgements. Older brokers report neither this nor the next.
    #[serde(default)]
    pub(crate) rejected_of_20: u64,
    #[serde(default)]
    pub(crate) overdue: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Shadow {
    pub(crate) shadow: String,
    pub(crate) compared: u64,
    pub(crate) agreement: f64,
    pub(crate) wait_difference_ms_mean: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Decision {
    /// Rises with each recorded decision.
    pub(crate) number: u64,
    /// Time since 1970.
    pub(crate) time_ms: u64,
    pub(crate) topic: String,
    pub(crate) chosen: Option<String>,
    pub(crate) reason: String,
    pub(crate) unrecorded: u64,
    pub(crate) members_total: u64,
    pub(crate) candidates: Vec<Candidate>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Candidate {
    pub(crate) client: String,
    pub(crate) state: String,
    pub(crate) predicted_wait_ms: f64,
    pub(crate) penalty_ms: f64,
}

impl Reports {
    /// Takes in a report. Returns true for the report that is published last. Unknown reports are ignored.
    pub(crate) fn take(&mut self, report: &str, payload: &[u8]) -> Result<bool, serde_json::Error> {
        let place = match report {
            "members" => {
                self.members = Some(serde_json::from_slice(payload)?);
                0
            }
            "shadow" => {
                self.shadow = Some(serde_json::from_slice(payload)?);
                1
            }
            "decisions" => {
                self.decisions = serde_json::from_slice(payload)?;
                2
            }
            _ => return Ok(false),
        };
        self.raw[place] = serde_json::from_slice(payload)?;
        Ok(report == "decisions" && self.members.is_some())
    }

    /// Takes in a document of all reports, as [`to_json`](Self::to_json) has it.
    pub(crate) fn of(document: &Value) -> Result<Self, serde_json::Error> {
        let mut reports = Self::default();
        for report in ["members", "shadow", "decisions"] {
            if !document[report].is_null() {
                reports.take(report, document[report].to_string().as_bytes())?;
            }
        }
        Ok(reports)
    }

    /// All reports as received; `shadow` is null if there is none.
    pub(crate) fn to_json(&self) -> Value {
        let [members, shadow, decisions] = &self.raw;
        json!({ "members": members, "shadow": shadow, "decisions": decisions })
    }
}
