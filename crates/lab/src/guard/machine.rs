//! One machine, as the guard sees it: its namespaces and its first process.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command as Program, Stdio};

use crate::disk::Disk;
use crate::error::Error;
use crate::protocol::{Answer, Answers, Caller, ToMachine};

/// One machine, as the guard sees it.
pub(super) struct Machine {
    pub(super) name: String,
    pub(super) data: PathBuf,
    pub(super) disk: Option<Disk>,
    init: Caller,
    /// `unshare`, whose namespaces are those of the machine. The kernel ends the machine with it.
    child: Child,
}

impl Machine {
    /// Creates the namespaces and starts the first process, which the next call awaits.
    pub(super) fn start(
        name: String,
        data: PathBuf,
        disk: Option<Disk>,
        helper: &[String],
        answers: Answers,
    ) -> Result<Self, Error> {
        let (own, its) = UnixStream::pair().map_err(Error::io("make a pair of sockets"))?;
        let settings = serde_json::to_string(helper).map_err(|error| Error::Failed(error.to_string()))?;
        let child = Program::new("unshare")
            .args(["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(helper)
            .args(["machine", &name, &settings])
            .stdin(Stdio::from(OwnedFd::from(its)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(Error::io(format!("start machine {name}")))?;
        let exited = move |process, exit| answers.send(&Answer::Exited { process, exit });
        let init = Caller::start(own, exited, || ()).map_err(Error::io("start a thread"))?;
        Ok(Self { name, data, disk, init, child })
    }

    /// Process whose network namespace is the machine's.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Path of the machine's network namespace.
    pub(super) fn network(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.pid()))
    }

    pub(super) fn call<R: serde::de::DeserializeOwned>(&self, call: &ToMachine) -> Result<R, Error> {
        self.init.call(call).map_err(|error| match error {
            Error::Ended => Error::Failed(format!("machine {} has ended", self.name)),
            error => error,
        })
    }

    /// Runs a program in the machine's namespaces.
    pub(super) fn run(&self, line: &[&str], input: &str) -> Result<(), Error> {
        let line = line.iter().map(|&part| part.to_owned()).collect();
        self.call(&ToMachine::Run { line, input: input.to_owned() })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.init.close();
        let _ = self.child.wait();
    }
}
