//! `/api/v1/events` and `/api/v1/trace`: server-sent events. Without a reader they cost nothing.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use serde_json::json;
use tokio::sync::mpsc;

use super::extract::Queried;
use crate::control::Plane;
use crate::events::{Events, EventsQuery};
use crate::problem::Problem;
use crate::stream::stream;
use crate::trace::{TraceEvent, TraceFeed, TraceQuery};

/// Handler of `/api/v1/events`.
pub(super) async fn events(
    State(plane): State<Plane>,
    Extension(events): Extension<Arc<Events>>,
    Queried(query): Queried<EventsQuery>,
) -> Result<Response, Problem> {
    events.watch(plane, query)
}

/// Handler of `/api/v1/trace`.
pub(super) async fn trace(
    State(plane): State<Plane>,
    Queried(query): Queried<TraceQuery>,
) -> Result<Response, Problem> {
    let begun = json!({ "client": query.client, "topic": query.topic });
    let TraceFeed(mut next) = plane.trace(query).await?;
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    tokio::spawn(async move {
        let mut text = format!("event: begun\ndata: {begun}\n\n");
        loop {
            // A reader that does not read holds nothing but its own place.
            if sender.send_timeout(Bytes::from(text), PATIENCE).await.is_err() {
                return;
            }
            text = tokio::select! {
                event = poll_fn(|context| next(context)) => match event {
                    Some(TraceEvent::Packet(packet)) => format!("event: packet\ndata: {}\n\n", json!(packet)),
                    Some(TraceEvent::Dropped(count)) => {
                        format!("event: dropped\ndata: {}\n\n", json!({ "dropped": count }))
                    }
                    None => return,
                },
                () = sender.closed() => return,
                // A comment, which shows that the reader is gone.
                () = tokio::time::sleep(SILENCE) => ": nothing\n\n".to_owned(),
            };
        }
    });
    Ok(stream(events))
}

/// Events between the trace and its connection.
const EVENTS_MAX: usize = 16;
/// Time for a reader to read an event.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time without a packet after which the reader is looked at.
const SILENCE: Duration = Duration::from_secs(5);
