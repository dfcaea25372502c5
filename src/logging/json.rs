//! Log lines as JSON objects.

use std::fmt::{self, Write as _};

use serde_json::{Map, Value};
use tracing::Event;
use tracing::field::{Field, Visit};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

use super::{BoundedText, characters_maximum};

/// Writes an event as one line; texts are bounded as in the other form.
pub(super) fn write(mut writer: Writer<'_>, event: &Event<'_>, text_characters_maximum: usize) -> fmt::Result {
    let mut time = String::new();
    SystemTime.format_time(&mut Writer::new(&mut time))?;
    let mut fields = Fields { map: Map::new(), maximum: text_characters_maximum };
    fields.map.insert("time".to_owned(), time.into());
    fields.map.insert("level".to_owned(), event.metadata().level().as_str().to_ascii_lowercase().into());
    event.record(&mut fields);
    writeln!(writer, "{}", Value::Object(fields.map))
}

struct Fields {
    map: Map<String, Value>,
    maximum: usize,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        let name = field.name().strip_prefix("r#").unwrap_or(field.name());
        self.map.insert(name.to_owned(), value);
    }

    fn put_text(&mut self, field: &Field, value: &dyn fmt::Display) {
        let mut shown = String::new();
        let mut text = BoundedText::new(&mut shown, characters_maximum(field.name(), self.maximum));
        let _ = write!(text, "{value}").and_then(|()| text.finish());
        self.put(field, shown.into());
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put_text(field, &value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // The quotes of a text would only be escaped.
        let shown = format!("{value:?}");
        let plain = shown.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        self.put_text(field, &plain.unwrap_or(&shown));
    }
}
