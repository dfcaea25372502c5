//! Texts of others on a terminal: of a peer, of a file that someone else has written, of a directory.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

/// A text in one line, without characters that a terminal acts on or that hide or reorder others: these are escaped, as
/// `\u001b`.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, &[])
}

/// As [`printable`], cut to `most` characters.
pub fn printable_within(text: &str, most: usize) -> Cow<'_, str> {
    let text = printable(text);
    match text.char_indices().nth(most) {
        None => text,
        Some(_) => {
            let cut = text.char_indices().nth(most.saturating_sub(1)).map_or(0, |(at, _)| at);
            Cow::Owned(format!("{}…", &text[..cut]))
        }
    }
}

/// As [`printable`], with line ends and tabs as they are.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, &['\n', '\t'])
}

fn escaped<'a>(text: &'a str, kept: &[char]) -> Cow<'a, str> {
    let is_escaped = |character: char| acts(character) && !kept.contains(&character);
    let Some(first) = text.find(is_escaped) else { return Cow::Borrowed(text) };
    let mut all = text[..first].to_owned();
    for character in text[first..].chars() {
        match character {
            character if !is_escaped(character) => all.push(character),
            '\n' => all.push_str("\\n"),
            '\r' => all.push_str("\\r"),
            '\t' => all.push_str("\\t"),
            // JSON reads this form too.
            character => character.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                let _ = write!(all, "\\u{unit:04x}");
            }),
        }
    }
    Cow::Owned(all)
}

/// Whether a terminal acts on a character, or shows others in another order or place because of it.
fn acts(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Writes text as [`printable_lines`] has it. JSON stays the same JSON. Bytes that are no text become U+FFFD.
#[derive(Debug)]
pub struct Printable<W> {
    out: W,
    /// The begin of a character whose end is still to come.
    begun: Vec<u8>,
}

impl<W: Write> Printable<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> Self {
        Self { out, begun: Vec::new() }
    }
}

impl<W: Write> Write for Printable<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut rest = &all[..];
        while !rest.is_empty() {
            let (valid, behind, wrong) = match std::str::from_utf8(rest) {
                Ok(text) => (text, &[][..], Some(0)),
                Err(error) => {
                    let (valid, behind) = rest.split_at(error.valid_up_to());
                    (std::str::from_utf8(valid).unwrap_or_default(), behind, error.error_len())
                }
            };
            self.out.write_all(printable_lines(valid).as_bytes())?;
            rest = match wrong {
                Some(0) => behind,
                Some(length) => {
                    self.out.write_all("\u{fffd}".as_bytes())?;
                    &behind[length..]
                }
                None => {
                    self.begun = behind.to_vec();
                    &[]
                }
            };
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_act_are_escaped_and_others_stay() {
        for text in ["", "a \"b\" \\ é 漢 हिन्दी e\u{301} 🦀"] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text), "{text}");
        }
        for (text, expected) in [
            ("\u{1b}[31mred", "\\u001b[31mred"),
            ("a\nb\r\tc\u{7f}", "a\\nb\\r\\tc\\u007f"),
            ("\u{9b}2J", "\\u009b2J"),
            ("abc\u{202e}def\u{feff}", "abc\\u202edef\\ufeff"),
            ("\u{e0041}", "\\udb40\\udc41"),
        ] {
            assert_eq!(printable(text), expected);
        }
        assert_eq!(printable_lines("a\n\tb\u{1b}"), "a\n\tb\\u001b");
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(printable_within("12345", 5), "12345");
        assert_eq!(printable_within("é23456", 5), "é234…");
        assert_eq!(printable_within("\u{1b}\u{1b}", 7), "\\u001b…");
        assert_eq!(printable_within("12", 0), "…");
    }

    #[test]
    fn writer_escapes_whatever_the_pieces() {
        let text = "{\"topic\":\"a\u{9b}é\u{202e}\"}\n\u{1b}漢".as_bytes();
        let bytes = [text, b"\xff\xc3x\xe2\x82"].concat();
        for length in 1..=bytes.len() {
            let mut out = Vec::new();
            let mut printable = Printable::new(&mut out);
            bytes.chunks(length).for_each(|piece| printable.write_all(piece).unwrap());
            let expected = "{\"topic\":\"a\\u009bé\\u202e\"}\n\\u001b漢\u{fffd}\u{fffd}x";
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{length}");
        }
    }
}
