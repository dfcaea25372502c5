//! `/api/v1/trace`: packets as they come and go, as server-sent events. Without a reader it costs nothing.

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::mpsc;

use crate::events::stream;
use crate::problem::Problem;
use crate::routes::{Plane, Queried};

/// Selects the packets of a trace: either all of a client, or PUBLISH packets by topic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceQuery {
    /// Client Identifier.
    pub client: Option<String>,
    /// Topic Filter.
    pub topic: Option<String>,
}

/// A packet of a trace, without its payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PacketView {
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// `in`: from the client; `out`: to it.
    pub direction: &'static str,
    /// Client Identifier.
    pub client: String,
    /// Packet type, such as `PUBLISH`.
    pub packet: String,
    /// Topic of a PUBLISH.
    pub topic: Option<String>,
    /// The first filters of a SUBSCRIBE or UNSUBSCRIBE.
    pub filters: Vec<String>,
    /// QoS of a PUBLISH.
    pub qos: Option<u8>,
    /// Packet Identifier.
    pub packet_id: Option<u16>,
    /// Reason Code; of several ones the highest.
    pub reason: Option<u8>,
    /// Size of the whole packet in bytes; `None` = unknown.
    pub bytes: Option<usize>,
}

/// An event of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceEvent {
    /// A packet has come or gone.
    Packet(PacketView),
    /// This many packets are missing here, as the reader was too slow.
    Dropped(u64),
}

type Next = dyn FnMut(&mut Context<'_>) -> Poll<Option<TraceEvent>> + Send;

/// The events of a running trace, which ends when this is dropped.
pub struct TraceFeed(Box<Next>);

impl TraceFeed {
    /// A trace whose events `next` gives; `None` = it is over.
    pub fn new(next: impl FnMut(&mut Context<'_>) -> Poll<Option<TraceEvent>> + Send + 'static) -> Self {
        Self(Box::new(next))
    }
}

impl fmt::Debug for TraceFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceFeed").finish_non_exhaustive()
    }
}

/// Handler of `/api/v1/trace`.
pub(crate) async fn trace(
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
