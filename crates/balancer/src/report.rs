//! A client's load report, and its JSON form.

use std::{error::Error, fmt, time::Duration};

use serde::{Deserialize, Deserializer};
use serde_json::Number;

/// A client's load report, sent in the payload of an extended ping (thesis §4.1.1, Fig. 39).
///
/// ```text
/// {"msgsInQueue": 12, "processingTimePerMsg": 25.4}
/// ```
///
/// | meaning | key | key in the thesis' source listing |
/// |---|---|---|
/// | messages waiting at the client | `msgsInQueue` | `numberOfMsgsInQueue` |
/// | mean processing time since the previous report, ms | `processingTimePerMsg` | `processingTimerPerMsg` |
/// | no further messages, please: optional `true` or `false` | `draining` | – |
///
/// The thesis uses both spellings, so both are read; the first is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Messages that the client has received and not yet taken out of its queue; m_q. At most
    /// [`Self::MESSAGES_IN_QUEUE_MAX`]; larger values count as that.
    pub messages_in_queue: u64,
    /// Mean processing time of the messages finished since the previous report, in whole nanoseconds. `ZERO` = nothing
    /// was processed. At most [`Self::PROCESSING_TIME_MAX`]; larger values count as that.
    pub processing_time: Duration,
    /// The client wants no further messages; it will finish those in flight. Optional in JSON, `false` if missing.
    pub draining: bool,
}

impl LoadReport {
    /// Longest JSON text that [`from_json`](Self::from_json) accepts, in bytes. Within that limit extra keys are
    /// allowed.
    pub const JSON_BYTES_MAX: usize = 4096;
    /// Largest number of messages in a report: 2^31.
    pub const MESSAGES_IN_QUEUE_MAX: u64 = 1 << 31;
    /// Longest mean processing time in a report: one hour.
    pub const PROCESSING_TIME_MAX: Duration = Duration::from_secs(3600);

    /// Reads a report from JSON: one object with both keys, each in one of its two spellings. Unknown keys are ignored.
    /// Milliseconds may have decimals and are rounded to whole nanoseconds.
    ///
    /// # Errors
    /// [`ReportError`] describes the error in the text, which is always the client's.
    pub fn from_json(text: &[u8]) -> Result<Self, ReportError> {
        if text.len() > Self::JSON_BYTES_MAX {
            return Err(ReportError::TooLong { bytes: text.len() });
        }
        // A derived `Deserialize` would also accept an array of the four values.
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err(ReportError::Malformed { detail: "not an object".to_owned() });
        }
        let keys: Keys =
            serde_json::from_slice(text).map_err(|error| ReportError::Malformed { detail: error.to_string() })?;
        let messages = one_of(keys.messages, keys.messages_alias, MESSAGES_KEY)?;
        let milliseconds = one_of(keys.milliseconds, keys.milliseconds_alias, MILLISECONDS_KEY)?;
        Ok(Self {
            messages_in_queue: messages
                .as_u64()
                .filter(|&messages| messages <= Self::MESSAGES_IN_QUEUE_MAX)
                .ok_or(ReportError::OutOfRange { key: MESSAGES_KEY })?,
            processing_time: milliseconds
                .as_f64()
                .filter(|milliseconds| (0.0..=PROCESSING_TIME_MAX_MS).contains(milliseconds))
                .map(|milliseconds| Duration::from_nanos((milliseconds * NS_PER_MS).round() as u64))
                .ok_or(ReportError::OutOfRange { key: MILLISECONDS_KEY })?,
            draining: keys.draining,
        })
    }

    /// Writes the report as JSON, in the spelling of Fig. 39. [`from_json`](Self::from_json) returns the same report,
    /// to the nanosecond. Fields above their limits are written as the limits.
    pub fn to_json(&self) -> String {
        let Self { messages_in_queue, processing_time, draining } = self.clamped();
        // At most 3.6e12 ns: exact in an f64, and `Display` writes the fewest digits that parse back to it.
        let milliseconds = processing_time.as_nanos() as f64 / NS_PER_MS;
        let draining = if draining { r#","draining":true"# } else { "" };
        format!(r#"{{"{MESSAGES_KEY}":{messages_in_queue},"{MILLISECONDS_KEY}":{milliseconds}{draining}}}"#)
    }

    /// Limits the fields, which are public and may exceed their limits.
    pub(crate) fn clamped(&self) -> Self {
        Self {
            messages_in_queue: self.messages_in_queue.min(Self::MESSAGES_IN_QUEUE_MAX),
            processing_time: self.processing_time.min(Self::PROCESSING_TIME_MAX),
            draining: self.draining,
        }
    }
}

/// Why a text is no [`LoadReport`]. The client sent a wrong report; its load does not change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReportError {
    /// More than [`LoadReport::JSON_BYTES_MAX`] bytes.
    TooLong {
        /// Length of the text.
        bytes: usize,
    },
    /// Not JSON, not an object, a key twice in one spelling, or a value that is no number.
    Malformed {
        /// The JSON reader's message, with the position.
        detail: String,
    },
    /// The key is missing in both spellings.
    Missing {
        /// The key in the spelling of Fig. 39.
        key: &'static str,
    },
    /// The key is there in both spellings, so it is unclear which one counts.
    Ambiguous {
        /// The key in the spelling of Fig. 39.
        key: &'static str,
    },
    /// Negative, above the limit, or a number of messages that is not whole.
    OutOfRange {
        /// The key in the spelling of Fig. 39.
        key: &'static str,
    },
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes } => {
                write!(f, "load report of {bytes} bytes is longer than {}", LoadReport::JSON_BYTES_MAX)
            }
            Self::Malformed { detail } => write!(f, "load report is malformed: {detail}"),
            Self::Missing { key } => write!(f, "load report lacks `{key}`"),
            Self::Ambiguous { key } => {
                write!(f, "load report has `{key}` in both of its spellings")
            }
            Self::OutOfRange { key } => write!(f, "load report has `{key}` out of range"),
        }
    }
}

impl Error for ReportError {}

#[derive(Deserialize)]
struct Keys {
    #[serde(rename = "msgsInQueue", default, deserialize_with = "number")]
    messages: Option<Number>,
    #[serde(rename = "numberOfMsgsInQueue", default, deserialize_with = "number")]
    messages_alias: Option<Number>,
    #[serde(rename = "processingTimePerMsg", default, deserialize_with = "number")]
    milliseconds: Option<Number>,
    #[serde(rename = "processingTimerPerMsg", default, deserialize_with = "number")]
    milliseconds_alias: Option<Number>,
    #[serde(default)]
    draining: bool,
}

/// Requires a present key to be a number: `Option` alone would read `null` as a missing key.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Number>, D::Error> {
    Number::deserialize(deserializer).map(Some)
}

fn one_of(first: Option<Number>, second: Option<Number>, key: &'static str) -> Result<Number, ReportError> {
    match (first, second) {
        (Some(value), None) | (None, Some(value)) => Ok(value),
        (None, None) => Err(ReportError::Missing { key }),
        (Some(_), Some(_)) => Err(ReportError::Ambiguous { key }),
    }
}

const MESSAGES_KEY: &str = "msgsInQueue";
const MILLISECONDS_KEY: &str = "processingTimePerMsg";
const NS_PER_MS: f64 = 1e6;
const PROCESSING_TIME_MAX_MS: f64 = LoadReport::PROCESSING_TIME_MAX.as_secs() as f64 * 1e3;

#[cfg(test)]
mod tests {
    use super::*;

    fn report(messages_in_queue: u64, nanos: u64) -> LoadReport {
        LoadReport { messages_in_queue, processing_time: Duration::from_nanos(nanos), draining: false }
    }

    #[test]
    fn reads_both_spellings_and_ignores_other_keys() {
        let cases: &[(&str, LoadReport)] = &[
            (r#"{"msgsInQueue":3,"processingTimePerMsg":25}"#, report(3, 25_000_000)),
            (r#"{"numberOfMsgsInQueue":3,"processingTimerPerMsg":25}"#, report(3, 25_000_000)),
            (r#"{"msgsInQueue":3,"processingTimerPerMsg":25.0}"#, report(3, 25_000_000)),
            (r#"{"processingTimePerMsg":0.0000014,"numberOfMsgsInQueue":0}"#, report(0, 1)),
            ("\n\t {\"msgsInQueue\": 0, \"processingTimePerMsg\": 0 } \r\n", report(0, 0)),
            (r#"{"msgsInQueue":0,"processingTimePerMsg":-0.0}"#, report(0, 0)),
            (r#"{"draining":false,"msgsInQueue":2,"processingTimePerMsg":0}"#, report(2, 0)),
            (
                r#"{"draining":true,"msgsInQueue":2,"processingTimePerMsg":0}"#,
                LoadReport { draining: true, ..report(2, 0) },
            ),
            (r#"{"a":[{"msgsInQueue":9}],"msgsInQueue":1,"processingTimePerMsg":1.5e1}"#, report(1, 15_000_000)),
            (
                r#"{"msgsInQueue":2147483648,"processingTimePerMsg":3600000}"#,
                report(LoadReport::MESSAGES_IN_QUEUE_MAX, 3_600_000_000_000),
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(LoadReport::from_json(text.as_bytes()).as_ref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn refuses_objects_that_are_no_report() {
        let missing = |key| ReportError::Missing { key };
        let ambiguous = |key| ReportError::Ambiguous { key };
        let out_of_range = |key| ReportError::OutOfRange { key };
        let cases: &[(&str, ReportError)] = &[
            (r#"{}"#, missing(MESSAGES_KEY)),
            (r#"{"msgsInQueue":1}"#, missing(MILLISECONDS_KEY)),
            (r#"{"processingTimePerMsg":1}"#, missing(MESSAGES_KEY)),
            (r#"{"msgsInQueue":1,"numberOfMsgsInQueue":1,"processingTimePerMsg":1}"#, ambiguous(MESSAGES_KEY)),
            (r#"{"msgsInQueue":1,"processingTimerPerMsg":1,"processingTimePerMsg":1}"#, ambiguous(MILLISECONDS_KEY)),
            (r#"{"msgsInQueue":-1,"processingTimePerMsg":1}"#, out_of_range(MESSAGES_KEY)),
            (r#"{"msgsInQueue":1.5,"processingTimePerMsg":1}"#, out_of_range(MESSAGES_KEY)),
            (r#"{"msgsInQueue":2147483649,"processingTimePerMsg":1}"#, out_of_range(MESSAGES_KEY)),
            (r#"{"msgsInQueue":1,"processingTimePerMsg":-0.1}"#, out_of_range(MILLISECONDS_KEY)),
            (r#"{"msgsInQueue":1,"processingTimePerMsg":3600000.1}"#, out_of_range(MILLISECONDS_KEY)),
        ];
        for (text, expected) in cases {
            assert_eq!(LoadReport::from_json(text.as_bytes()).as_ref(), Err(expected), "{text}");
        }
    }

    #[test]
    fn refuses_malformed_reports() {
        let cases: &[&[u8]] = &[
            b"",
            b"   ",
            b"\xff\xfe",
            b"null",
            b"[1,2,3,4]",
            b"[3,null,25,null]",
            b"{\"msgsInQueue\":1,\"processingTimePerMsg\":1",
            b"{\"msgsInQueue\":1,\"processingTimePerMsg\":1}}",
            b"{\"msgsInQueue\":1,\"msgsInQueue\":1,\"processingTimePerMsg\":1}",
            b"{\"msgsInQueue\":\"1\",\"processingTimePerMsg\":1}",
            b"{\"msgsInQueue\":null,\"numberOfMsgsInQueue\":1,\"processingTimePerMsg\":1}",
            b"{\"msgsInQueue\":1,\"processingTimePerMsg\":true}",
            b"{\"msgsInQueue\":1,\"processingTimePerMsg\":NaN}",
            b"{\"msgsInQueue\":1,\"processingTimePerMsg\":Infinity}",
            b"{\"msgsInQueue\":1,\"processingTimePerMsg\":1e999}",
            b"{\"msgsInQueue\":1,\"processingTimePerMsg\":1,\"draining\":1}",
            b"{\"msgsInQueue\":1,\"processingTimePerMsg\":1,\"draining\":null}",
            b"{\"msgsInQueue\":1,\"processingTimePerMsg\":1,\"draining\":true,\"draining\":true}",
        ];
        for text in cases {
            let read = LoadReport::from_json(text);
            assert!(matches!(read, Err(ReportError::Malformed { .. })), "{}: {read:?}", text.escape_ascii());
        }
    }

    #[test]
    fn report_length_is_limited_before_parsing() {
        let mut text = br#"{"msgsInQueue":1,"processingTimePerMsg":2}"#.to_vec();
        text.resize(LoadReport::JSON_BYTES_MAX, b' ');
        assert_eq!(LoadReport::from_json(&text), Ok(report(1, 2_000_000)));
        text.push(b' ');
        assert_eq!(LoadReport::from_json(&text), Err(ReportError::TooLong { bytes: 4097 }));
        let deep = vec![b'['; LoadReport::JSON_BYTES_MAX];
        let deep = [br#"{"a":"#, &deep[..4000]].concat();
        assert!(matches!(LoadReport::from_json(&deep), Err(ReportError::Malformed { .. })));
    }

    #[test]
    fn writes_the_spelling_of_the_figure() {
        assert_eq!(report(3, 25_000_000).to_json(), r#"{"msgsInQueue":3,"processingTimePerMsg":25}"#);
        assert_eq!(report(0, 1).to_json(), r#"{"msgsInQueue":0,"processingTimePerMsg":0.000001}"#);
        let leaving = LoadReport { draining: true, ..report(3, 25_000_000) };
        assert_eq!(leaving.to_json(), r#"{"msgsInQueue":3,"processingTimePerMsg":25,"draining":true}"#);
        let beyond = LoadReport { messages_in_queue: u64::MAX, processing_time: Duration::MAX, draining: false };
        assert_eq!(beyond.to_json(), r#"{"msgsInQueue":2147483648,"processingTimePerMsg":3600000}"#);
    }

    proptest::proptest! {
        #[test]
        fn written_values_are_read_back(
            messages in 0..=1_u64 << 31, nanos in 0..=3_600_000_000_000_u64, draining: bool,
        ) {
            let report = LoadReport { draining, ..report(messages, nanos) };
            proptest::prop_assert_eq!(LoadReport::from_json(report.to_json().as_bytes()), Ok(report));
        }

        #[test]
        fn arbitrary_bytes_never_panic(text: Vec<u8>) {
            let _ = LoadReport::from_json(&text);
        }
    }
}
