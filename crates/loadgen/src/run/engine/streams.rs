use std::ops::Range;

use crate::run::Layout;

/// The streams of one publisher, which rotates over its topics.
///
/// Message m goes to topic m mod n, as number m / n of that topic's stream.
#[derive(Debug)]
pub(super) struct Streams {
    /// Number of the first stream; the others follow.
    first: u32,
    topics: u32,
    copies: Copies,
}

/// Deliveries per message.
#[derive(Debug)]
enum Copies {
    /// The same for all topics.
    Same(u64),
    /// By topic.
    Each(Vec<u64>),
}

impl Streams {
    /// The streams of `publisher`, as the layout numbers them.
    pub(super) fn of(layout: &Layout, publisher: u32, topics: u32) -> Self {
        let first = publisher * topics;
        let copies: Vec<_> = (first..first + topics).map(|stream| layout.copies(stream)).collect();
        Self::new(first, copies)
    }

    /// One stream per entry of `copies`.
    fn new(first: u32, copies: Vec<u64>) -> Self {
        let topics = copies.len() as u32;
        let same = copies.first().copied().filter(|&first| copies.iter().all(|&copies| copies == first));
        Self { first, topics, copies: same.map_or(Copies::Each(copies), Copies::Same) }
    }

    /// Number of the first stream.
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    pub(super) fn topics(&self) -> u32 {
        self.topics
    }

    /// Topic and sequence number of a message.
    #[inline]
    pub(super) fn at(&self, message: u64) -> (u32, u32) {
        if self.topics == 1 {
            return (0, message as u32);
        }
        let topics = u64::from(self.topics);
        ((message % topics) as u32, (message / topics) as u32)
    }

    /// Splits a range of messages into ranges of sequence numbers per stream.
    pub(super) fn parts(&self, messages: Range<u64>) -> impl Iterator<Item = (u32, Range<u32>)> {
        let topics = u64::from(self.topics);
        let touched = (messages.end - messages.start).min(topics);
        // Number of messages below `end` that went to `topic`.
        let below = move |end: u64, topic: u64| ((end + topics - 1 - topic) / topics) as u32;
        (messages.start..messages.start + touched).map(move |message| {
            let topic = message % topics;
            (self.first + topic as u32, below(messages.start, topic)..below(messages.end, topic))
        })
    }

    /// Number of deliveries that these messages call for.
    pub(super) fn deliveries(&self, messages: Range<u64>) -> u64 {
        match &self.copies {
            Copies::Same(copies) => (messages.end - messages.start) * copies,
            Copies::Each(copies) => {
                let of = |(stream, sequences): (u32, Range<u32>)| {
                    u64::from(sequences.end - sequences.start) * copies[(stream - self.first) as usize]
                };
                self.parts(messages).map(of).sum()
            }
        }
    }

    /// Largest number of deliveries of one message.
    pub(super) fn copies_max(&self) -> u64 {
        match &self.copies {
            Copies::Same(copies) => *copies,
            Copies::Each(copies) => copies.iter().copied().max().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn parts_are_what_single_messages_add_up_to() {
        for topics in 1..6_u32 {
            let streams = Streams::new(10, (1..=topics.into()).collect());
            for (start, end) in [(0, 0), (0, 1), (3, 4), (2, 9), (7, 30), (5, 5)] {
                let mut single: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
                let mut deliveries = 0;
                for message in start..end {
                    let (topic, sequence) = streams.at(message);
                    single.entry(10 + topic).or_default().push(sequence);
                    deliveries += u64::from(topic) + 1;
                }
                let parts: BTreeMap<_, Vec<u32>> =
                    streams.parts(start..end).map(|(stream, sequences)| (stream, sequences.collect())).collect();
                assert_eq!(parts, single, "{topics} topics, {start}..{end}");
                assert_eq!(streams.deliveries(start..end), deliveries);
            }
        }
    }

    #[test]
    fn the_same_copies_for_all_need_no_list() {
        let streams = Streams::new(0, vec![3, 3, 3]);
        assert!(matches!(streams.copies, Copies::Same(3)));
        assert_eq!((streams.deliveries(1..11), streams.copies_max()), (30, 3));
        assert_eq!(Streams::new(0, vec![1, 4, 2]).copies_max(), 4);
    }
}
