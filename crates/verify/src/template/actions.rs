//! The part `actions`: faults, their targets and times.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::error::{Complaints, Place};
use super::fault::{FAULTS, Fault, Scope};
use super::fields::{Fields, scalar};
use super::node::{Value, YamlNode};
use super::target::Target;
use crate::units::Time;

/// An entry of `actions`.
#[derive(Debug, Clone, PartialEq)]
pub struct Action {
    /// Name, as in `during NAME`; by default the last word of the fault's name.
    pub name: String,
    /// Place of the entry.
    pub place: Place,
    /// The fault.
    pub fault: Fault,
    /// Targets of the fault.
    pub targets: Targets,
    /// When it begins.
    pub start: Start,
    /// Place of `start`.
    pub start_place: Place,
    /// How long it lasts, at most; `None` for once, or to the end of the measurement.
    pub duration: Option<Time>,
    /// Least time that it lasts, if the time is drawn by the seed.
    pub duration_from: Option<Time>,
    /// Condition on which it begins.
    pub wait_for: Option<WaitFor>,
    /// Time between two beginnings of a repeated fault.
    pub every: Option<Time>,
    /// Number of repetitions; `None` = until the measurement ends.
    pub times: Option<u32>,
}

/// Targets of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Targets {
    /// Instances or clients.
    Instances(Target),
    /// Links of members of `from` to members of `to`; without one of them, to or from all others.
    Links {
        /// Senders.
        from: Option<Target>,
        /// Receivers.
        to: Option<Target>,
        /// Acts on the opposite direction too.
        both: bool,
    },
    /// Links between members of different sides, in both directions.
    Sides(Vec<Target>),
}

/// Condition on which an action begins: copies of the data that a pair or cluster of Tenbin has at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct WaitFor {
    /// The number of copies.
    pub copies: u32,
}

/// When an action begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// At this time after the warm-up.
    At(Time),
    /// At a time between these, drawn by the seed.
    Random(Time, Time),
    /// When another action has ended, and this time has passed.
    After(String, Time),
}

/// Reads `actions`.
pub(crate) fn read(node: Option<&YamlNode>, complaints: &mut Complaints) -> Vec<Action> {
    let Some(node) = node else { return Vec::new() };
    let Value::List(nodes) = &node.value else {
        complaints.add(
            node.place,
            format!("actions is {}", node.description()),
            "want a list: [ { target: broker, fault: kill, start: 40 } ]".to_owned(),
        );
        return Vec::new();
    };
    let mut actions: Vec<Action> = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        let Some(mut action) = action(node, index, complaints) else { continue };
        if actions.iter().any(|known| known.name == action.name) {
            if node.get("name").is_some() {
                complaints.add(
                    node.place,
                    format!("two actions are named {:?}", action.name),
                    "choose another name".to_owned(),
                );
            }
            action.name = format!("{}-{}", action.name, index + 1);
        }
        actions.push(action);
    }
    // An action with a mistake is missing here, and its name would seem to be another one.
    for action in actions.iter().filter(|_| actions.len() == nodes.len()) {
        if let Start::After(other, _) = &action.start
            && !actions.iter().any(|known| known.name == *other)
        {
            complaints.unknown(action.start_place, "action", other, actions.iter().map(|action| action.name.as_str()));
        }
    }
    actions
}

fn action(node: &YamlNode, index: usize, complaints: &mut Complaints) -> Option<Action> {
    let path = format!("actions[{}]", index + 1);
    let mut fields = Fields::of(node, path.clone(), complaints)?;
    let Some(fault_node) = fields.node("fault") else {
        fields.missing("fault", complaints);
        return None;
    };
    let fault_name = scalar(fault_node, &path, complaints, |text| Ok::<_, String>(text.to_owned()))?;
    if !FAULTS.contains(&fault_name.as_str()) && fault_name != "command" {
        complaints.unknown(fault_node.place, "fault", &fault_name, FAULTS.into_iter().chain(["command"]));
        return None;
    }
    let fault = Fault::read(&fault_name, &mut fields, complaints);
    let name = fields.parsed("name", complaints, action_name);
    let targets = targets(&mut fields, &fault_name, complaints);
    let start_node = fields.node("start");
    if start_node.is_none() {
        fields.missing("start", complaints);
    }
    let start = fields.value("start", complaints);
    let duration = fields.parsed("duration", complaints, lasting);
    let (duration_from, duration) = duration.map_or((None, None), |(from, to)| (from, Some(to)));
    let wait_for = fields.value("wait_for", complaints);
    let every = fields.parsed("every", complaints, |text| match text.parse::<Time>() {
        Ok(Time::ZERO) => Err("\"0\" is no time between repetitions: give 10s".to_owned()),
        other => other,
    });
    let times = fields.count("times", 10_000, complaints);
    if let (Some(times), None) = (fields.node("times"), fields.node("every")) {
        complaints.add(times.place, "times without every", "add \"every: 10s\"".to_owned());
    }
    if let (Some(every), Some(duration)) = (every, duration)
        && duration >= every
    {
        complaints.add(
            node.place,
            format!("the fault lasts {duration} and comes every {every}"),
            format!("give a duration below {every}"),
        );
    }
    let last_word = fault_name.rsplit('.').next().unwrap_or_default().replace('_', "-");
    let action = Action {
        name: name.unwrap_or(last_word),
        place: node.place,
        fault: fault?,
        targets: targets?,
        start: start?,
        start_place: start_node.map_or(node.place, |node| node.place),
        duration,
        duration_from,
        wait_for,
        every,
        times,
    };
    if action.every.is_some() && action.duration.is_none() && !action.fault.is_momentary() {
        complaints.add(
            node.place,
            format!("{} is repeated and never ends", action.fault.name()),
            "add \"duration: 2s\"".to_owned(),
        );
    }
    fields.finish(complaints);
    Some(action)
}

/// Reads a time, or `random(1, 5)` as its least and most.
fn lasting(text: &str) -> Result<(Option<Time>, Time), String> {
    match random(text) {
        Some(range) => range
            .map(|(from, to)| (Some(from), to))
            .map_err(|_| format!("{text:?} is no duration: give 5s, or \"random(1, 5)\" with the shorter time first")),
        None => text.parse().map(|time| (None, time)),
    }
}

/// Both times of `random(40, 60)`; `None` for a text of another form.
fn random(text: &str) -> Option<Result<(Time, Time), String>> {
    let inner = text.strip_prefix("random(").and_then(|rest| rest.strip_suffix(')'))?;
    let times = || {
        let (first, last) = inner.split_once(',').ok_or_else(|| wrong(text))?;
        let (first, last) = (first.parse::<Time>()?, last.parse::<Time>()?);
        if first < last { Ok((first, last)) } else { Err(wrong(text)) }
    };
    Some(times())
}

/// Names of actions join with `+` in phases.
fn action_name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if is_name { Ok(text.to_owned()) } else { Err(format!("{text:?} is no name: use letters, digits, '-' and '_'")) }
}

fn targets(fields: &mut Fields<'_>, fault: &str, complaints: &mut Complaints) -> Option<Targets> {
    let is_link = fault.starts_with("net.");
    let target_nodes = fields.list("target");
    let target = Target::read(&target_nodes, "target", complaints);
    if !is_link {
        if target_nodes.is_empty() {
            fields.missing("target", complaints);
        }
        return target.map(Targets::Instances);
    }
    let from_nodes = fields.list("from");
    let to_nodes = fields.list("to");
    let from = Target::read(&from_nodes, "from", complaints);
    let to = Target::read(&to_nodes, "to", complaints);
    let both = fields.flag("both", complaints);
    let sides = if fault == "net.partition" { fields.node("partition") } else { None };
    let given = [!target_nodes.is_empty(), !from_nodes.is_empty() || !to_nodes.is_empty(), sides.is_some()];
    match given {
        [true, false, false] => target.map(|target| Targets::Links { from: Some(target), to: None, both: true }),
        [false, true, false] => {
            let is_read = (from.is_some() || from_nodes.is_empty()) && (to.is_some() || to_nodes.is_empty());
            is_read.then_some(Targets::Links { from, to, both })
        }
        [false, false, true] => sides_of(sides?, complaints).map(Targets::Sides),
        [false, false, false] => {
            complaints.add(
                fields.place(),
                format!("{fault} has no link to act on"),
                "add \"from:\" and \"to:\", or \"target:\"".to_owned(),
            );
            None
        }
        _ => {
            complaints.add(
                fields.place(),
                format!("{fault} has several kinds of targets"),
                "keep either target, or from and to, or partition".to_owned(),
            );
            None
        }
    }
}

fn sides_of(node: &YamlNode, complaints: &mut Complaints) -> Option<Vec<Target>> {
    let Value::List(sides) = &node.value else {
        complaints.add(
            node.place,
            format!("partition is {}", node.description()),
            "want sides: [[broker-1], [broker-2, broker-3]]".to_owned(),
        );
        return None;
    };
    if sides.len() < 2 {
        complaints.add(
            node.place,
            "a partition has at least two sides",
            "want sides: [[broker-1], [broker-2, broker-3]]".to_owned(),
        );
        return None;
    }
    let side = |side: &YamlNode| match &side.value {
        Value::List(nodes) => Target::read(&nodes.iter().collect::<Vec<_>>(), "partition", complaints),
        _ => Target::read(&[side], "partition", complaints),
    };
    let read: Vec<_> = sides.iter().map(side).collect();
    read.into_iter().collect()
}

impl FromStr for Start {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(range) = random(text) {
            return range.map(|(first, last)| Self::Random(first, last));
        }
        if let Some(rest) = text.strip_prefix("after ") {
            let (name, pause) = match rest.split_once('+') {
                Some((name, pause)) => (name, pause.parse::<Time>()?),
                None => (rest, Time::ZERO),
            };
            return action_name(name.trim()).map(|name| Self::After(name, pause));
        }
        text.parse().map(Self::At).map_err(|_| wrong(text))
    }
}

fn wrong(text: &str) -> String {
    if text.starts_with("random(") && !text.ends_with(')') {
        return format!("{text:?} ends at a comma, as in all braces of YAML: put it in quotes, \"random(40, 60)\"");
    }
    format!("{text:?} is no start: give 40, 40s, random(40, 60), after NAME or after NAME + 5s")
}

impl FromStr for WaitFor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let copies = text.strip_prefix("copies ").and_then(|copies| copies.trim().parse().ok());
        let copies = copies.filter(|copies| (1..=2).contains(copies));
        copies.map(|copies| Self { copies }).ok_or_else(|| format!("{text:?} is no condition: give \"copies 2\""))
    }
}

impl fmt::Display for WaitFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "copies {}", self.copies)
    }
}

impl From<WaitFor> for String {
    fn from(wait_for: WaitFor) -> Self {
        wait_for.to_string()
    }
}

impl TryFrom<String> for WaitFor {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl Action {
    /// Kind of targets of its fault.
    pub fn scope(&self) -> Scope {
        self.fault.scope()
    }

    /// All targets.
    pub(crate) fn all_targets(&self) -> Vec<&Target> {
        match &self.targets {
            Targets::Instances(target) => vec![target],
            Targets::Links { from, to, .. } => from.iter().chain(to).collect(),
            Targets::Sides(sides) => sides.iter().collect(),
        }
    }
}
