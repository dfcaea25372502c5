//! The part `base`: where a verification runs.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::error::Complaints;
use super::fields::{Fields, scalar};
use super::node::{Value, YamlNode};

/// Environment in which instances run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// Each instance in separate namespaces, with a switch between them.
    #[default]
    Namespaces,
    /// Each instance in a container.
    Docker,
    /// Instances on named nodes.
    Ssh,
    /// Processes on loopback.
    Processes,
}

/// Names of all runtimes in templates.
pub(crate) const RUNTIMES: [(&str, Runtime); 4] = [
    ("namespaces", Runtime::Namespaces),
    ("docker", Runtime::Docker),
    ("ssh", Runtime::Ssh),
    ("processes", Runtime::Processes),
];

impl Runtime {
    /// Name in templates.
    pub fn name(self) -> &'static str {
        RUNTIMES.iter().find(|(_, runtime)| *runtime == self).map_or("", |(name, _)| name)
    }
}

/// Where a verification runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Base {
    /// Environment of the instances.
    pub runtime: Runtime,
    /// Seed of all random choices.
    pub seed: u64,
    /// User of ssh.
    pub user: Option<String>,
    /// Addresses of named nodes, in the order of the file.
    pub nodes: Vec<(String, IpAddr)>,
    /// Allows steps that need root to use `sudo`.
    pub sudo: bool,
    /// Allows downloads of images.
    pub pull: bool,
}

impl Default for Base {
    fn default() -> Self {
        Self { runtime: Runtime::default(), seed: 1, user: None, nodes: Vec::new(), sudo: false, pull: false }
    }
}

/// Reads `base`.
pub(crate) fn read(node: Option<&YamlNode>, complaints: &mut Complaints) -> Base {
    let Some(node) = node else { return Base::default() };
    let Some(mut fields) = Fields::of(node, "base", complaints) else { return Base::default() };
    let runtime = fields.choice("runtime", &RUNTIMES, complaints).unwrap_or_default();
    let seed = fields.parsed("seed", complaints, |text| {
        text.parse::<u64>().map_err(|_| format!("{text:?} is no seed: give a whole number"))
    });
    let base = Base {
        runtime,
        seed: seed.unwrap_or(1),
        user: fields.value("user", complaints),
        nodes: nodes(fields.node("nodes"), complaints),
        sudo: fields.flag("sudo", complaints),
        pull: fields.flag("pull", complaints),
    };
    if runtime == Runtime::Ssh && base.nodes.is_empty() {
        complaints.add(
            fields.place(),
            "runtime ssh needs nodes",
            "add \"nodes: { node-1: 192.0.2.11 }\" to base".to_owned(),
        );
    }
    fields.finish(complaints);
    base
}

fn nodes(node: Option<&YamlNode>, complaints: &mut Complaints) -> Vec<(String, IpAddr)> {
    let Some(YamlNode { value: Value::Map(entries), .. }) = node else {
        if let Some(node) = node {
            complaints.add(
                node.place,
                format!("base.nodes is {}", node.description()),
                "want names and addresses: { node-1: 192.0.2.11 }".to_owned(),
            );
        }
        return Vec::new();
    };
    let mut nodes = Vec::new();
    for entry in entries {
        let path = format!("base.nodes.{}", entry.key);
        let address = scalar(&entry.node, &path, complaints, |text| {
            text.parse::<IpAddr>().map_err(|_| format!("{text:?} is no address: give one as 192.0.2.11"))
        });
        nodes.extend(address.map(|address| (entry.key.clone(), address)));
    }
    nodes
}
