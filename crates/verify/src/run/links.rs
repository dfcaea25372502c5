//! Traffic of all links, second by second.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

use crate::runtime::LinkCount;

/// Traffic of all links since the end of the warm-up.
#[derive(Debug, Default)]
pub(crate) struct Links {
    before: HashMap<(String, String), LinkCount>,
    rows: String,
}

impl Links {
    /// Notes the counters at the end of a second.
    pub(crate) fn look(&mut self, second: u64, counts: Vec<LinkCount>) {
        for count in counts {
            let link = (count.from.clone(), count.to.clone());
            let LinkCount { from, to, bytes, packets, dropped, queued_bytes } = &count;
            // The first look is the begin of the measurement.
            if let Some(before) = self.before.get(&link).filter(|_| second > 0) {
                let bytes = bytes.saturating_sub(before.bytes);
                let packets = packets.saturating_sub(before.packets);
                let dropped = dropped.saturating_sub(before.dropped);
                if bytes + packets + dropped + queued_bytes > 0 {
                    let second = second - 1;
                    let row = writeln!(self.rows, "{second},{from},{to},{bytes},{packets},{dropped},{queued_bytes}");
                    row.expect("a String takes everything");
                }
            }
            self.before.insert(link, count);
        }
    }

    /// Writes the file; links without traffic in a second have no row for it.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        fs::write(path, format!("second,from,to,bytes,packets,dropped,queued_bytes\n{}", self.rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_differences_of_counters() {
        let count = |bytes| LinkCount {
            from: "a".to_owned(),
            to: "b".to_owned(),
            bytes,
            packets: bytes / 10,
            dropped: 0,
            queued_bytes: 0,
        };
        let mut links = Links::default();
        for (second, bytes) in [(0, 500), (1, 700), (2, 700), (3, 800)] {
            links.look(second, vec![count(bytes)]);
        }
        assert_eq!(links.rows, "0,a,b,200,20,0,0\n2,a,b,100,10,0,0\n");
    }
}
