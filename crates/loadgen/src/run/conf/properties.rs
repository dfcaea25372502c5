//! Java's `.properties` files.
//!
//! ```text
//! # comment, as is a line that begins with !
//! key = value       key:value       key value
//! long = one\
//!   two                        continued: "onetwo"
//! path = C:\\a\u00e9                escapes: \\ \t \n \r \f \uXXXX; a backslash before anything else is left out
//! ```
//!
//! Java reads them as ISO 8859-1; this parser reads a file that is valid UTF-8 as UTF-8.

/// A key and its value, both without escapes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Property {
    /// Number of the line it begins in, from 1.
    pub(super) line: usize,
    pub(super) key: String,
    pub(super) value: String,
}

/// Parses all properties in order; a key may appear again.
///
/// # Errors
/// A `\u` without four hexadecimal digits; the error names the line.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Property>, String> {
    let text = match str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().map(|byte| char::from(*byte)).collect(),
    };
    logical_lines(&text).into_iter().map(|(line, text)| property(line, &text)).collect()
}

/// Lines joined with their continuations, each with the number of its first line; without comments and empty lines.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut logical = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (index, line) in natural_lines(text).enumerate() {
        let line = line.trim_start_matches(is_space);
        let (number, mut so_far) = match open.take() {
            Some(open) => open,
            None if line.is_empty() || line.starts_with(['#', '!']) => continue,
            None => (index + 1, String::new()),
        };
        match line.strip_suffix('\\').filter(|_| ends_in_odd_backslashes(line)) {
            Some(line) => {
                so_far += line;
                open = Some((number, so_far));
            }
            None => {
                so_far += line;
                logical.push((number, so_far));
            }
        }
    }
    logical.extend(open);
    logical
}

/// Lines that end with LF, CR or both.
fn natural_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n').flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'))
}

fn ends_in_odd_backslashes(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

fn property(line: usize, text: &str) -> Result<Property, String> {
    let mut is_escaped = false;
    let key_end = text.char_indices().find(|(_, c)| {
        let ends = !is_escaped && (is_space(*c) || matches!(c, '=' | ':'));
        is_escaped = *c == '\\' && !is_escaped;
        ends
    });
    let key_end = key_end.map_or(text.len(), |(at, _)| at);
    let (key, rest) = text.split_at(key_end);
    let rest = rest.trim_start_matches(is_space);
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start_matches(is_space);
    let of = |text: &str| unescape(text).map_err(|wrong| format!("line {line}: {wrong}"));
    Ok(Property { line, key: of(key)?, value: of(value)? })
}

fn unescape(text: &str) -> Result<String, String> {
    let mut units = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let plain = match c {
            '\\' => match chars.next() {
                Some('u') => {
                    let digits: String = chars.by_ref().take(4).collect();
                    let is_number = digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                    let unit = u16::from_str_radix(&digits, 16).ok().filter(|_| is_number);
                    units.push(unit.ok_or_else(|| format!("\\u{digits}: want four hexadecimal digits"))?);
                    continue;
                }
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\u{c}',
                Some(other) => other,
                // A backslash at the end of the file.
                None => break,
            },
            c => c,
        };
        units.extend_from_slice(plain.encode_utf16(&mut [0; 2]));
    }
    Ok(String::from_utf16_lossy(&units))
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\u{c}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(usize, String, String)> {
        let properties = parse(text.as_bytes()).unwrap();
        properties.into_iter().map(|Property { line, key, value }| (line, key, value)).collect()
    }

    #[test]
    fn a_key_ends_at_equals_colon_or_space() {
        for text in ["k=v", "k:v", "k v", "  k  =  v", "k\t:v", "k =v\r\n", "k=v\r"] {
            assert_eq!(pairs(text), [(1, "k".into(), "v".into())], "{text:?}");
        }
        assert_eq!(pairs("k"), [(1, "k".into(), String::new())]);
        assert_eq!(pairs("k = = v"), [(1, "k".into(), "= v".into())]);
        assert_eq!(pairs("a\\ b\\=c = d"), [(1, "a b=c".into(), "d".into())]);
    }

    #[test]
    fn comments_are_skipped_and_continued_lines_joined() {
        let text = "# c = d\n\n  ! e\na = 1\\\n    2\\\n# no comment\nb = x\\\\\nc = y\\";
        let expected = [(4, "a", "12# no comment"), (7, "b", "x\\"), (8, "c", "y")];
        assert_eq!(pairs(text), expected.map(|(line, key, value)| (line, key.into(), value.into())));
    }

    #[test]
    fn escapes_are_resolved() {
        assert_eq!(pairs("k = a\\tb\\n\\u00e9\\q\\\\ ")[0].2, "a\tb\n\u{e9}q\\ ");
        assert_eq!(pairs("k = \\ud83d\\ude00")[0].2, "\u{1f600}");
        for text in ["k = \\u12", "k = \\u12g4", "k = \\u+123"] {
            assert!(parse(text.as_bytes()).unwrap_err().contains("line 1"), "{text}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf_8_are_latin_1() {
        assert_eq!(parse(b"k = \xe9").unwrap()[0].value, "\u{e9}");
        assert_eq!(parse("k = \u{e9}".as_bytes()).unwrap()[0].value, "\u{e9}");
    }
}
