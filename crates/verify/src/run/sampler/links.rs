//! Traffic of all links, second by second.

use std::collections::HashMap;

use crate::results::LinkSample;
use crate::runtime::LinkCount;

/// Counters of all links at the last look.
#[derive(Debug, Default)]
pub(super) struct Links {
    before: HashMap<(String, String), LinkCount>,
}

impl Links {
    /// Rows of the second that ends now; links without traffic have none. The first look only remembers the counters.
    pub(super) fn look(&mut self, second: u64, counts: Vec<LinkCount>) -> Vec<LinkSample> {
        let mut rows = Vec::new();
        for count in counts {
            let link = (count.from.clone(), count.to.clone());
            if let Some(before) = self.before.get(&link) {
                let row = LinkSample {
                    second,
                    from: count.from.clone(),
                    to: count.to.clone(),
                    bytes: count.bytes.saturating_sub(before.bytes),
                    packets: count.packets.saturating_sub(before.packets),
                    dropped: count.dropped.saturating_sub(before.dropped),
                    queued_bytes: count.queued_bytes,
                };
                if row.bytes + row.packets + row.dropped + row.queued_bytes > 0 {
                    rows.push(row);
                }
            }
            self.before.insert(link, count);
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Sample as _;

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
        assert_eq!(links.look(0, vec![count(500)]), []);
        let looks = [(0, 700), (1, 700), (2, 800)].map(|(second, bytes)| links.look(second, vec![count(bytes)]));
        let lines: Vec<_> = looks.iter().flatten().map(|row| row.line()).collect();
        assert_eq!(lines, ["0,a,b,200,20,0,0", "2,a,b,100,10,0,0"]);
    }
}
