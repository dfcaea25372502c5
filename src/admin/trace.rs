//! `tenbin admin trace`: packets, a line each.

use std::io::{self, Write as _};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tenbin_admin::client::Client;
use tenbin_kit::{cli, digits::segment};

use super::AdminError;

/// Shows the packets of a client or a topic, as text or as JSON lines.
pub(super) async fn run(
    client: &Client,
    id: Option<&str>,
    topic: Option<&str>,
    is_json: bool,
) -> Result<(), AdminError> {
    let wanted = [("client", id), ("topic", topic)].into_iter();
    let wanted = wanted.filter_map(|(key, value)| Some(format!("{key}={}", segment(value?))));
    let path = format!("/api/v1/trace?{}", wanted.collect::<Vec<_>>().join("&"));
    let mut failed = None;
    let each = |data: &str| {
        let Ok(event) = serde_json::from_str::<Value>(data) else { return true };
        let line = if is_json { data.to_owned() } else { line(&event) };
        let mut out = cli::out();
        failed = writeln!(out, "{line}").and_then(|()| out.flush()).err();
        failed.is_none()
    };
    client.events(&path, each).await?;
    match failed {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// An event as a line.
fn line(event: &Value) -> String {
    if let Some(dropped) = event["dropped"].as_u64() {
        return format!("… {dropped} packets are missing here: they came faster than they were read");
    }
    let Some(packet) = event["packet"].as_str() else {
        return "trace begins".to_owned();
    };
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(event["time_ms"].as_u64().unwrap_or_default());
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (seconds, millis) = (since.as_secs() % 86_400, since.subsec_millis());
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let arrow = if event["direction"] == "in" { "→" } else { "←" };
    let mut line =
        format!("{hour:02}:{minute:02}:{second:02}.{millis:03}Z {arrow} {} {packet}", shown(&event["client"]));
    for (key, name) in
        [("topic", "topic"), ("qos", "qos"), ("packet_id", "id"), ("reason", "reason"), ("bytes", "bytes")]
    {
        if !event[key].is_null() {
            line += &format!(" {name}={}", shown(&event[key]));
        }
    }
    for filter in event["filters"].as_array().into_iter().flatten() {
        line += &format!(" filter={}", shown(filter));
    }
    line
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    }
}
