//! YAML as a tree that knows the place of each value.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::error::{Complaints, Place};

/// A value and its place.
#[derive(Debug, Clone)]
pub(crate) struct YamlNode {
    pub(crate) place: Place,
    pub(crate) value: Value,
}

/// A value. Scalars keep their spelling, so that `3.10` stays a version.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Null,
    Text(String),
    List(Vec<YamlNode>),
    Map(Vec<Entry>),
}

/// A key of a map and its value.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) place: Place,
    pub(crate) node: YamlNode,
}

impl YamlNode {
    /// Reads a YAML document.
    pub(crate) fn parse(text: &str, complaints: &mut Complaints) -> Option<Self> {
        match serde_saphyr::from_str::<Spanned<Raw>>(text) {
            Ok(raw) => Some(convert(raw, text, complaints)),
            Err(error) => {
                let place = error.location().map_or(Place::default(), place);
                let message = error.without_snippet().to_string();
                let end = message.rfind(" at line ").unwrap_or(message.len());
                complaints.add(place, message[..end].to_owned(), None);
                None
            }
        }
    }

    /// This tree, overridden by the values of `over`. Maps are merged key by key, and a null removes a key.
    pub(crate) fn merged(&self, over: &Self) -> Self {
        let (Value::Map(below), Value::Map(above)) = (&self.value, &over.value) else { return over.clone() };
        let mut entries = below.clone();
        for entry in above {
            match entries.iter_mut().find(|known| known.key == entry.key) {
                Some(known) => known.node = known.node.merged(&entry.node),
                None => entries.push(entry.clone()),
            }
        }
        Self { place: self.place, value: Value::Map(entries) }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// The value of `key` in a map.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match &self.value {
            Value::Map(entries) => {
                entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node).filter(|node| !node.is_null())
            }
            _ => None,
        }
    }

    /// As [`Self::get`], to change it. In a list, `key` is the `name` of an element.
    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        match &mut self.value {
            Value::Map(entries) => entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.node),
            Value::List(nodes) => nodes
                .iter_mut()
                .find(|node| matches!(node.get("name"), Some(Self { value: Value::Text(name), .. }) if name == key)),
            Value::Null | Value::Text(_) => None,
        }
    }

    /// `a list`, for messages.
    pub(crate) fn description(&self) -> &'static str {
        match self.value {
            Value::Null => "empty",
            Value::Text(_) => "a single value",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }
}

fn place(location: Location) -> Place {
    Place { line: location.line() as u32, column: location.column() as u32 }
}

fn convert(raw: Spanned<Raw>, text: &str, complaints: &mut Complaints) -> YamlNode {
    let at = place(raw.referenced);
    let span = raw.defined.span();
    let start = span.byte_offset().map(|offset| offset as usize);
    let spelling = || {
        let start = start?;
        text.get(start..start + span.byte_len()? as usize)
    };
    let value = match raw.value {
        Raw::Null => {
            if let Some(tag) = start.and_then(|start| tag_before(text, start)) {
                complaints.add(
                    at,
                    format!("{tag} is a tag of YAML here, and not a value"),
                    format!("put it in quotes: \"{tag}\""),
                );
            }
            Value::Null
        }
        Raw::Text(text) => Value::Text(text),
        Raw::Scalar(parsed) => Value::Text(spelling().map_or(parsed, |text| text.trim().to_owned())),
        Raw::List(nodes) => Value::List(nodes.into_iter().map(|node| convert(node, text, complaints)).collect()),
        Raw::Map(entries) => Value::Map(
            entries
                .into_iter()
                .map(|(key, node)| Entry {
                    place: place(key.referenced),
                    key: key.value,
                    node: convert(node, text, complaints),
                })
                .collect(),
        ),
    };
    YamlNode { place: at, value }
}

/// A word with `!` just before `offset`: YAML takes `target: !broker-1` as an empty value with a tag.
fn tag_before(text: &str, offset: usize) -> Option<&str> {
    let line = text.get(..offset)?.trim_end().rsplit('\n').next()?;
    let word = line.rsplit([' ', ',', '[', '{']).next()?;
    (word.starts_with('!') && word.len() > 1).then_some(word)
}

enum Raw {
    Null,
    Text(String),
    /// A number or boolean, as parsed.
    Scalar(String),
    List(Vec<Spanned<Self>>),
    Map(Vec<(Spanned<String>, Spanned<Self>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Scalar(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Scalar(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Scalar(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Scalar(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = access.next_element()? {
            nodes.push(node);
        }
        Ok(Raw::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Raw::Map(entries))
    }
}
