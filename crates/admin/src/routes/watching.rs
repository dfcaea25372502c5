//! `/api/v1/events` and `/api/v1/trace`: server-sent events. Without a reader they cost nothing. `/api/v1/findings` and
//! `/api/v1/past`: problems, and the series of the last day.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::extract::{Json, Queried, Reply};
use crate::control::Plane;
use crate::events::{Events, EventsQuery};
use crate::problem::Problem;
use crate::site::{BrokerEnd, Site};
use crate::stream::stream;
use crate::trace::{TraceEvent, TraceFeed, TraceQuery};
use crate::{FindingView, Page};

/// Handler of `/api/v1/events`.
pub(super) async fn events(
    State(site): State<Site>,
    Extension(events): Extension<Arc<Events>>,
    Queried(query): Queried<EventsQuery>,
) -> Result<Response, Problem> {
    events.watch(site, query)
}

pub(super) async fn findings(Extension(plane): Extension<Plane>) -> Reply<Page<FindingView>> {
    Ok(Json(Page { items: plane.findings(), cursor: None }))
}

pub(super) async fn past(Extension(plane): Extension<Plane>) -> Reply<Value> {
    Ok(Json(plane.past()))
}

/// Handler of `/api/v1/trace`.
pub(super) async fn trace(
    Extension(plane): Extension<Plane>,
    Extension(end): Extension<BrokerEnd>,
    Queried(query): Queried<TraceQuery>,
) -> Result<Response, Problem> {
    let begun = json!({ "client": query.client, "topic": query.topic });
    let TraceFeed(mut next) = plane.trace(query).await?;
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let read = async move {
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
    };
    tokio::spawn(end.unless_ended(read));
    Ok(stream(events))
}

/// Events between the trace and its connection.
const EVENTS_MAX: usize = 16;
/// Time for a reader to read an event.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time without a packet after which the reader is looked at.
const SILENCE: Duration = Duration::from_secs(5);
