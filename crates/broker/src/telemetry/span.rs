//! Spans and requests in OTLP's form of JSON.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// A span that has ended.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) operation: Operation,
    pub(super) trace: u128,
    pub(super) id: u64,
    /// Span above it; `None` for the first one of a trace.
    pub(super) parent: Option<u64>,
    pub(super) begin: SystemTime,
    pub(super) end: SystemTime,
    pub(super) attributes: Vec<Value>,
    /// Names of events, with their times.
    pub(super) events: Vec<(&'static str, SystemTime)>,
    pub(super) error: Option<String>,
}

/// The broker's part in the message's way.
#[derive(Debug, Clone, Copy)]
pub(super) enum Operation {
    Publish,
    Deliver,
}

impl Operation {
    /// Name, and kind of the span: PRODUCER or CONSUMER.
    fn name_and_kind(self) -> (&'static str, u32) {
        match self {
            Self::Publish => ("publish", 4),
            Self::Deliver => ("deliver", 5),
        }
    }
}

impl Span {
    pub(super) fn into_json(self) -> String {
        let (name, kind) = self.operation.name_and_kind();
        let event = |(name, at): (&str, SystemTime)| json!({ "timeUnixNano": nanoseconds(at), "name": name });
        let common = [
            text("messaging.system", "mqtt"),
            text("messaging.operation.name", name),
            text("messaging.operation.type", name),
        ];
        let mut span = json!({
            "traceId": format!("{:032x}", self.trace),
            "spanId": format!("{:016x}", self.id),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": nanoseconds(self.begin),
            "endTimeUnixNano": nanoseconds(self.end.max(self.begin)),
            "attributes": common.into_iter().chain(self.attributes).collect::<Vec<_>>(),
        });
        if let Some(parent) = self.parent {
            span["parentSpanId"] = format!("{parent:016x}").into();
        }
        if !self.events.is_empty() {
            span["events"] = self.events.into_iter().map(event).collect();
        }
        if let Some(error) = self.error {
            span["status"] = json!({ "code": 2, "message": error });
        }
        span.to_string()
    }
}

/// The content of a request with these spans.
pub(crate) fn request(spans: &[String]) -> String {
    let resource = [text("service.name", "tenbin"), text("service.version", env!("CARGO_PKG_VERSION"))];
    let resource = json!({ "attributes": resource });
    let scope = json!({ "name": "tenbin" });
    let spans = spans.join(",");
    format!(r#"{{"resourceSpans":[{{"resource":{resource},"scopeSpans":[{{"scope":{scope},"spans":[{spans}]}}]}}]}}"#)
}

/// Number of spans that the collector has rejected, by its answer.
pub(crate) fn rejected(answer: &[u8]) -> usize {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    match &answer["partialSuccess"]["rejectedSpans"] {
        Value::String(digits) => digits.parse().unwrap_or(0),
        number => number.as_u64().and_then(|number| number.try_into().ok()).unwrap_or(0),
    }
}

pub(super) fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// OTLP writes integers of 64 bits as texts.
pub(super) fn integer(key: &str, value: usize) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

pub(super) fn milliseconds(key: &str, value: Duration) -> Value {
    json!({ "key": key, "value": { "doubleValue": value.as_secs_f64() * 1e3 } })
}

fn nanoseconds(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_spans_are_read_from_text_and_number() {
        for (answer, count) in [
            (r#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"full"}}"#, 3),
            (r#"{"partialSuccess":{"rejectedSpans":2}}"#, 2),
            (r#"{"partialSuccess":{}}"#, 0),
            ("{}", 0),
            ("", 0),
        ] {
            assert_eq!(rejected(answer.as_bytes()), count, "{answer}");
        }
    }
}
