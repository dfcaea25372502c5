//! Kinds of systems: files and command line of an instance, its readiness, and its present leader.
//!
//! A kind is a [`System`]. To add a kind, implement it in a new module and name it in [`system`].

mod etcd;
mod kafka;
mod mosquitto;
mod nats;
mod program;
mod rabbitmq;
#[cfg(test)]
pub(crate) mod started;
mod tenbin;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::docker;
use crate::kind::Kind;
use crate::line::{Line, Programs};
use crate::plan::Instance;
use crate::template::{Ready, StartBy};
use crate::variables;

/// A kind of system, as the tool starts its instances.
pub(crate) trait System: Sync {
    /// Files, commands and readiness of an instance.
    ///
    /// # Errors
    /// Settings of the template that this kind cannot have. The text names them.
    fn startup(&self, place: &InstancePlace<'_>) -> Result<Startup, String>;

    /// Command that prints the name of the leading instance of `instances`, which form one system. It runs on the machine
    /// of one of them. `None` if the kind has no leader.
    fn probe(&self, instances: &[&Instance], programs: &Programs) -> Option<Line> {
        let _ = (instances, programs);
        None
    }

    /// Unix socket at which an instance tells its role, where its data is in `data`. `None` if it has none.
    fn status_socket(&self, instance: &Instance, data: &Path) -> Option<PathBuf> {
        let _ = (instance, data);
        None
    }
}

/// Where an instance runs.
pub(crate) struct InstancePlace<'a> {
    /// The instance, with its addresses for clients and peers.
    pub(crate) instance: &'a Instance,
    /// All instances of its system, in order, itself among them.
    pub(crate) all: &'a [&'a Instance],
    /// Address to listen on: all addresses of its machine, or loopback.
    pub(crate) listen: &'a str,
    /// Directory for its files: the files of its kind and of `configs/NAME/`.
    pub(crate) files: &'a Path,
    /// Directory whose files become part of the results.
    pub(crate) results: &'a Path,
    /// Directory for its data, which is empty at the first start and kept for later ones.
    pub(crate) data: &'a Path,
    /// The broker of this project.
    pub(crate) tenbin: &'a Path,
    /// Address of its machine.
    pub(crate) address: IpAddr,
    /// Addresses for clients of all instances of etcd in the plan.
    pub(crate) etcd: &'a [String],
}

#[cfg(test)]
impl<'a> InstancePlace<'a> {
    /// Place of the second instance, for tests of configurations.
    fn of_second(all: &'a [&'a Instance], address: IpAddr, etcd: &'a [String]) -> Self {
        let [files, results, data, tenbin] = ["/files", "/results", "/data", "/bin/tenbin"].map(Path::new);
        Self { instance: all[1], all, listen: "0.0.0.0", files, results, data, tenbin, address, etcd }
    }
}

impl InstancePlace<'_> {
    /// Directories of its data, files and results, as the instance sees them.
    fn seen(&self) -> [PathBuf; 3] {
        match self.instance.start {
            StartBy::Image(_) => [docker::DATA, docker::CONFIGS, docker::RESULTS].map(PathBuf::from),
            _ => [self.data, self.files, self.results].map(Path::to_owned),
        }
    }

    /// Port of its clients.
    pub(crate) fn port(&self) -> u16 {
        port(&self.instance.door)
    }
}

/// Port of `HOST:PORT`.
pub(crate) fn port(address: &str) -> u16 {
    address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or_default()
}

/// How an instance is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Startup {
    /// Files with their content, written before the first start.
    pub(crate) files: Vec<(PathBuf, String)>,
    /// Commands that run to their end before the first start, as the formatting of a store.
    pub(crate) prepare: Vec<Line>,
    /// The instance itself.
    pub(crate) line: Line,
    /// When it is ready.
    pub(crate) ready: ReadyWhen,
}

/// When a started instance is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReadyWhen {
    /// It accepts connections at this port of its machine.
    Port(u16),
    /// It answers a CONNECT packet of MQTT at this port of its machine. A broker may listen before it has its state.
    Mqtt(u16),
    /// `GET /health` at this port of its machine says that it is healthy.
    Health(u16),
    /// Its output has a line with this text.
    Line(String),
    /// This command ends with exit code 0. It is started again until then.
    Command(Line),
}

/// The system of a kind.
///
/// # Errors
/// The tool cannot start this kind. The text says what to do instead.
pub(crate) fn system(kind: Kind) -> Result<&'static dyn System, String> {
    match kind {
        Kind::Tenbin => Ok(&tenbin::Tenbin),
        Kind::Mosquitto => Ok(&mosquitto::Mosquitto),
        Kind::Mqtt | Kind::Command => Ok(&program::Program),
        Kind::Etcd => Ok(&etcd::Etcd),
        Kind::Kafka => Ok(&kafka::Kafka),
        Kind::Nats => Ok(&nats::Nats),
        Kind::Jetstream => Ok(&nats::Jetstream),
        Kind::Rabbitmq => Ok(&rabbitmq::Rabbitmq),
    }
}

/// The probe of a kind that this program can ask: `tenbin-verify probe KIND NAME=HOST:PORT …`.
fn probe(instances: &[&Instance], programs: &Programs) -> Line {
    let kind = instances.first().map_or("", |instance| instance.kind.name());
    let doors = instances.iter().map(|instance| format!("{}={}", instance.name, instance.door));
    let arguments = ["probe", kind].map(String::from).into_iter().chain(doors);
    programs.verify(arguments)
}

/// The startup of an instance: its kind's startup or the template's command, with the template's readiness, environment
/// and processors.
///
/// # Errors
/// As [`System::startup`] and [`system`].
pub(crate) fn startup(place: &InstancePlace<'_>) -> Result<Startup, String> {
    let own = |pairs: &[(String, String)]| -> Result<Vec<_>, String> {
        let value = |(key, value): &(String, String)| Ok((key.clone(), variables::filled(&filled(value, place))?));
        pairs.iter().map(value).collect()
    };
    let Instance { config, environment, name, .. } = place.instance;
    let in_instance = |reason: String| format!("{name}: {reason}");
    let config = own(config).map_err(in_instance)?;
    let environment = own(environment).map_err(in_instance)?;
    let instance = &Instance { config, environment, ..place.instance.clone() };
    let place = &InstancePlace { instance, ..*place };
    let system = match instance.start {
        StartBy::Kind => system(instance.kind)?,
        _ => &program::Program,
    };
    let mut startup = system.startup(place).map_err(in_instance)?;
    match &instance.ready {
        None => {}
        Some(Ready::Port(port)) => startup.ready = ReadyWhen::Port(*port),
        Some(Ready::Line(text)) => startup.ready = ReadyWhen::Line(text.clone()),
        Some(Ready::Command(command)) => startup.ready = ReadyWhen::Command(Line::shell(filled(command, place))),
    }
    startup.line.environment.extend(instance.environment.iter().cloned());
    let [_, files, results] = place.seen();
    startup.line.environment.extend(directories(&files, &results));
    // Docker sets the processors of a container.
    if !matches!(instance.start, StartBy::Image(_)) {
        startup.line = startup.line.on(&instance.cpus);
    }
    Ok(startup)
}

/// Environment variables with the directories of an instance or client.
pub(crate) fn directories(files: &Path, results: &Path) -> [(String, String); 2] {
    [("TENBIN_CONFIGS", files), ("TENBIN_RESULTS", results)]
        .map(|(name, path)| (name.to_owned(), path.display().to_string()))
}

/// `text` with `{address}`, `{port}`, `{data}`, `{config}`, `{results}` and `{peers}` of an instance.
pub(crate) fn filled(text: &str, place: &InstancePlace<'_>) -> String {
    let port = place.port().to_string();
    let [data, files, results] = place.seen().map(|path| path.display().to_string());
    let pairs = [
        ("{address}", format!("{}:{port}", place.listen)),
        ("{port}", port),
        ("{data}", data),
        ("{config}", files),
        ("{results}", results),
        ("{peers}", place.instance.peers.join(",")),
    ];
    pairs.into_iter().fold(text.to_owned(), |text, (key, value)| text.replace(key, &value))
}
