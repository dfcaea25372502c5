//! `seconds.csv`: figures of each second after the warm-up, to the end of the drain.

use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

use crate::judge::recovery::Second;

const HEAD: &str = "second,sent,published,published_bytes,received,received_bytes,p50_ms,p90_ms,p99_ms,p999_ms,max_ms,ack_p50_ms,ack_p99_ms,lost,refused,connections_lost,reconnects,backlog";

/// A row, as pages need it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Row {
    pub(crate) published_bytes: f64,
    pub(crate) published: f64,
    pub(crate) received: f64,
    pub(crate) received_bytes: f64,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    pub(crate) max_ms: Option<f64>,
}

/// Figures of a second that only pages and files show, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Details {
    pub(crate) p50: Option<f64>,
    pub(crate) p90: Option<f64>,
    pub(crate) p999: Option<f64>,
    pub(crate) max: Option<f64>,
    pub(crate) ack_p50: Option<f64>,
    pub(crate) ack_p99: Option<f64>,
    pub(crate) lost: u64,
    pub(crate) connections_lost: Option<u64>,
}

/// Writes the file.
pub(crate) fn write(path: &Path, seconds: &[Second], details: &[Details]) -> io::Result<()> {
    let mut text = format!("{HEAD}\n");
    for (number, (second, details)) in seconds.iter().zip(details).enumerate() {
        let ms = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.3}"));
        let p99 = second.p99.map(|p99| p99.secs() * 1e3);
        let Details { p50, p90, p999, max, ack_p50, ack_p99, lost, connections_lost } = *details;
        let latency = [p50, p90, p99, p999, max, ack_p50, ack_p99].map(ms).join(",");
        let counts = [second.sent, second.published, second.published_bytes, second.received, second.received_bytes];
        let counts = counts.map(|count| count.to_string()).join(",");
        let more = [Some(lost), Some(second.refused), connections_lost, second.reconnects, Some(second.backlog)];
        let more = more.map(|count| count.map_or(String::new(), |count| count.to_string())).join(",");
        writeln!(text, "{number},{counts},{latency},{more}").expect("a String takes everything");
    }
    fs::write(path, text)
}

/// Reads the file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<Row>> {
    let text = fs::read_to_string(path)?;
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default().split(',').collect::<Vec<_>>();
    let row = |line: &str| {
        let cells = line.split(',').collect::<Vec<_>>();
        let cell = |name: &str| {
            let at = head.iter().position(|column| *column == name)?;
            cells.get(at)?.parse::<f64>().ok()
        };
        let number = |name: &str| cell(name).unwrap_or_default();
        Row {
            published: number("published"),
            published_bytes: number("published_bytes"),
            received: number("received"),
            received_bytes: number("received_bytes"),
            p50_ms: cell("p50_ms"),
            p99_ms: cell("p99_ms"),
            max_ms: cell("max_ms"),
        }
    };
    Ok(lines.map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_by_the_names_of_their_columns() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("seconds.csv");
        fs::write(&path, format!("{HEAD}\n0,5,4,400,3,300,1.5,2,3,4,5,6,7,0,0,0,0,0\n1,0,0,0,0,0,,,,,,,,0,0,0,0,0\n"))
            .unwrap();
        let rows = read(&path).unwrap();
        assert_eq!((rows.len(), rows[0].published, rows[0].received_bytes), (2, 4.0, 300.0));
        assert_eq!((rows[0].p50_ms, rows[0].p99_ms, rows[1].p99_ms), (Some(1.5), Some(3.0), None));
    }
}
