//! The part `systems`: instances and clients.

use serde::{Deserialize, Serialize};
use tenbin_loadgen::run::Version;

use super::base::Base;
use super::error::{Complaints, Place};
use super::fields::{Fields, scalar};
use super::node::{Entry, Value, YamlNode};
use super::target::{InstanceRole, ROLES};
use crate::kind::{KINDS, Kind, MODES, Mode};
use crate::units::{Rate, Size, Time};

/// An entry of `systems`: a system under test.
#[derive(Debug, Clone, PartialEq)]
pub struct System {
    /// Key in the file.
    pub name: String,
    /// Place of the entry.
    pub place: Place,
    /// Kind; [`Kind::Command`] for a command or image without one.
    pub kind: Kind,
    /// How its instances are started.
    pub start: Start,
    /// Condition of readiness; `None` for the kind's own.
    pub ready: Option<Ready>,
    /// Form of several brokers of Tenbin; `None` for a broker that is alone.
    pub mode: Option<Mode>,
    /// Number of instances.
    pub replicas: u32,
    /// Settings in the kind's own format, which override its defaults.
    pub config: Vec<(String, String)>,
    /// Topic that the tool creates.
    pub topic: Topic,
    /// Size of the filesystem of each instance's data.
    pub disk: Option<Size>,
    /// Command that prints the name of the leading instance.
    pub probe: Option<String>,
    /// Machine, environment and processors.
    pub placing: Placing,
}

/// How an instance is started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// As its kind says.
    Kind,
    /// By a command, with `{address}`, `{data}`, `{config}` and `{peers}`.
    Command(String),
    /// As a container of this image.
    Image(String),
    /// It runs outside of the lab, at `HOST:PORT`.
    External(String),
}

/// Condition under which a started instance is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ready {
    /// Something listens at this port.
    Port(u16),
    /// Its output has a line with this text.
    Line(String),
    /// This command succeeds.
    Command(String),
}

/// Topic of a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    /// Partitions, where the system has them.
    pub partitions: u32,
    /// Copies of each partition or stream; 0 = the number of instances.
    pub replication: u32,
}

impl Default for Topic {
    fn default() -> Self {
        Self { partitions: 1, replication: 0 }
    }
}

/// An entry of `systems`: clients of a system. Its JSON is a part of `plan.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientEntry {
    /// Key in the file.
    pub name: String,
    /// Place of the entry.
    #[serde(skip)]
    pub place: Place,
    /// Part of the clients.
    pub role: Role,
    /// Name of the system or instance that they connect to.
    #[serde(skip)]
    pub to: String,
    /// Place of that name.
    #[serde(skip)]
    pub to_place: Place,
    /// Role of the instance that they connect to first; `None` for all instances in turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins_at: Option<InstanceRole>,
    /// Number of clients.
    pub count: u32,
    /// Payload of a message.
    pub size: Size,
    /// Rate of all publishers of this entry together.
    pub rate: Rate,
    /// QoS of MQTT.
    pub qos: Option<u8>,
    /// Acknowledgements that a publisher waits for.
    pub acks: Option<Acks>,
    /// Share group, queue group or consumer group.
    pub group: Option<String>,
    /// Version of MQTT.
    pub version: Option<Version>,
    /// Time for which sessions survive their connections.
    pub session_expiry: Option<Time>,
    /// Keep Alive of MQTT.
    pub keep_alive: Option<Time>,
    /// Messages a second that a slow subscriber reads.
    pub slow: Option<f64>,
    /// The user's client program.
    pub program: Option<Start>,
    /// Machine, environment and processors.
    #[serde(flatten)]
    pub placing: Placing,
}

/// Part of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Publishes messages.
    Publisher,
    /// Receives messages.
    Subscriber,
}

/// Acknowledgements that a publisher of Kafka waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Acks {
    /// None.
    #[serde(rename = "0")]
    None,
    /// The leader's acknowledgement.
    #[serde(rename = "1")]
    Leader,
    /// The acknowledgements of all replicas in sync.
    #[serde(rename = "all")]
    All,
}

impl Acks {
    /// As templates have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "0",
            Self::Leader => "1",
            Self::All => "all",
        }
    }
}

/// Where a process runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placing {
    /// Name of a node of `base`.
    #[serde(skip)]
    pub node: Option<String>,
    /// Environment variables.
    pub environment: Vec<(String, String)>,
    /// Processors that it may use; empty for all.
    pub cpus: Vec<u16>,
}

/// Most instances of a system, and most client entries: the lab's addresses are from one network.
const MOST_REPLICAS: u32 = 50;

/// Reads `systems`.
pub(crate) fn read(
    node: Option<&YamlNode>,
    base: &Base,
    root: Place,
    complaints: &mut Complaints,
) -> (Vec<System>, Vec<ClientEntry>) {
    let (mut systems, mut clients) = (Vec::new(), Vec::new());
    let Some(node) = node else {
        complaints.add(root, "the file lacks systems", "add \"systems:\" with a broker and its clients".to_owned());
        return (systems, clients);
    };
    let Value::Map(entries) = &node.value else {
        complaints.add(
            node.place,
            format!("systems is {}", node.description()),
            "want names and their keys: { broker: { kind: tenbin } }".to_owned(),
        );
        return (systems, clients);
    };
    for entry in entries.iter().filter(|entry| !entry.node.is_null()) {
        name(entry, complaints);
        let is_client = entry.node.get("publishes_to").is_some() || entry.node.get("subscribes_to").is_some();
        if is_client {
            clients.extend(client(entry, base, complaints));
        } else {
            systems.extend(system(entry, base, complaints));
        }
    }
    if systems.is_empty() && complaints.is_empty() {
        complaints.add(node.place, "no system to verify", "add one, as in \"broker: { kind: tenbin }\"".to_owned());
    }
    (systems, clients)
}

/// Names become host names and parts of file names.
fn name(entry: &Entry, complaints: &mut Complaints) {
    let is_good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_name = entry.key.starts_with(|c: char| c.is_ascii_lowercase())
        && entry.key.chars().all(is_good)
        && entry.key.len() <= 40;
    if !is_name {
        complaints.add(
            entry.place,
            format!("{:?} is no name of a system", entry.key),
            "use lower-case letters, digits and '-', a letter first, at most 40 characters".to_owned(),
        );
    }
    if ["publishers", "subscribers", "any", "majority", "minority"].contains(&entry.key.as_str()) {
        complaints.add(
            entry.place,
            format!("{:?} has a meaning as a target", entry.key),
            "choose another name".to_owned(),
        );
    }
}

fn system(entry: &Entry, base: &Base, complaints: &mut Complaints) -> Option<System> {
    let mut fields = Fields::of(&entry.node, format!("systems.{}", entry.key), complaints)?;
    let kind = fields.choice("kind", &KINDS, complaints);
    let command = fields.value("command", complaints).map(Start::Command);
    let image = fields.value("image", complaints).map(Start::Image);
    let external = fields.parsed("external", complaints, |text| match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(Start::External(text.to_owned())),
        _ => Err(format!("{text:?} is no address: give HOST:PORT")),
    });
    let starts: Vec<_> = [command, image, external].into_iter().flatten().collect();
    if starts.len() > 1 {
        complaints.add(
            entry.place,
            format!("systems.{} is started in several ways", entry.key),
            "keep one of command, image and external".to_owned(),
        );
    }
    let start = starts.into_iter().next().unwrap_or(Start::Kind);
    let has_kind = fields.node("kind").is_some();
    if !has_kind && start == Start::Kind {
        complaints.add(
            entry.place,
            format!("systems.{} is neither a system nor a client", entry.key),
            "add kind, command, image or external, or publishes_to or subscribes_to".to_owned(),
        );
    }
    let is_known = kind.is_some();
    let kind = kind.unwrap_or(Kind::Command);
    if is_known && kind.program().is_none() && start == Start::Kind {
        complaints.add(
            entry.place,
            format!("kind {} has no built-in program", kind.name()),
            "add \"command:\", \"image:\" or \"external:\"".to_owned(),
        );
    }
    let topic = topic(fields.node("topic"), complaints);
    let mode = fields.choice("mode", &MODES, complaints);
    let system = System {
        name: entry.key.clone(),
        place: entry.place,
        kind,
        ready: ready(fields.node("ready"), &entry.key, complaints),
        replicas: fields
            .count("replicas", MOST_REPLICAS, complaints)
            .unwrap_or_else(|| mode.map_or(1, |mode| mode.nodes().0)),
        mode,
        config: fields.texts("config", complaints),
        topic,
        disk: disk(fields.node("disk"), complaints),
        probe: fields.value("probe", complaints),
        placing: placing(&mut fields, base, complaints),
        start,
    };
    check_replicas(&system, complaints);
    fields.finish(complaints);
    Some(system)
}

fn check_replicas(system: &System, complaints: &mut Complaints) {
    let System { name, kind, replicas, .. } = system;
    if let Some(mode) = system.mode {
        let (fewest, most) = mode.nodes();
        if *kind != Kind::Tenbin {
            let message = format!("systems.{name}: {} has no mode", kind.name());
            complaints.add(system.place, message, "remove mode; replicas is the number of instances".to_owned());
        } else if !(fewest..=most).contains(replicas) {
            let nodes = if fewest == most { format!("{fewest}") } else { format!("{fewest} to {most}") };
            let message = format!("systems.{name}: {replicas} replicas in a mode of {nodes} nodes");
            complaints.add(system.place, message, format!("remove replicas: it is {fewest} by default"));
        }
        return;
    }
    let correction = match system.start {
        _ if *replicas == 1 => return,
        _ if *kind == Kind::Tenbin => "replace replicas by \"mode: pair\" or \"mode: cluster\"",
        _ if !kind.forms_cluster() => "remove replicas: its instances would know nothing of each other",
        Start::External(_) => "name each external instance separately",
        _ => return,
    };
    complaints.add(
        system.place,
        format!("systems.{name}: {replicas} replicas of {} form no system", kind.name()),
        correction.to_owned(),
    );
}

fn topic(node: Option<&YamlNode>, complaints: &mut Complaints) -> Topic {
    let mut topic = Topic::default();
    let Some(mut fields) = node.and_then(|node| Fields::of(node, "topic", complaints)) else { return topic };
    topic.partitions = fields.count("partitions", 10_000, complaints).unwrap_or(topic.partitions);
    topic.replication = fields.count("replication", MOST_REPLICAS, complaints).unwrap_or(topic.replication);
    fields.finish(complaints);
    topic
}

fn ready(node: Option<&YamlNode>, name: &str, complaints: &mut Complaints) -> Option<Ready> {
    let node = node?;
    let mut fields = Fields::of(node, format!("systems.{name}.ready"), complaints)?;
    let port = fields.parsed("port", complaints, |text| {
        text.parse::<u16>().map(Ready::Port).map_err(|_| format!("{text:?} is no port: give a number from 1 to 65535"))
    });
    let line = fields.value("line", complaints).map(Ready::Line);
    let command = fields.value("command", complaints).map(Ready::Command);
    fields.finish(complaints);
    let mut given = [port, line, command].into_iter().flatten();
    let first = given.next();
    if given.next().is_some() || first.is_none() && complaints.is_empty() {
        complaints.add(node.place, "ready has one condition", "give one of port, line and command".to_owned());
    }
    first
}

fn disk(node: Option<&YamlNode>, complaints: &mut Complaints) -> Option<Size> {
    let mut fields = Fields::of(node?, "disk", complaints)?;
    let size = fields.required("size", complaints);
    fields.finish(complaints);
    size
}

fn placing(fields: &mut Fields<'_>, base: &Base, complaints: &mut Complaints) -> Placing {
    let node = fields.value::<String>("node_name", complaints);
    if let (Some(name), Some(given)) = (&node, fields.node("node_name"))
        && !base.nodes.iter().any(|(known, _)| known == name)
    {
        complaints.unknown(given.place, "node", name, base.nodes.iter().map(|(name, _)| name.as_str()));
    }
    let mut cpus = Vec::new();
    for node in fields.list("cpus") {
        cpus.extend(scalar(node, "cpus", complaints, |text| {
            text.parse::<u16>().map_err(|_| format!("{text:?} is no number of a processor: give [0] or [0, 1]"))
        }));
    }
    Placing { node, environment: fields.texts("environment", complaints), cpus }
}

fn client(entry: &Entry, base: &Base, complaints: &mut Complaints) -> Option<ClientEntry> {
    let mut fields = Fields::of(&entry.node, format!("systems.{}", entry.key), complaints)?;
    let publishes = fields.node("publishes_to");
    let subscribes = fields.node("subscribes_to");
    if publishes.is_some() && subscribes.is_some() {
        complaints.add(
            entry.place,
            format!("systems.{} both publishes and subscribes", entry.key),
            "make two entries of it".to_owned(),
        );
    }
    let to_node = publishes.or(subscribes)?;
    let to = scalar(to_node, &format!("systems.{}", entry.key), complaints, |text| Ok::<_, String>(text.to_owned()));
    let role = if publishes.is_some() { Role::Publisher } else { Role::Subscriber };
    let command = fields.value("command", complaints).map(Start::Command);
    if let Some(image) = fields.node("image") {
        complaints.add(
            image.place,
            format!("systems.{}: this version starts no client by an image", entry.key),
            "use \"command:\"".to_owned(),
        );
    }
    let client = ClientEntry {
        name: entry.key.clone(),
        place: entry.place,
        role,
        to: to.unwrap_or_default(),
        to_place: to_node.place,
        begins_at: fields.choice("begins_at", &ROLES, complaints),
        count: fields.count("count", 1_000_000, complaints).unwrap_or(1),
        size: fields.parsed("size", complaints, payload).unwrap_or(Size::new(100)),
        rate: fields.value("rate", complaints).unwrap_or(Rate::Messages(1000.0)),
        qos: fields.parsed("qos", complaints, |text| match text {
            "0" | "1" | "2" => Ok(text.as_bytes()[0] - b'0'),
            _ => Err(format!("{text:?} is no QoS: give 0, 1 or 2")),
        }),
        acks: fields.parsed("acks", complaints, |text| {
            let known = [Acks::None, Acks::Leader, Acks::All].into_iter().find(|acks| acks.name() == text);
            known.ok_or_else(|| format!("{text:?} is no number of acknowledgements: give 0, 1 or all"))
        }),
        group: fields.value("group", complaints),
        version: fields.choice("version", &VERSIONS, complaints),
        session_expiry: fields.value("session_expiry", complaints),
        keep_alive: fields.value("keep_alive", complaints),
        slow: fields.parsed("slow", complaints, |text| match text.parse::<Rate>() {
            Ok(Rate::Messages(rate)) => Ok(rate),
            _ => Err(format!("{text:?} is no rate of a slow subscriber: give messages a second, as 100")),
        }),
        program: command,
        placing: placing(&mut fields, base, complaints),
    };
    if role == Role::Subscriber {
        for key in ["rate", "acks"] {
            if let Some(node) = entry.node.get(key) {
                complaints.add(
                    node.place,
                    format!("systems.{}: a subscriber has no {key}", entry.key),
                    "move it to the publisher".to_owned(),
                );
            }
        }
    }
    fields.finish(complaints);
    Some(client)
}

/// Names of the versions of MQTT in templates.
const VERSIONS: [(&str, Version); 3] = [("3.1.1", Version::V311), ("5", Version::V5), ("5.0", Version::V5)];

/// A payload holds at least the stamp by which a message is told from others.
fn payload(text: &str) -> Result<Size, String> {
    let size = text.parse::<Size>()?;
    if size.bytes() >= 20 {
        Ok(size)
    } else {
        Err(format!("{text:?} is too small: give at least 20 bytes, to number messages"))
    }
}
