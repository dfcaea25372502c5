//! Bodies of requests.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use hyper::body::{Body as _, Incoming};

use crate::answer::Refusal;
use crate::places::Held;

/// Bytes of a body that are not counted: each connection has a buffer for them.
const UNCOUNTED: usize = 16 * 1024;

/// Refuses a body that is too large by its Content-Length, before a byte of it is read.
pub(crate) fn check(body: &Incoming, maximum: usize) -> Result<(), Refusal> {
    if body.size_hint().lower() > maximum as u64 { Err(too_large(maximum)) } else { Ok(()) }
}

/// Receives a body. Its bytes are copied, so that many small parts take no more memory than a whole.
pub(crate) async fn receive(mut body: Incoming, maximum: usize, held: &mut Held) -> Result<Bytes, Refusal> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Refusal::bad_request(format!("the body ended early: {error}")))?;
        let Ok(part) = frame.into_data() else { continue }; // Trailers.
        let length = whole.len() + part.len();
        if length > maximum {
            return Err(too_large(maximum));
        }
        if length > whole.capacity() {
            let capacity = length.max(2 * whole.capacity()).min(maximum.max(length));
            if capacity > UNCOUNTED && !held.grow_to(capacity) {
                return Err(Refusal::no_room(capacity));
            }
            whole.reserve(capacity - whole.len());
        }
        whole.extend_from_slice(&part);
    }
    Ok(whole.freeze())
}

fn too_large(maximum: usize) -> Refusal {
    let text = format!("the body has more than {maximum} bytes (packet_bytes_maximum)");
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text)
}
