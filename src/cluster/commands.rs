//! `tenbin cluster`.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use tokio::runtime::{Builder, Runtime};

use super::control::{self, ControlAnswer, ControlError, ControlRequest};
use super::dev::{self, DevArgs};
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
    /// Makes a node the leader, when no engine decides: for `agreement = "manual"`.
    ///
    /// The old leader has to be gone, or it keeps its clients until both nodes see each other. Exit code 1 if the node
    /// refuses.
    Promote(PromoteArgs),
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Data directory of a node on this machine; else TENBIN_DATA, else ./tenbin-data.
    #[arg(long, value_name = "DIR", conflicts_with = "address")]
    data: Option<PathBuf>,
    /// Cluster port of any node that accepts this machine's address: the key `cluster.listen`.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// Prints JSON instead of a table.
    #[arg(long)]
    json: bool,
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
    Dev(String),
}

pub(crate) fn run(command: ClusterCommand) -> Result<(), ClusterError> {
    match command {
        ClusterCommand::Dev(arguments) => runtime()?.block_on(dev::run(&arguments)).map_err(ClusterError::Dev),
        ClusterCommand::Status(arguments) => {
            let status = runtime()?.block_on(arguments.ask())?;
            let text = if arguments.json { format!("{:#}\n", serde_json::to_value(&status)?) } else { status.table() };
            Ok(io::stdout().write_all(text.as_bytes())?)
        }
        ClusterCommand::Promote(PromoteArgs { data, accept_loss }) => {
            let request = ControlRequest::Promote { accept_loss };
            let directory = directory(data.as_deref());
            match runtime()?.block_on(control::ask(&directory, &request, PROMOTE_TIMEOUT))? {
                ControlAnswer::Done { message } => Ok(writeln!(io::stdout(), "{message}")?),
                _ => Err(ControlError::Unexpected.into()),
            }
        }
    }
}

impl StatusArgs {
    async fn ask(&self) -> Result<NodeStatus, ClusterError> {
        match &self.address {
            Some(address) => Ok(serde_json::from_value(link::ask_status(address, STATUS_TIMEOUT).await?)?),
            None => Ok(control::ask_status(&directory(self.data.as_deref()), STATUS_TIMEOUT).await?),
        }
    }
}

/// The data directory that the command line names, else the environment, else the default.
fn directory(given: Option<&Path>) -> PathBuf {
    let of_environment = || std::env::var_os("TENBIN_DATA").filter(|value| !value.is_empty()).map(PathBuf::from);
    given.map(Path::to_owned).or_else(of_environment).unwrap_or_else(|| "tenbin-data".into())
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// A promotion waits for the end of a lease, and opens the store.
const PROMOTE_TIMEOUT: Duration = Duration::from_secs(300);
