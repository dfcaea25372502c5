//! An SVG document that grows downwards.

use std::fmt::{self, Write};

use super::style;

/// Elements drawn so far, and their bottom.
#[derive(Debug)]
pub(super) struct Svg {
    width: f64,
    /// Where the next element may begin.
    bottom: f64,
    body: String,
}

impl Svg {
    pub(super) fn new(width: f64, bottom: f64) -> Self {
        Self { width, bottom, body: String::new() }
    }

    pub(super) fn width(&self) -> f64 {
        self.width
    }

    pub(super) fn bottom(&self) -> f64 {
        self.bottom
    }

    /// Sets the top of the next element, or the end of the drawing.
    pub(super) fn end_at(&mut self, bottom: f64) {
        self.bottom = bottom;
    }

    /// Draws `text` with its base line at `y`.
    pub(super) fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escape(text);
        self.put(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>"));
    }

    /// Draws centred `text` around `x`, but inside the figure.
    pub(super) fn text_inside(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let half = text_width(text, super::TEXT_SIZE) / 2.0;
        self.text(x.min(self.width - half).max(half), y, class, text);
    }

    /// Draws `text`, shortened to `room`; its tooltip has the whole text.
    pub(super) fn text_within(&mut self, room: f64, x: f64, y: f64, class: &str, text: &str) {
        let short = shortened(text, room);
        if short == text {
            return self.text(x, y, class, text);
        }
        let (text, short) = (escape(text), escape(&short));
        self.put(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\"><title>{text}</title>{short}</text>"));
    }

    pub(super) fn rect(&mut self, class: &str, x: f64, y: f64, width: f64, height: f64) {
        self.put(format_args!(
            "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height:.1}\"/>"
        ));
    }

    pub(super) fn path(&mut self, class: &str, path: &str) {
        if !path.is_empty() {
            self.put(format_args!("<path class=\"{class}\" d=\"{path}\"/>"));
        }
    }

    pub(super) fn into_file(self, title: &str, caption: &str) -> String {
        let Self { width, bottom, body } = self;
        let (title, caption, rules) = (escape(title), escape(caption), style::file_rules());
        // The file has a margin and a background: the viewer may be dark although the reader's system is not.
        let (all_width, all_height) = (width + 2.0 * MARGIN, bottom + 2.0 * MARGIN);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-{MARGIN} -{MARGIN} {all_width:.0} {all_height:.0}\" \
             width=\"{all_width:.0}\" height=\"{all_height:.0}\" role=\"img\">\
             <title>{title}</title><desc>{caption}</desc><style>{rules}</style>\
             <rect class=\"page\" x=\"-{MARGIN}\" y=\"-{MARGIN}\" width=\"100%\" height=\"100%\"/>{body}</svg>\n"
        )
    }

    pub(super) fn into_element(self, title: &str) -> String {
        let Self { width, bottom, body } = self;
        let (class, title) = (if width < 500.0 { "narrow" } else { "wide" }, escape(title));
        format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {width:.0} {bottom:.0}\" role=\"img\" aria-label=\"{title}\">{body}</svg>"
        )
    }

    fn put(&mut self, element: fmt::Arguments<'_>) {
        self.body.write_fmt(element).expect("a String takes everything");
        self.body.push('\n');
    }
}

/// Escapes `text` for elements and attributes of XML and HTML; replaces characters that XML forbids.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // In an attribute, parsers would read these as spaces.
            '\n' => escaped.push_str("&#10;"),
            '\t' => escaped.push_str("&#9;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Approximate width of `text`. The reader's font is unknown, so that the estimate is rather too large.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | 't' | 'f' | 'r' | '.' | ',' | ':' | ';' | '\'' | '|' | '(' | ')' | ' ' | '/' => 0.4,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.98,
        'A'..='Z' => 0.72,
        c if c.is_ascii() => 0.64,
        // Ideographs and similar characters are square.
        c if c >= '\u{1100}' => 1.0,
        _ => 0.7,
    };
    text.chars().map(em).sum::<f64>() * size
}

/// `text` with enough of its middle removed to fit.
fn shortened(text: &str, room: f64) -> String {
    if text_width(text, super::TEXT_SIZE) <= room {
        return text.to_owned();
    }
    let chars: Vec<_> = text.chars().collect();
    for keep in (2..chars.len()).rev() {
        // Keep more of the end, which more often distinguishes names.
        let (head, tail) = (keep / 2, keep - keep / 2);
        let short = chars[..head].iter().chain(&['…']).chain(&chars[chars.len() - tail..]).collect::<String>();
        if text_width(&short, super::TEXT_SIZE) <= room {
            return short;
        }
    }
    "…".to_owned()
}

const MARGIN: f64 = 12.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_are_escaped() {
        assert_eq!(escape("a<b>&\"c\"\u{0}\n"), "a&lt;b&gt;&amp;&quot;c&quot;\u{fffd}&#10;");
    }

    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(shortened("sub-1", 100.0), "sub-1");
        let short = shortened("a-very-long-client-id-of-subscriber-17", 120.0);
        assert!(short.starts_with("a-very") && short.ends_with("-17") && short.contains('…'), "{short}");
        assert!(text_width(&short, crate::report::chart::TEXT_SIZE) <= 120.0);
        assert_eq!(shortened("abcdef", 1.0), "…");
    }
}
