//! Lines that a client program prints.

/// A line of a client program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// All clients are connected.
    Ready,
    /// All messages have their line.
    Done,
    /// A message that ended at its publisher.
    Published { stream: u32, number: u32, due_ns: u64, sent_ns: u64, end: PublishEnd },
    /// A message that arrived.
    Received { receiver: u32, stream: u32, number: u32, due_ns: u64, received_ns: u64, is_repeated: bool },
}

/// How a message ended at its publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PublishEnd {
    /// Acknowledged at this time; written at this time if there is no acknowledgement.
    Acknowledged(u64),
    /// The system does not have it.
    Refused,
    /// Unknown: the system may have it.
    Unconfirmed,
}

/// Reads a line without its end.
///
/// # Errors
/// It has another form. The text is the wanted one.
pub(super) fn parse(line: &[u8]) -> Result<Line, &'static str> {
    let mut words = Words(line);
    let parsed = match words.next() {
        Some(b"ready") => Some(Line::Ready),
        Some(b"done") => Some(Line::Done),
        Some(b"P") => return published(&mut words).filter(|_| words.is_over()).ok_or(PUBLISHED),
        Some(b"S") => return received(&mut words).filter(|_| words.is_over()).ok_or(RECEIVED),
        _ => None,
    };
    parsed.filter(|_| words.is_over()).ok_or(ANY)
}

const PUBLISHED: &str = "want: P stream number due_ns sent_ns acked_ns, where the last may be - or refused";
const RECEIVED: &str = "want: S receiver stream number due_ns received_ns dup, where dup is 0 or 1";
const ANY: &str = "want ready, done, a P line or an S line";

fn published(words: &mut Words<'_>) -> Option<Line> {
    Some(Line::Published {
        stream: small(words)?,
        number: small(words)?,
        due_ns: number(words.next()?)?,
        sent_ns: number(words.next()?)?,
        end: match words.next()? {
            b"-" => PublishEnd::Unconfirmed,
            b"refused" => PublishEnd::Refused,
            time => PublishEnd::Acknowledged(number(time)?),
        },
    })
}

fn received(words: &mut Words<'_>) -> Option<Line> {
    Some(Line::Received {
        receiver: small(words)?,
        stream: small(words)?,
        number: small(words)?,
        due_ns: number(words.next()?)?,
        received_ns: number(words.next()?)?,
        is_repeated: match words.next()? {
            b"0" => false,
            b"1" => true,
            _ => return None,
        },
    })
}

/// A number below `u32::MAX`, which is no number of a message.
fn small(words: &mut Words<'_>) -> Option<u32> {
    u32::try_from(number(words.next()?)?).ok().filter(|number| *number < u32::MAX)
}

fn number(digits: &[u8]) -> Option<u64> {
    let add = |sum: u64, digit: &u8| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        sum.checked_mul(10)?.checked_add(digit.into())
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

/// Words of a line, with one space between them.
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == b' ').unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest.get(1..).unwrap_or_default();
        (!word.is_empty()).then_some(word)
    }

    fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_documented() {
        let published = |end| Line::Published { stream: 1, number: 20, due_ns: 300, sent_ns: 400, end };
        let received = |is_repeated| Line::Received {
            receiver: 9,
            stream: 1,
            number: 20,
            due_ns: 300,
            received_ns: u64::MAX,
            is_repeated,
        };
        for (text, line) in [
            ("ready", Line::Ready),
            ("done", Line::Done),
            ("P 1 20 300 400 500", published(PublishEnd::Acknowledged(500))),
            ("P 1 20 300 400 -", published(PublishEnd::Unconfirmed)),
            ("P 1 20 300 400 refused", published(PublishEnd::Refused)),
            ("S 9 1 20 300 18446744073709551615 0", received(false)),
            ("S 9 1 20 300 18446744073709551615 1", received(true)),
        ] {
            assert_eq!(parse(text.as_bytes()), Ok(line), "{text}");
        }
    }

    #[test]
    fn other_lines_are_errors_with_the_wanted_form() {
        for (text, wanted) in [
            ("", ANY),
            ("hello", ANY),
            ("ready now", ANY),
            ("p 1 2 3 4 5", ANY),
            ("P", PUBLISHED),
            ("P 1 20 300 400", PUBLISHED),
            ("P 1 20 300 400 500 6", PUBLISHED),
            ("P 1 20 300 400 lost", PUBLISHED),
            ("P 1  20 300 400 500", PUBLISHED),
            ("P -1 20 300 400 500", PUBLISHED),
            ("P 1 4294967295 300 400 500", PUBLISHED),
            ("P 1 20 300 400 18446744073709551616", PUBLISHED),
            ("S 9 1 20 300 400", RECEIVED),
            ("S 9 1 20 300 400 2", RECEIVED),
            ("S 9 1 20 300 4.5 0", RECEIVED),
        ] {
            assert_eq!(parse(text.as_bytes()), Err(wanted), "{text}");
        }
    }

    #[test]
    fn any_bytes_are_read_without_panic() {
        let mut bytes = vec![0_u8; 40];
        let mut state = 1_u64;
        for _ in 0..20_000 {
            for byte in &mut bytes {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = b"PS 0123456789-\xff"[(state >> 33) as usize % 15];
            }
            let _ = parse(&bytes);
        }
    }
}
