//! `tenbin admin top`: a live table of the events.

use std::io::{self, IsTerminal as _, Write as _};

use serde_json::Value;
use tenbin_admin::client::Client;
use tenbin_kit::cli;
use tenbin_kit::printable::printable;

use super::{AdminError, table};

/// Shows each snapshot, on a terminal in place of the last one.
pub(super) async fn run(client: &Client) -> Result<(), AdminError> {
    let clears = io::stdout().is_terminal();
    let mut failed = None;
    let each = |data: &str| {
        let Ok(snapshot) = serde_json::from_str(data) else { return true };
        let clear = if clears { "\x1b[H\x1b[2J" } else { "" };
        let mut out = cli::out();
        let written = write!(io::stdout(), "{clear}").and_then(|()| writeln!(out, "{}", screen(&snapshot)));
        failed = written.and_then(|()| out.flush()).err();
        failed.is_none()
    };
    client.events("/api/v1/events", each).await?;
    match failed {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// A snapshot as text.
fn screen(snapshot: &Value) -> String {
    let figure = |name: &str| shown(&snapshot[name]);
    let rate = |name: &str| shown(&snapshot["rates"][name]);
    let mut text = format!(
        "{}, up {} s: {} clients, {} sessions, {} subscriptions, {} queued, {} retained\n\
         messages/s: {} in, {} out; delivery ms: p50 {}, p99 {}; dropped/s: {} queue_full, {} offline, {} expired\n",
        figure("state"),
        figure("uptime_seconds"),
        figure("clients"),
        figure("sessions"),
        figure("subscriptions"),
        figure("queued_messages"),
        figure("retained_messages"),
        rate("messages_received"),
        rate("messages_sent"),
        shown(&snapshot["delivery"]["p50_ms"]),
        shown(&snapshot["delivery"]["p99_ms"]),
        rate("dropped_queue_full"),
        rate("dropped_offline"),
        rate("dropped_expired"),
    );
    for group in snapshot["groups"].as_array().into_iter().flatten() {
        let (name, filter, scale) = (shown(&group["group"]), shown(&group["filter"]), &group["scale"]);
        let (waiting, desired) = (shown(&group["waiting"]), shown(&scale["desired"]));
        text += &format!("\n{name} {filter}: {waiting} waiting, {desired} members desired\n");
        let header = ["member", "state", "wait ms", "at client", "in flight", "queued", "share"].map(str::to_owned);
        let keys = [
            "client",
            "state",
            "predicted_wait_ms",
            "wait_at_client_ms",
            "wait_in_flight_ms",
            "wait_queued_ms",
            "share",
        ];
        let members = group["members"].as_array().into_iter().flatten();
        let lines = members.map(|member| keys.iter().map(|key| shown(&member[*key])).collect());
        text += &table::aligned(std::iter::once(header.to_vec()).chain(lines).collect());
    }
    let slow = snapshot["slow"]["clients"].as_array().map_or(&[][..], Vec::as_slice);
    if !slow.is_empty() {
        text += &format!("\nslow clients:\n{}", table::rows(slow));
    }
    text
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text).into_owned(),
        other => other.to_string(),
    }
}
