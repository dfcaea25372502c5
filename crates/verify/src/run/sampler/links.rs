//! Traffic of all links, second by second.

use std::collections::HashMap;

use crate::results::LinkSample;
use crate::runtime::LinkCount;

/// Counters of all links at the last look.
#[derive(Debug, Default)]
pub(super) struct Links {
    before: HashMap<(String, String), (u64, LinkCount)>,
}

impl Links {
    /// Rows of the second that ends now; links without traffic have none. The first look only remembers the counters.
    /// Traffic of seconds without a look is spread over them.
    pub(super) fn look(&mut self, second: u64, counts: Vec<LinkCount>) -> Vec<LinkSample> {
        let mut rows = Vec::new();
        for count in counts {
            let link = (count.from.clone(), count.to.clone());
            if let Some((looked, before)) = self.before.get(&link) {
                let seconds = second.saturating_sub(*looked).max(1);
                for number in 0..seconds {
                    // All parts together are the whole.
                    let part = |now: u64, before: u64| {
                        let all = now.saturating_sub(before);
                        all * (number + 1) / seconds - all * number / seconds
                    };
                    let row = LinkSample {
                        second: second + 1 + number - seconds,
                        from: count.from.clone(),
                        to: count.to.clone(),
                        bytes: part(count.bytes, before.bytes),
                        packets: part(count.packets, before.packets),
                        dropped: part(count.dropped, before.dropped),
                        queued_bytes: count.queued_bytes,
                    };
                    if row.bytes + row.packets + row.dropped + row.queued_bytes > 0 {
                        rows.push(row);
                    }
                }
            }
            self.before.insert(link, (second, count));
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
        // Without an answer in second 3.
        assert_eq!(links.look(3, Vec::new()), []);
        let lines: Vec<_> = links.look(5, vec![count(1805)]).iter().map(|row| row.line()).collect();
        assert_eq!(lines, ["3,a,b,335,33,0,0", "4,a,b,335,33,0,0", "5,a,b,335,34,0,0"]);
    }
}
