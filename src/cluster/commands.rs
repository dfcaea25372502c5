//! `tenbin cluster`.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use tenbin_broker::config::{Config, ConfigError, environment};
use tenbin_kit::cli;
use tenbin_kit::files::create_privately;
use tenbin_store::mirror::BackupError;
use tokio::runtime::{Builder, Runtime};

use super::backup;
use super::control::{self, ControlAnswer, ControlError, ControlRequest};
use super::dev::{self, DevArgs};
use super::link::secure::NodeTls;
use super::link::{self, DialError};
use super::status::NodeStatus;

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Runs a cluster on this machine for trying it out: etcd and two or three nodes.
    ///
    /// All of it listens on 127.0.0.1 alone, and ends with SIGINT (Ctrl-C) or SIGTERM. A node that is killed starts again
    /// after 3 seconds. The program etcd has to be in PATH: Debian's package is etcd-server.
    Dev(DevArgs),
    /// Shows the status of a node: its role, the leader, the follower and findings.
    ///
    /// Exit code 1 if the node cannot be asked.
    Status(StatusArgs),
    /// Lets the follower lead instead of the leader, for a maintenance of the leader. Clients connect again.
    ///
    /// Any node may be asked: it passes the command on to the leader. The old leader joins, and is the follower then. Exit
    /// code 1 if there is no follower with a complete copy, or it does not take over in time.
    Switch(SwitchArgs),
    /// Makes a node the leader, when no engine decides: for `agreement = "manual"`.
    ///
    /// The old leader has to be gone, or it keeps its clients until both nodes see each other. Exit code 1 if the node
    /// refuses.
    Promote(PromoteArgs),
    /// Writes the newest record that a node knows into an engine that has lost it.
    ///
    /// For "The engine has no record" and "the engine has lost data" of `status`. The command refuses if another node knows a
    /// newer record. If the record's leader or follower cannot be asked, and this node does not lead, it may have led since:
    /// the command names it, and needs --yes. Exit code 1 if the node refuses.
    Adopt(AdoptArgs),
    /// Makes a node the leader although the record names others, which are gone for ever.
    ///
    /// For a node with an old copy or a restored directory. The command refuses while a node of the record answers, and
    /// without --accept-loss. A node that is not gone ends its clients as soon as it reads the engine; this node acts after the
    /// time which that takes. Its directory is set aside when it comes back. Exit code 1 if the node refuses.
    Force(PromoteArgs),
    /// Writes a backup of the cluster into a file: sessions, messages, retained messages, Wills, bans and topic ids.
    ///
    /// Runs on the machine of the leader or of the follower, as the user of its node. The follower reads its copy, so that the
    /// leader does no work. Clients are served in that time. The backup is the state of a moment soon after the start of the
    /// command, with everything that was acknowledged before. The file appears once it is whole and checked, with all records
    /// of messages: a damaged store is refused with segment and offset. Exit code 1 if there is no backup. For a broker without
    /// a cluster: `tenbin store backup`.
    Backup(BackupArgs),
    /// Makes a data directory from a backup, of a cluster or of one broker.
    ///
    /// The directory is a new store that belongs to no cluster. A node that begins with it does not lead an existing cluster.
    /// Exit code 1 if the directory is not empty, or if the backup or the store in it is damaged; then nothing is written.
    Restore(RestoreArgs),
}

#[derive(Debug, Args)]
pub(crate) struct AdoptArgs {
    /// Data directory of the node, which runs on this machine; else TENBIN_DATA, else ./tenbin-data.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Adopts the record although a node cannot be asked. That node must not run.
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// The file. An existing one is replaced.
    file: PathBuf,
    /// Data directory of the node, which runs on this machine; else TENBIN_DATA, else ./tenbin-data.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Writes the file even if the store is damaged, and says what is. No broker starts with what is restored from it.
    #[arg(long)]
    accept_damage: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The backup.
    file: PathBuf,
    /// The directory: an empty one, or one that does not exist.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Restores a backup of a damaged store too, for `tenbin store dump`. No broker starts with the directory.
    #[arg(long)]
    accept_damage: bool,
}

/// The node that a command asks.
#[derive(Debug, Args)]
struct AskedNode {
    /// Data directory of a node on this machine; else TENBIN_DATA, else ./tenbin-data.
    #[arg(long, value_name = "DIR", conflicts_with = "address")]
    data: Option<PathBuf>,
    /// Cluster port of any node that accepts this machine's address: the key `cluster.listen`.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// Configuration file whose `certificate`, `key` and `ca` for clusters prove this machine to the other node.
    #[arg(long, value_name = "FILE", requires = "address")]
    config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    of: AskedNode,
    /// Prints JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Prints nothing if the node is ready: it leads and may act; or it passes clients on to a leader that has a complete
    /// copy at this node or at another one. Otherwise prints why not, with exit code 1.
    #[arg(long, conflicts_with = "json")]
    ready: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SwitchArgs {
    #[command(flatten)]
    of: AskedNode,
    /// The node that is to lead. Another one than the follower is refused.
    #[arg(long, value_name = "NODE")]
    to: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PromoteArgs {
    /// Data directory of the node, which runs on this machine; else TENBIN_DATA, else ./tenbin-data.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Promotes the node although it may lack messages that the old leader has acknowledged. Without it such a node
    /// refuses, and tells since when its copy is behind.
    #[arg(long)]
    accept_loss: bool,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Control(#[from] ControlError),
    #[error("{0}")]
    Dial(#[from] DialError),
    #[error("the status cannot be read: {0}")]
    Status(#[from] serde_json::Error),
    #[error("{0}")]
    Backup(#[from] BackupError),
    #[error("{}: not written, for the store is damaged: {damage}; --accept-damage writes it nevertheless", path.display())]
    Damaged { path: PathBuf, damage: String },
    #[error("{0}")]
    Config(#[from] ConfigError),
    #[error("{0}")]
    Tls(String),
    #[error("not ready: {0}")]
    NotReady(String),
    #[error("{0}")]
    Dev(String),
}

pub(crate) fn run(command: ClusterCommand) -> Result<(), ClusterError> {
    match command {
        ClusterCommand::Dev(arguments) => runtime()?.block_on(dev::run(&arguments)).map_err(ClusterError::Dev),
        ClusterCommand::Status(arguments) => {
            let status = runtime()?.block_on(arguments.ask())?;
            if arguments.ready {
                return status.not_ready().map_or(Ok(()), |reason| Err(ClusterError::NotReady(reason.to_owned())));
            }
            let text = if arguments.json { format!("{:#}\n", serde_json::to_value(&status)?) } else { status.table() };
            Ok(cli::out().write_all(text.as_bytes())?)
        }
        ClusterCommand::Switch(arguments) => {
            let message = runtime()?.block_on(arguments.switch())?;
            Ok(writeln!(cli::out(), "{message}")?)
        }
        ClusterCommand::Promote(PromoteArgs { data, accept_loss }) => {
            command_node(data.as_deref(), &ControlRequest::Promote { accept_loss })
        }
        ClusterCommand::Adopt(AdoptArgs { data, yes }) => command_node(data.as_deref(), &ControlRequest::Adopt { yes }),
        ClusterCommand::Force(PromoteArgs { data, accept_loss }) => {
            command_node(data.as_deref(), &ControlRequest::Force { accept_loss })
        }
        ClusterCommand::Backup(BackupArgs { file, data, accept_damage }) => {
            let contents = backup::write(&directory(data.as_deref()), &file, accept_damage)?;
            Ok(writeln!(cli::out(), "{}: {}", file.display(), backup::words(&contents))?)
        }
        ClusterCommand::Restore(RestoreArgs { file, data, accept_damage }) => {
            create_privately();
            let contents = tenbin_store::mirror::restore(&file, &data, accept_damage)?;
            Ok(writeln!(cli::out(), "{}: restored {}", data.display(), backup::words(&contents))?)
        }
    }
}

/// Sends a command to the node on this machine, and prints its answer.
fn command_node(data: Option<&Path>, request: &ControlRequest) -> Result<(), ClusterError> {
    match runtime()?.block_on(control::ask(&directory(data), request, PROMOTE_TIMEOUT))? {
        ControlAnswer::Done { message } => Ok(writeln!(cli::out(), "{message}")?),
        _ => Err(ControlError::Unexpected.into()),
    }
}

impl SwitchArgs {
    async fn switch(self) -> Result<String, ClusterError> {
        let limit = 2 * control::SWITCH_TIMEOUT;
        if let Some(address) = &self.of.address {
            let tls = tls_of(self.of.config.as_deref())?;
            let status = link::ask_status(address, tls.as_deref(), STATUS_TIMEOUT).await?;
            let status: NodeStatus = serde_json::from_value(status)?;
            return Ok(link::ask_switch(address, tls.as_deref(), &status.cluster, "", self.to, limit).await?);
        }
        let request = ControlRequest::Switch { to: self.to };
        match control::ask(&directory(self.of.data.as_deref()), &request, limit).await? {
            ControlAnswer::Done { message } => Ok(message),
            _ => Err(ControlError::Unexpected.into()),
        }
    }
}

impl StatusArgs {
    async fn ask(&self) -> Result<NodeStatus, ClusterError> {
        match &self.of.address {
            Some(address) => {
                let tls = tls_of(self.of.config.as_deref())?;
                Ok(serde_json::from_value(link::ask_status(address, tls.as_deref(), STATUS_TIMEOUT).await?)?)
            }
            None => Ok(control::ask_status(&directory(self.of.data.as_deref()), STATUS_TIMEOUT).await?),
        }
    }
}

/// TLS between nodes, as a node's configuration has it.
fn tls_of(config: Option<&Path>) -> Result<Option<Arc<NodeTls>>, ClusterError> {
    let Some(file) = config else { return Ok(None) };
    let config = Config::read_with(file, environment())?;
    NodeTls::load(&config.cluster).map_err(ClusterError::Tls)
}

/// The data directory that the command line names, else the environment, else the default.
fn directory(given: Option<&Path>) -> PathBuf {
    let of_environment = || std::env::var_os("TENBIN_DATA").filter(|value| !value.is_empty()).map(PathBuf::from);
    given.map(Path::to_owned).or_else(of_environment).unwrap_or_else(|| "tenbin-data".into())
}

pub(super) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// A promotion waits for the end of a lease, and opens the store.
const PROMOTE_TIMEOUT: Duration = Duration::from_secs(300);
