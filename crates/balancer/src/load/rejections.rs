/// Which of a client's last acknowledgements were rejections, and how long it gets no message because of that.
///
/// The time that a rejection took is no evidence of speed: a worker whose database is gone rejects a message in no time.
/// So only the number counts.
#[derive(Debug, Default)]
pub(super) struct Rejections {
    /// The last acknowledgements, the latest in the lowest bit; 1 = a rejection.
    last: u32,
    /// Time from the last rejection to the next message, while the client is a suspect.
    pause_ns: u64,
}

impl Rejections {
    /// Adds messages that the client rejected.
    pub(super) fn rejected(&mut self, messages: u32) {
        let added = messages.min(LAST);
        self.last = (self.last << added | ((1 << added) - 1)) & MASK;
        let pause_ns = (2 * self.pause_ns).clamp(PAUSE_LEAST_NS, PAUSE_MOST_NS);
        self.pause_ns = if self.is_suspect() { pause_ns } else { 0 };
    }

    /// Adds messages that the client accepted.
    pub(super) fn accepted(&mut self, messages: u32) {
        self.last = self.last << messages.min(LAST) & MASK;
        self.pause_ns = 0;
    }

    /// Returns how many of the last [`LAST`] acknowledgements were rejections.
    pub(super) fn number(&self) -> u32 {
        self.last.count_ones()
    }

    /// Returns whether most of the last acknowledgements were rejections.
    pub(super) fn is_suspect(&self) -> bool {
        2 * self.number() > LAST
    }

    /// Returns the pause after the last acknowledgement.
    pub(super) fn pause_ns(&self) -> u64 {
        self.pause_ns
    }
}

/// Number of acknowledgements that count.
const LAST: u32 = 20;
const MASK: u32 = (1 << LAST) - 1;
/// The pause doubles with each rejection, from a second to about a minute. So a client that rejects everything gets few
/// messages at any rate, and one that has recovered is noticed within a minute.
const PAUSE_LEAST_NS: u64 = 1_000_000_000;
const PAUSE_MOST_NS: u64 = 64_000_000_000;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn more_than_half_of_twenty_make_a_suspect() {
        let mut rejections = Rejections::default();
        rejections.rejected(10);
        assert!(!rejections.is_suspect(), "one in two of any twenty");
        rejections.rejected(1);
        assert_eq!((rejections.is_suspect(), rejections.number()), (true, 11));
        rejections.accepted(9);
        assert!(rejections.is_suspect());
        rejections.accepted(1);
        assert_eq!((rejections.is_suspect(), rejections.number()), (false, 10), "the first is forgotten");
    }

    #[test]
    fn pause_of_a_suspect_doubles_until_it_accepts_a_message() {
        let mut rejections = Rejections::default();
        let mut pauses = || {
            rejections.rejected(1);
            rejections.pause_ns() / 1_000_000_000
        };
        let seen: Vec<_> = (0..19).map(|_| pauses()).collect();
        assert_eq!(seen[..10], [0; 10]);
        assert_eq!(seen[10..], [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        rejections.accepted(1);
        assert_eq!(rejections.pause_ns(), 0);
        rejections.rejected(1);
        assert_eq!(rejections.pause_ns(), PAUSE_LEAST_NS);
    }

    proptest! {
        #[test]
        fn the_last_twenty_count_whatever_came_before(
            calls in prop::collection::vec((any::<bool>(), prop_oneof![0..3_u32, Just(u32::MAX)]), 0..60),
        ) {
            let (mut rejections, mut model) = (Rejections::default(), VecDeque::from([false; LAST as usize]));
            for (is_rejection, messages) in calls {
                if is_rejection { rejections.rejected(messages) } else { rejections.accepted(messages) }
                for _ in 0..messages.min(LAST) {
                    model.pop_front();
                    model.push_back(is_rejection);
                }
                let number = model.iter().filter(|&&is_rejection| is_rejection).count();
                prop_assert_eq!(rejections.number() as usize, number);
            }
        }
    }
}
