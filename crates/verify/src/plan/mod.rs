//! The plan of a run: a template's variant with all choices made that can be made before it.
//!
//! The same template, variant and seed give an equal plan. Roles are the one choice left: the run resolves them when a
//! fault begins.

mod actions;
mod build;
mod change;
mod support;
mod times;

#[cfg(test)]
mod tests;

pub use support::{Need, missing, need_of_runtime, support};

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tenbin_kit::programs::Program;

use crate::judge::assertion::Assertion;
use crate::judge::windows::Phase;
use crate::kind::{Kind, Mode, Protocol};
use crate::rng::Rng;
use crate::template::{
    self, Expect, Fault, InstanceRole, Measure, Member, Mistakes, Ready, Runtime, StartBy, Target, Template, Topic,
    WaitFor,
};
use crate::units::{Size, Time};

/// A run's plan; the content of `plan.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Name of the verification.
    pub name: String,
    /// One line about it.
    pub title: Option<String>,
    /// Variant of the template.
    pub variant: String,
    /// Seed of all random choices.
    pub seed: u64,
    /// Environment of the processes.
    pub runtime: Runtime,
    /// User of ssh.
    pub user: Option<String>,
    /// Allows `sudo` for steps that need root.
    pub sudo: bool,
    /// Allows downloads of images.
    pub pull: bool,
    /// Nodes of ssh that have machines, in the order of the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<Node>,
    /// Machines, in the order in which they are made.
    pub machines: Vec<Machine>,
    /// Instances of the systems, in the order in which they are started.
    pub instances: Vec<Instance>,
    /// Clients.
    pub clients: Vec<Client>,
    /// Names that targets refer to.
    pub members: Vec<Member>,
    /// Times of the run.
    pub measure: Measure,
    /// True if a closed loop has to find the maximum rate first.
    pub needs_maximum: bool,
    /// Phases by the planned times, for display. The verdict uses the actual times.
    pub phases: Vec<PlannedPhase>,
    /// Begins of faults, in the order of their planned times.
    pub actions: Vec<PlannedAction>,
    /// Assertions, which have to hold in every run.
    pub assertions: Vec<Assertion>,
    /// Wanted outcome.
    pub expect: Expect,
    /// Values that others published.
    pub published: Vec<Assertion>,
    /// Prerequisites, each once.
    pub needs: Vec<Need>,
    /// Files of `configs/NAME/` beside the template, which instances and clients get.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub configs: Vec<ConfigFile>,
}

/// A file that an instance or client gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigFile {
    /// Name of the instance or client.
    pub member: String,
    /// Path below its directory of files.
    pub name: String,
    /// The file, beside the template.
    pub source: PathBuf,
}

/// A host that ssh reaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Name in the template.
    pub name: String,
    /// Its address, also for the connections between nodes.
    pub address: IpAddr,
}

/// A machine of the lab, a container, or this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of its instance or client; also the host name.
    pub name: String,
    /// Address in the lab; loopback with the runtime `processes`.
    pub address: IpAddr,
    /// Node of `base`.
    pub node: Option<String>,
    /// Address of the program outside of the lab that a relay on this machine represents.
    pub relays: Option<String>,
}

/// A process of a system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// Name, as `broker-1`.
    pub name: String,
    /// Its entry in `systems`.
    pub system: String,
    /// Number in its system, from 1.
    pub number: u32,
    /// Its machine.
    pub machine: String,
    /// Kind of the system.
    pub kind: Kind,
    /// Form of several brokers of Tenbin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// How it is started.
    pub start: StartBy,
    /// Condition of readiness; `None` for the kind's own.
    pub ready: Option<Ready>,
    /// Address for clients.
    pub door: String,
    /// Address for its peers, if it has one.
    pub peer: Option<String>,
    /// Addresses of the other instances for peers.
    pub peers: Vec<String>,
    /// Settings that override the kind's defaults.
    pub config: Vec<(String, String)>,
    /// Topic to create.
    pub topic: Topic,
    /// Filesystem of its data; `None` = the host's.
    pub disk: Option<Disk>,
    /// Command that prints the leader's name.
    pub probe: Option<String>,
    /// Environment variables.
    pub environment: Vec<(String, String)>,
    /// Processors that it may use; empty for all.
    pub cpus: Vec<u16>,
}

/// Filesystem of an instance's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Size of the filesystem.
    pub size: Size,
    /// True for an ext4 image on a loop device, which a power cut needs; else a tmpfs.
    pub is_image: bool,
}

/// Clients of one entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Client {
    /// Machine on which they run.
    pub machine: String,
    /// Their system.
    pub system: String,
    /// Protocol that they speak.
    pub protocol: Protocol,
    /// Addresses of their system, in the order in which they try them.
    pub doors: Vec<String>,
    /// The entry, with QoS and version for MQTT alone, and acknowledgements for Kafka alone.
    #[serde(flatten)]
    pub entry: template::ClientEntry,
}

/// A phase with its planned time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedPhase {
    /// The phase.
    pub phase: Phase,
    /// First moment.
    pub from: Time,
    /// End.
    pub to: Time,
}

/// One begin of a fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedAction {
    /// Name of the action.
    pub name: String,
    /// Number of this repetition, from 1.
    pub repetition: u32,
    /// Planned begin after the warm-up.
    pub at: Time,
    /// Action whose actual end this one waits for, and the time between; `at` is then an estimate.
    pub after: Option<(String, Time)>,
    /// Condition that delays its begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for: Option<WaitFor>,
    /// How long it lasts; `None` to the end of the measurement, or for good.
    pub duration: Option<Time>,
    /// The fault.
    pub fault: Fault,
    /// Its targets.
    pub targets: PlannedTargets,
    /// The change, in words.
    pub change: String,
    /// The undo, in words; `None` if nothing is left to undo.
    pub undo: Option<String>,
}

/// Targets of a fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlannedTargets {
    /// Instances or clients.
    Members(Selection),
    /// Directed links from each member of `from` to each other member of `to`.
    Links {
        /// Senders; `None` for all.
        from: Option<Selection>,
        /// Receivers; `None` for all.
        to: Option<Selection>,
        /// Acts on the opposite direction too.
        both: bool,
    },
    /// All links between members of different sides.
    Sides(Vec<Selection>),
}

/// Members that a target stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// The target as written.
    pub target: Target,
    /// Seed of its draws.
    pub draw: u64,
    /// Its members; `None` if they depend on roles.
    pub members: Option<Vec<String>>,
}

impl Plan {
    /// Makes the plan of `template`; `seed` replaces the template's.
    ///
    /// # Errors
    /// Targets that nothing has, faults that the runtime cannot inject, and times without room in the measurement.
    pub fn new(template: &Template, seed: Option<u64>) -> Result<Self, Mistakes> {
        build::plan(template, seed)
    }

    /// The most time of one run: closed loop, warm-up, measurement and drain, without the start of systems.
    pub fn longest(&self) -> Time {
        let maximum = if self.needs_maximum { self.measure.max } else { Time::ZERO };
        maximum.plus(self.measure.warm_up.most()).plus(self.measure.time).plus(self.measure.drain)
    }

    /// Prerequisites of this host.
    pub fn needs_here(&self) -> impl Iterator<Item = &Need> {
        let own = need_of_runtime(self.runtime);
        self.needs.iter().filter(move |need| self.runtime != Runtime::Ssh || own.contains(need))
    }

    /// Prerequisites that this machine lacks, each with a correction.
    pub fn lacks(&self) -> Vec<String> {
        let needs = self.needs_here().filter_map(|need| Some(format!("{need}: {}", missing(need)?)));
        let broker = self.starts_tenbin().then(|| Program::Tenbin.find().err()).flatten();
        needs.chain(broker.map(|error| error.to_string())).collect()
    }

    /// True if an instance is the broker of this project.
    pub(crate) fn starts_tenbin(&self) -> bool {
        let is_tenbin = |one: &Instance| one.kind == Kind::Tenbin && matches!(one.start, StartBy::Kind);
        self.instances.iter().any(is_tenbin)
    }

    /// Prerequisites of each node.
    pub fn needs_of_nodes(&self) -> impl Iterator<Item = Need> {
        let own = need_of_runtime(Runtime::Ssh);
        let others = self.needs.iter().filter(move |need| !own.contains(need)).cloned();
        need_of_runtime(Runtime::Namespaces).into_iter().chain(others).filter(|_| self.runtime == Runtime::Ssh)
    }

    /// Content of `plan.json`.
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a plan has no maps with other keys than text");
        text.push('\n');
        text
    }
}

impl Selection {
    /// Resolves the target with the present roles of instances. The plan fixes the random draws.
    pub fn resolve(&self, members: &[Member], role: impl Fn(&str) -> Option<InstanceRole>) -> Vec<String> {
        self.target.resolve(members, role, &mut Rng::new(self.draw, ""))
    }
}

impl PlannedTargets {
    /// All selections.
    pub fn selections(&self) -> Vec<&Selection> {
        match self {
            Self::Members(selection) => vec![selection],
            Self::Links { from, to, .. } => from.iter().chain(to).collect(),
            Self::Sides(sides) => sides.iter().collect(),
        }
    }

    /// Directed links (from, to) that the fault acts on, each once.
    ///
    /// `resolve` gives the members of a selection, and `members` all of them. A member that is on both ends has no link
    /// to itself.
    pub fn links(&self, members: &[Member], resolve: impl Fn(&Selection) -> Vec<String>) -> Vec<(String, String)> {
        let all = || members.iter().map(|member| member.name.clone()).collect::<Vec<_>>();
        let of = |selection: &Option<Selection>| selection.as_ref().map_or_else(all, &resolve);
        let mut links: Vec<(String, String)> = Vec::new();
        let mut add = |from: &[String], to: &[String]| {
            for from in from {
                for to in to.iter().filter(|to| *to != from) {
                    let link = (from.clone(), to.clone());
                    if !links.contains(&link) {
                        links.push(link);
                    }
                }
            }
        };
        match self {
            Self::Members(_) => {}
            Self::Links { from, to, both } => {
                let (from, to) = (of(from), of(to));
                add(&from, &to);
                if *both {
                    add(&to, &from);
                }
            }
            Self::Sides(sides) => {
                let sides: Vec<_> = sides.iter().map(&resolve).collect();
                for (index, side) in sides.iter().enumerate() {
                    for other in &sides[index + 1..] {
                        add(side, other);
                        add(other, side);
                    }
                }
            }
        }
        links
    }
}
