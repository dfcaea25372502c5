//! The keys of one map of a template, each read once.

use std::fmt::Display;
use std::str::FromStr;

use super::error::{Complaints, Place};
use super::node::{Entry, Value, YamlNode};

/// A map whose keys are being read.
pub(crate) struct Fields<'n> {
    /// `systems.pub`, for messages.
    path: String,
    place: Place,
    entries: &'n [Entry],
    known: Vec<&'static str>,
}

impl<'n> Fields<'n> {
    /// The keys of `node`, which must be a map.
    pub(crate) fn of(node: &'n YamlNode, path: impl Into<String>, complaints: &mut Complaints) -> Option<Self> {
        let path = path.into();
        let entries = match &node.value {
            Value::Map(entries) => entries.as_slice(),
            Value::Null => &[],
            _ => {
                complaints.add(
                    node.place,
                    format!("{path} is {}", node.description()),
                    "want a map of keys and values".to_owned(),
                );
                return None;
            }
        };
        Some(Self { path, place: node.place, entries, known: Vec::new() })
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// The value of `key`. A null counts as absent, so that a variant can remove a key.
    pub(crate) fn node(&mut self, key: &'static str) -> Option<&'n YamlNode> {
        self.known.push(key);
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node).filter(|node| !node.is_null())
    }

    /// The value of `key`, read by `parse`.
    pub(crate) fn parsed<T, E: Display>(
        &mut self,
        key: &'static str,
        complaints: &mut Complaints,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let node = self.node(key)?;
        scalar(node, &format!("{}.{key}", self.path), complaints, parse)
    }

    /// The value of `key`, read from its text form.
    pub(crate) fn value<T: FromStr>(&mut self, key: &'static str, complaints: &mut Complaints) -> Option<T>
    where
        T::Err: Display,
    {
        self.parsed(key, complaints, str::parse)
    }

    /// As [`Self::value`], for a key that must be there.
    pub(crate) fn required<T: FromStr>(&mut self, key: &'static str, complaints: &mut Complaints) -> Option<T>
    where
        T::Err: Display,
    {
        if self.node(key).is_none() {
            self.missing(key, complaints);
        }
        self.value(key, complaints)
    }

    /// Adds the mistake that `key` is missing.
    pub(crate) fn missing(&self, key: &str, complaints: &mut Complaints) {
        complaints.add(self.place, format!("{} lacks {key}", self.path), format!("add \"{key}:\""));
    }

    /// The name at `key` in a table of names.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&str, T)],
        complaints: &mut Complaints,
    ) -> Option<T> {
        let node = self.node(key)?;
        let text = scalar(node, &format!("{}.{key}", self.path), complaints, |text| Ok::<_, String>(text.to_owned()))?;
        let found = choices.iter().find(|(name, _)| *name == text).map(|&(_, choice)| choice);
        if found.is_none() {
            complaints.unknown(node.place, key, &text, choices.iter().map(|(name, _)| *name));
        }
        found
    }

    /// `true` or `false` at `key`; `false` if it is absent.
    pub(crate) fn flag(&mut self, key: &'static str, complaints: &mut Complaints) -> bool {
        let parse = |text: &str| {
            text.parse::<bool>().map_err(|_| format!("{text:?} is neither true nor false: give one of them"))
        };
        self.parsed(key, complaints, parse).unwrap_or_default()
    }

    /// A number at `key`, from 1 to `most`.
    pub(crate) fn count(&mut self, key: &'static str, most: u32, complaints: &mut Complaints) -> Option<u32> {
        self.parsed(key, complaints, |text| {
            let number = text.replace('_', "").parse::<u32>().ok().filter(|number| (1..=most).contains(number));
            number.ok_or_else(|| format!("{text:?} is out of range: give a number from 1 to {most}"))
        })
    }

    /// All values of `key`: the items of a list, or a single value.
    pub(crate) fn list(&mut self, key: &'static str) -> Vec<&'n YamlNode> {
        match self.node(key) {
            None => Vec::new(),
            Some(YamlNode { value: Value::List(nodes), .. }) => nodes.iter().collect(),
            Some(node) => vec![node],
        }
    }

    /// The map at `key` as names and texts.
    pub(crate) fn texts(&mut self, key: &'static str, complaints: &mut Complaints) -> Vec<(String, String)> {
        let Some(node) = self.node(key) else { return Vec::new() };
        let path = format!("{}.{key}", self.path);
        let Some(fields) = Fields::of(node, path.clone(), complaints) else { return Vec::new() };
        let text = |entry: &Entry| {
            if entry.node.is_null() {
                return None;
            }
            let text = scalar(&entry.node, &format!("{path}.{}", entry.key), complaints, |text| {
                Ok::<_, String>(text.to_owned())
            });
            text.map(|text| (entry.key.clone(), text))
        };
        fields.entries.iter().filter_map(text).collect()
    }

    /// Adds a mistake for each key that was not read.
    pub(crate) fn finish(self, complaints: &mut Complaints) {
        #[cfg(test)]
        complaints.keys.push((self.path.clone(), self.known.clone()));
        for entry in self.entries.iter().filter(|entry| !self.known.contains(&entry.key.as_str())) {
            let what = if self.path.is_empty() { "key".to_owned() } else { format!("key of {},", self.path) };
            complaints.unknown(entry.place, &what, &entry.key, self.known.iter().copied());
        }
    }
}

/// Reads a node that is no list and no map.
pub(crate) fn scalar<T, E: Display>(
    node: &YamlNode,
    path: &str,
    complaints: &mut Complaints,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Option<T> {
    let Value::Text(text) = &node.value else {
        complaints.add(node.place, format!("{path} is {}", node.description()), "want a single value".to_owned());
        return None;
    };
    match parse(text) {
        Ok(value) => Some(value),
        Err(wrong) => {
            let wrong = wrong.to_string();
            let (message, correction) = wrong.split_once(": ").unwrap_or((&wrong, ""));
            let correction = (!correction.is_empty()).then(|| correction.to_owned());
            complaints.add(node.place, format!("{path}: {message}"), correction);
            None
        }
    }
}
