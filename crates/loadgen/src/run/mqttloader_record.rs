//! MQTTLoader's record of sent and received messages.
//!
//! ```text
//! mqttloader_20201104-101838.csv
//! 1604485118169000,,,                                  when the load began
//! 1604485118169130,tenbin-3f09-pub-0,S,                published: written at QoS 0, acknowledged at QoS 1 and 2
//! 1604485118169871,tenbin-3f09-sub-0,R,741             received, with its latency
//! ```
//!
//! All times are in microseconds, in ascending order. Latency is from the due time, so that the summary can be computed
//! from the record.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{Layout, MessageRecord, Outcome, PublishRecord};
use crate::LoadgenError;
use crate::report::{create_directory, write_file};
use crate::utc;

/// Writes the record of a run into `directory`, which is created if needed. Records must be in order of time.
pub(crate) fn write(
    directory: &Path,
    outcome: &Outcome,
    published: &[PublishRecord],
    received: &[MessageRecord],
) -> Result<PathBuf, LoadgenError> {
    let layout = Layout::of(&outcome.plan)?;
    let path = directory.join(format!("mqttloader_{}.csv", utc::file_name_part(outcome.started_unix_ms)));
    create_directory(directory)?;
    write_file(&path, |file| write_rows(file, &layout, outcome.started_unix_ms, published, received))?;
    Ok(path)
}

fn write_rows(
    out: &mut dyn Write,
    layout: &Layout,
    started_unix_ms: u64,
    published: &[PublishRecord],
    received: &[MessageRecord],
) -> io::Result<()> {
    writeln!(out, "{},,,", started_unix_ms * 1000)?;
    let (mut published, mut received) = (published.iter().peekable(), received.iter().peekable());
    loop {
        let is_published_next = match (published.peek(), received.peek()) {
            (Some(published), Some(received)) => published.published_ns <= received.received_ns,
            (next, _) => next.is_some(),
        };
        if is_published_next {
            let Some(record) = published.next() else { return Ok(()) };
            let client_id = layout.publisher_client_id(layout.publisher(record.stream));
            writeln!(out, "{},{client_id},S,", record.published_ns / 1000)?;
        } else {
            let Some(record) = received.next() else { return Ok(()) };
            let client_id = &layout.receivers()[record.receiver as usize].client_id;
            let latency_us = record.received_ns.saturating_sub(record.due_ns) / 1000;
            writeln!(out, "{},{client_id},R,{latency_us}", record.received_ns / 1000)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::sample;

    #[test]
    fn both_sides_are_in_one_file_in_order_of_time() {
        let outcome = sample::outcome();
        let start_ns = outcome.started_unix_ms * 1_000_000;
        let sent = |sequence, us: u64| PublishRecord { stream: 0, sequence, published_ns: start_ns + us * 1000 };
        let came = |sequence, receiver, us: u64, latency_us: u64| {
            let received_ns = start_ns + us * 1000;
            MessageRecord {
                stream: 0,
                sequence,
                receiver,
                due_ns: received_ns - latency_us * 1000,
                late_us: 1,
                received_ns,
            }
        };
        // The second message arrives before it was due, by a clock that is behind.
        let early = MessageRecord { due_ns: u64::MAX, ..came(1, 0, 300, 0) };
        let directory = tempfile::tempdir().unwrap();
        let path =
            write(directory.path(), &outcome, &[sent(0, 100), sent(1, 250)], &[came(0, 1, 200, 150), early]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(path.file_name().unwrap(), "mqttloader_20201104-101838.csv");
        let expected = "\
1604485118169000,,,
1604485118169100,t-pub-0,S,
1604485118169200,t-sub-1,R,150
1604485118169250,t-pub-0,S,
1604485118169300,t-sub-0,R,0
";
        assert_eq!(text, expected);
    }
}
