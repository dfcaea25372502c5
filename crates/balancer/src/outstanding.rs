//! Messages and bytes in one word, so that a single atomic operation changes both.

/// The messages handed to a client and not completed yet.
///
/// ```text
///  63       40 39                        0
/// +-----------+---------------------------+
/// | messages  |           bytes           |    16 million messages, 1 TB
/// +-----------+---------------------------+
/// ```
///
/// Words are added without a check: the callers' queues are bounded far below these limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outstanding {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Outstanding {
    pub(crate) fn from_word(word: u64) -> Self {
        Self { messages: word >> BYTES_BITS, bytes: word & BYTES_MASK }
    }

    pub(crate) fn to_word(self) -> u64 {
        self.messages << BYTES_BITS | self.bytes & BYTES_MASK
    }

    /// Subtracts messages and bytes, down to zero. Without messages there are no bytes, even if `bytes` was too small.
    pub(crate) fn without(self, messages: u64, bytes: u64) -> Self {
        let messages = self.messages.saturating_sub(messages);
        Self { messages, bytes: if messages == 0 { 0 } else { self.bytes.saturating_sub(bytes) } }
    }
}

const BYTES_BITS: u32 = 40;
const BYTES_MASK: u64 = (1 << BYTES_BITS) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outstanding_words_add_up() {
        let one = Outstanding { messages: 1, bytes: 100 };
        let sum = Outstanding::from_word(one.to_word() * 3);
        assert_eq!(sum, Outstanding { messages: 3, bytes: 300 });
        assert_eq!(sum.without(1, 90), Outstanding { messages: 2, bytes: 210 });
        assert_eq!(sum.without(2, 999), Outstanding { messages: 1, bytes: 0 });
        assert_eq!(sum.without(9, 10), Outstanding { messages: 0, bytes: 0 });
    }
}
