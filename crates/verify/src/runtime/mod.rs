//! Runtimes: machines, processes and links of a run.

#[cfg(target_os = "linux")]
mod containers;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
mod namespaces;
#[cfg(target_os = "linux")]
pub(crate) mod nodes;
mod processes;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

#[cfg(target_os = "linux")]
pub(crate) use namespaces::Namespaces;
#[cfg(target_os = "linux")]
pub(crate) use nodes::Nodes;
pub(crate) use processes::Processes;

use crate::groups::Limit;
use crate::line::{Line, Programs};

/// First part of the names of working directories, below that of temporary files.
pub(crate) const WORK: &str = "tenbin-verify-";

/// Directory of the logs, in the results of a run.
pub(crate) const LOGS: &str = "logs";

/// Directory for files that instances and clients leave, in the results of a run.
pub(crate) const FILES: &str = "files";

/// Surroundings of a run on this machine.
pub(crate) struct Site<'a> {
    /// Directory of its working files.
    pub(crate) work: &'a Path,
    /// Directory of its results.
    pub(crate) results: &'a Path,
    /// Programs of this project.
    pub(crate) programs: &'a Programs,
    /// Undos of changes outside of the lab.
    #[cfg(target_os = "linux")]
    pub(crate) journal: Option<&'a std::sync::Arc<tenbin_lab::journal::Journal>>,
}

/// The machines of a run. Dropping it ends all of their processes.
pub(crate) trait World: Send + Sync {
    /// Address on which instances listen.
    fn listen(&self) -> &'static str;

    /// Directory for the data of a machine.
    fn data(&self, machine: &str) -> PathBuf;

    /// Makes the directories for the files of an instance or client, and for its own results.
    fn directories(&self, name: &str) -> Result<(PathBuf, PathBuf), String>;

    /// Programs of this project, as the machine sees them.
    fn programs(&self, machine: &str) -> Programs;

    /// Writes a file of a machine, and makes its directory. `mode` is the one of a file that it is a copy of.
    fn write(&self, machine: &str, path: &Path, content: &[u8], mode: Option<u32>) -> Result<(), String> {
        let _ = machine;
        write_here(path, content, mode)
    }

    /// Fetches the results of instances and clients that are not here yet.
    fn fetch_results(&self) -> Result<(), String> {
        Ok(())
    }

    /// Processors of a machine.
    fn processors(&self, machine: &str) -> u32 {
        let _ = machine;
        processors_here()
    }

    /// Starts a process; its output is appended to `log`.
    fn spawn(&self, machine: &str, line: &Line, log: &Path) -> Result<Box<dyn Proc>, String>;

    /// Starts a process with a stream as its standard input and output; its errors are appended to `log`.
    fn spawn_with_stream(&self, machine: &str, line: &Line, log: &Path) -> Result<(Box<dyn Proc>, UnixStream), String>;

    /// Runs a command to its end.
    fn exec(&self, machine: &str, line: &Line) -> Result<Output, String>;

    /// Starts a program of this machine beside an instance: with its network and its data, without its limits and the
    /// files of a container.
    fn spawn_beside(&self, machine: &str, line: &Line, log: &Path) -> Result<Box<dyn Proc>, String> {
        self.spawn(machine, line, log)
    }

    /// As [`Self::spawn_beside`], with a stream as standard input and output.
    fn spawn_beside_with_stream(
        &self,
        machine: &str,
        line: &Line,
        log: &Path,
    ) -> Result<(Box<dyn Proc>, UnixStream), String> {
        self.spawn_with_stream(machine, line, log)
    }

    /// As [`Self::exec`], with a program of this machine beside an instance.
    fn exec_beside(&self, machine: &str, line: &Line) -> Result<Output, String> {
        self.exec(machine, line)
    }

    /// Adds a fault to links, from one machine to another. It ends after `time`, or when it is lifted.
    fn impair(&self, links: &[(String, String)], shape: &LinkFault, time: Option<Duration>) -> Result<u64, String> {
        let _ = (links, shape, time);
        Err("this runtime has no network to break".to_owned())
    }

    /// Ends a fault of links.
    fn lift(&self, fault: u64) -> Result<(), String> {
        let _ = fault;
        Ok(())
    }

    /// Limits processor time or memory of an instance or client; returns the number of the limit.
    fn limit(&self, machine: &str, limit: Limit) -> Result<u64, String> {
        let _ = (machine, limit);
        Err("this runtime has no control groups".to_owned())
    }

    /// Writes the limit back that held before.
    fn end_limit(&self, number: u64) -> Result<(), String> {
        let _ = number;
        Ok(())
    }

    /// Cuts the power of machines at one instant.
    fn power_cut(&self, machines: &[String]) -> Result<(), String> {
        let _ = machines;
        Err("this runtime has no disk image to cut off".to_owned())
    }

    /// Counters of all links since the start; empty for a runtime without a private network.
    fn links(&self) -> Vec<LinkCount> {
        Vec::new()
    }

    /// Reason why some machines cannot be reached any more.
    fn lost(&self) -> Option<String> {
        None
    }

    /// Ends all processes and undoes all changes; returns the undos that failed.
    fn close(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Writes a file of this host, and makes its directory. Its owner may write it again with any `mode`.
pub(crate) fn write_here(path: &Path, content: &[u8], mode: Option<u32>) -> Result<(), String> {
    let write = || {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, content)?;
        mode.map_or(Ok(()), |mode| fs::set_permissions(path, Permissions::from_mode(mode & 0o777 | 0o200)))
    };
    write().map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Makes the directories of an instance or client on this host.
fn directories_here(work: &Path, results: &Path, name: &str) -> Result<(PathBuf, PathBuf), String> {
    // Instances may run in other directories.
    let results = std::path::absolute(results).unwrap_or_else(|_| results.to_owned());
    let directories = (work.join("config").join(name), results.join(FILES).join(name));
    for directory in [&directories.0, &directories.1] {
        fs::create_dir_all(directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    }
    Ok(directories)
}

/// Processors of this host.
pub(crate) fn processors_here() -> u32 {
    thread::available_parallelism().map_or(1, |processors| processors.get() as u32)
}

/// A process of a machine, with its descendants.
pub(crate) trait Proc: Send + Sync {
    /// Sends SIGTERM to the process.
    fn terminate(&self) -> Result<(), String>;

    /// Sends SIGKILL to the whole tree, and returns when it is gone.
    fn kill(&self) -> Result<(), String>;

    /// Stops the whole tree. The machine itself continues it after `time`.
    fn stop(&self, time: Option<Duration>) -> Result<(), String>;

    /// Continues the whole tree.
    fn resume(&self) -> Result<(), String>;

    /// How the process ended, if it does within `time`.
    fn ended(&self, time: Duration) -> Option<String>;

    /// Usage of the whole tree; `None` if it is gone, or not known here.
    fn usage(&self) -> Option<Usage> {
        None
    }
}

/// Use of processor, memory and disk since the start of a process tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// User and system time.
    pub(crate) processor: Duration,
    pub(crate) resident_bytes: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
}

#[cfg(target_os = "linux")]
impl From<tenbin_lab::Usage> for Usage {
    fn from(usage: tenbin_lab::Usage) -> Self {
        let tenbin_lab::Usage { processor, resident_bytes, read_bytes, written_bytes } = usage;
        Self { processor, resident_bytes, read_bytes, written_bytes }
    }
}

/// Result of a command that has ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Output {
    /// True for exit code 0.
    pub(crate) is_success: bool,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

/// Faults of a link.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LinkFault {
    /// Time that each frame is held, and the greatest deviation.
    pub(crate) delay: Duration,
    pub(crate) jitter: Duration,
    /// Lets frames overtake each other.
    pub(crate) reorder: bool,
    /// Probabilities.
    pub(crate) loss: f64,
    pub(crate) duplicate: f64,
    pub(crate) corrupt: f64,
    /// Bits a second, and bytes that may wait.
    pub(crate) rate: Option<(u64, u64)>,
    /// Drops everything.
    pub(crate) partition: bool,
}

/// Counters of one direction between two machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinkCount {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) bytes: u64,
    pub(crate) packets: u64,
    pub(crate) dropped: u64,
    pub(crate) queued_bytes: u64,
}
