//! Variants of a template, and sweeps over values.

use super::error::Complaints;
use super::fields::scalar;
use super::node::{Value, YamlNode};

/// One variant: its name and the merged tree.
pub(crate) struct Variant {
    pub(crate) name: String,
    pub(crate) tree: YamlNode,
}

impl Variant {
    /// Sets the value at each path.
    pub(crate) fn set_all(&mut self, settings: &[(String, String)], complaints: &mut Complaints) {
        for (path, value) in settings {
            let place = self.tree.place;
            if !set(&mut self.tree, path, &YamlNode { place, value: Value::Text(value.clone()) }) {
                complaints.add(
                    place,
                    format!("--set {path}: it leads nowhere in variant {}", self.name),
                    "name a key below a system, an action or measure, as measure.time".to_owned(),
                );
            }
        }
    }
}

/// Keys that only the file itself has.
const OF_THE_FILE: [&str; 2] = ["variants", "sweep"];

/// All variants of a file: one for each entry of `variants`, or the file itself; times one for each swept value.
pub(crate) fn expand(root: &YamlNode, complaints: &mut Complaints) -> Vec<Variant> {
    let mut plain = root.clone();
    if let Value::Map(entries) = &mut plain.value {
        entries.retain(|entry| !OF_THE_FILE.contains(&entry.key.as_str()));
    }
    let variants = match root.get("variants") {
        None => vec![Variant { name: DEFAULT.to_owned(), tree: plain }],
        Some(node) => named(&plain, node, complaints),
    };
    match root.get("sweep") {
        None => variants,
        Some(sweep) => swept(variants, sweep, complaints),
    }
}

/// Name of the only variant of a file without `variants`.
const DEFAULT: &str = "default";

fn named(plain: &YamlNode, node: &YamlNode, complaints: &mut Complaints) -> Vec<Variant> {
    let Value::Map(entries) = &node.value else {
        complaints.add(
            node.place,
            format!("variants is {}", node.description()),
            "want names and changes: { acks-all: { systems: { pub: { acks: all } } } }".to_owned(),
        );
        return Vec::new();
    };
    let mut variants = Vec::new();
    for entry in entries {
        if !entry.key.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
            complaints.add(
                entry.place,
                format!("{:?} is no name of a variant", entry.key),
                "use letters, digits, '-', '_' and '.'".to_owned(),
            );
        }
        if !matches!(entry.node.value, Value::Map(_) | Value::Null) {
            complaints.add(
                entry.node.place,
                format!("variants.{} is {}", entry.key, entry.node.description()),
                "want the keys that differ: { expect: fail }".to_owned(),
            );
            continue;
        }
        for key in OF_THE_FILE {
            if let Some(inner) = entry.node.get(key) {
                complaints.add(
                    inner.place,
                    format!("variants.{} contains {key}", entry.key),
                    format!("move {key} to the top of the file"),
                );
            }
        }
        let tree = if entry.node.is_null() { plain.clone() } else { plain.merged(&entry.node) };
        variants.push(Variant { name: entry.key.clone(), tree });
    }
    variants
}

fn swept(mut variants: Vec<Variant>, sweep: &YamlNode, complaints: &mut Complaints) -> Vec<Variant> {
    let Value::Map(entries) = &sweep.value else {
        complaints.add(
            sweep.place,
            format!("sweep is {}", sweep.description()),
            "want a path and values: { systems.pub.size: [100, 1KiB] }".to_owned(),
        );
        return variants;
    };
    for entry in entries {
        let Value::List(values) = &entry.node.value else {
            complaints.add(
                entry.node.place,
                format!("sweep of {} is {}", entry.key, entry.node.description()),
                "want a list of values: [100, 1KiB]".to_owned(),
            );
            continue;
        };
        let mut all = Vec::new();
        for Variant { name, tree } in &variants {
            for value in values {
                let text = scalar(value, &entry.key, complaints, |text| Ok::<_, String>(text.to_owned()));
                let mut tree = tree.clone();
                if !set(&mut tree, &entry.key, value) {
                    complaints.add(
                        entry.place,
                        format!("sweep: {} leads nowhere", entry.key),
                        "name a key below a system, an action or measure, as systems.pub.size".to_owned(),
                    );
                }
                let key = entry.key.rsplit('.').next().unwrap_or_default();
                let word = format!("{key}-{}", text.unwrap_or_default().replace([' ', '/', '%'], ""));
                let name = if name == DEFAULT { word } else { format!("{name}-{word}") };
                all.push(Variant { name, tree });
            }
        }
        variants = all;
    }
    variants
}

/// Sets the value at `path`; false if there is no map to set it in.
fn set(tree: &mut YamlNode, path: &str, value: &YamlNode) -> bool {
    let Some((parents, key)) = path.rsplit_once('.') else { return false };
    let mut at = tree;
    for step in parents.split('.') {
        match at.get_mut(step) {
            Some(next) => at = next,
            None => return false,
        }
    }
    match &mut at.value {
        Value::Map(entries) => {
            match entries.iter_mut().find(|entry| entry.key == key) {
                Some(entry) => entry.node = value.clone(),
                None => {
                    entries.push(super::node::Entry { key: key.to_owned(), place: value.place, node: value.clone() })
                }
            }
            true
        }
        _ => false,
    }
}
