//! The log: one line for each event, on standard error.
//!
//! Clients choose much of its text and cause many of its lines. This module bounds both, for every line.

mod json;
mod level;

use std::fmt::{self, Write as _};
use std::io::IsTerminal as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tenbin_broker::LogLimiter;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{self, Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

pub(crate) use level::LogLevel;

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// `time LEVEL message field=value`
    Text,
    /// A JSON object a line.
    Json,
}

/// Sends log lines of `level` and more severe ones to standard error. `text_characters_maximum` bounds each text that a
/// client may have chosen; `limiter` bounds the lines by the field `peer`, and those without it by their kind.
pub(crate) fn init(
    level: Level,
    form: LogFormat,
    text_characters_maximum: usize,
    limiter: Arc<LogLimiter>,
) -> Arc<LogLevel> {
    let colours = std::io::stderr().is_terminal() && form == LogFormat::Text;
    let levels = Arc::new(LogLevel::new(level));
    let form = match form {
        LogFormat::Text => Form::Text(format::format().with_target(false)),
        LogFormat::Json => Form::Json { text_characters_maximum },
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .event_format(PeerLimited { form, limiter, levels: Arc::clone(&levels) })
        .fmt_fields(BoundedFields { text_characters_maximum });
    let (filter, handle) = reload::Layer::new(LevelFilter::from_level(level));
    levels.let_in_by(move |level| drop(handle.reload(LevelFilter::from_level(level))));
    tracing_subscriber::registry().with(filter).with(lines).init();
    levels
}

/// Formats events, except those that the limiter suppresses.
struct PeerLimited {
    form: Form,
    limiter: Arc<LogLimiter>,
    levels: Arc<LogLevel>,
}

enum Form {
    Text(Format),
    Json { text_characters_maximum: usize },
}

impl<S, N> FormatEvent<S, N> for PeerLimited
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        if !self.levels.allows(event) {
            return Ok(()); // an empty text is not written
        }
        let is_within = match peer_of(event) {
            Some(peer) => self.limiter.allows(peer),
            None => *event.metadata().level() > Level::INFO || self.limiter.allows_kind(event.metadata().name()),
        };
        if !is_within {
            return Ok(());
        }
        match &self.form {
            Form::Text(format) => format.format_event(context, writer, event),
            Form::Json { text_characters_maximum } => json::write(writer, event, *text_characters_maximum),
        }
    }
}

/// The address in the field `peer`.
fn peer_of(event: &Event<'_>) -> Option<IpAddr> {
    struct Peer(Option<IpAddr>);

    impl Visit for Peer {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            if field.name() == PEER {
                let peer = format!("{value:?}");
                let address = peer.parse().ok().map(|address: SocketAddr| address.ip()).or_else(|| peer.parse().ok());
                // Processes on this machine share the bound of its loopback address.
                self.0 = Some(address.unwrap_or(Ipv4Addr::LOCALHOST.into()));
            }
        }
    }

    event.metadata().fields().field(PEER)?;
    let mut peer = Peer(None);
    event.record(&mut peer);
    peer.0
}

/// Formats fields as `name=value`, with values cut to a number of characters.
struct BoundedFields {
    text_characters_maximum: usize,
}

impl<'w> FormatFields<'w> for BoundedFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut visitor =
            BoundedVisitor { writer, maximum: self.text_characters_maximum, is_first: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct BoundedVisitor<'w> {
    writer: Writer<'w>,
    maximum: usize,
    is_first: bool,
    result: fmt::Result,
}

impl BoundedVisitor<'_> {
    fn write(&mut self, name: &str, value: &dyn fmt::Debug) -> fmt::Result {
        if !std::mem::take(&mut self.is_first) {
            self.writer.write_char(' ')?;
        }
        let name = name.strip_prefix("r#").unwrap_or(name);
        match name {
            "message" => {}
            _ if self.writer.has_ansi_escapes() => write!(self.writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m")?,
            _ => write!(self.writer, "{name}=")?,
        }
        let mut text = BoundedText::new(&mut self.writer, characters_maximum(name, self.maximum));
        write!(text, "{value:?}")?;
        text.finish()
    }
}

impl Visit for BoundedVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.record_debug(field, &format_args!("{value}")),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.result.is_ok() {
            self.result = self.write(field.name(), value);
        }
    }
}

/// Writer that cuts a text to a number of characters and appends the whole length in bytes if it was longer. Control
/// characters are escaped. Quotes around the text do not count, and stay.
struct BoundedText<'a, W> {
    out: &'a mut W,
    left: usize,
    bytes: usize,
    is_quoted: bool,
    /// The first character beyond the bound.
    beyond: Option<char>,
    /// Byte offset of [`beyond`](Self::beyond).
    cut_at: usize,
}

impl<'a, W: fmt::Write> BoundedText<'a, W> {
    fn new(out: &'a mut W, characters_maximum: usize) -> Self {
        Self { out, left: characters_maximum, bytes: 0, is_quoted: false, beyond: None, cut_at: 0 }
    }

    fn finish(self) -> fmt::Result {
        match self.beyond {
            None => Ok(()),
            // The closing quote of a text of exactly the maximum length.
            Some('"') if self.is_quoted && self.bytes == self.cut_at + 1 => self.out.write_char('"'),
            Some(_) if self.is_quoted => write!(self.out, "…\" ({} bytes)", self.bytes - 2),
            Some(_) => write!(self.out, "… ({} bytes)", self.bytes),
        }
    }
}

impl<W: fmt::Write> fmt::Write for BoundedText<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text.chars();
        while self.beyond.is_none()
            && let Some(next) = rest.next()
        {
            match next {
                '"' if self.bytes == 0 => self.is_quoted = true,
                _ if self.left == 0 => (self.beyond, self.cut_at) = (Some(next), self.bytes),
                _ => self.left -= 1,
            }
            self.bytes += next.len_utf8();
            match (self.beyond, next.is_control()) {
                (Some(_), _) => {}
                (None, true) => write!(self.out, "{}", next.escape_default())?,
                (None, false) => self.out.write_char(next)?,
            }
        }
        self.bytes += rest.as_str().len();
        Ok(())
    }
}

/// Bound on the characters of a field.
fn characters_maximum(name: &str, maximum: usize) -> usize {
    if OWN_FIELDS.contains(&name) { maximum.max(OWN_CHARACTERS_MAX) } else { maximum }
}

/// Field with the address of the peer that caused the line.
const PEER: &str = "peer";
/// Fields with texts of the broker, the operator or the system: errors and paths must stay readable as a whole.
const OWN_FIELDS: [&str; 8] = ["message", "error", "directory", "file", "key", "old", "new", "health"];
/// Maximum number of characters of such a field.
const OWN_CHARACTERS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn bounded(value: &dyn fmt::Debug) -> String {
        let mut out = String::new();
        let mut text = BoundedText::new(&mut out, 8);
        write!(text, "{value:?}").and_then(|()| text.finish()).unwrap();
        out
    }

    #[test]
    fn texts_within_the_maximum_stay_whole() {
        for text in ["", "a", "12345678", "ääääääää", "a\"b\"c"] {
            assert_eq!(bounded(&text), format!("{text:?}"));
            assert_eq!(bounded(&format_args!("{text}")), text);
        }
    }

    #[test]
    fn longer_texts_are_cut_and_say_their_length() {
        assert_eq!(bounded(&"123456789"), "\"12345678…\" (9 bytes)");
        assert_eq!(bounded(&format_args!("123456789")), "12345678… (9 bytes)");
        assert_eq!(bounded(&"é".repeat(30_000)), "\"éééééééé…\" (60000 bytes)");
        assert_eq!(bounded(&format_args!("{}{}", "x".repeat(9), "y".repeat(1000))), "xxxxxxxx… (1009 bytes)");
        assert_eq!(bounded(&Some("123456789")), "Some(\"12… (17 bytes)");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(bounded(&format_args!("a\n\x1b[31m")), "a\\n\\u{1b}[31m");
        assert_eq!(bounded(&"a\nb"), "\"a\\nb\"");
    }
}
