//! Handles of machines.

use std::fs::{self, File, Metadata};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::command::Command;
use crate::error::Error;
use crate::process::Process;
use crate::protocol::{ToGuard, lock};
use crate::shared::{ProcessEnd, Shared};
use crate::signal::Exit;

/// A network, mount and PID namespace with an address of the lab. It stays as it is while its processes come and go.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(crate) lab: Arc<Shared>,
    pub(crate) number: u16,
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    pub(crate) data: PathBuf,
}

/// Result of a command that has ended.
#[derive(Clone, Debug)]
pub struct Output {
    /// How the command ended.
    pub exit: Exit,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

impl Machine {
    /// Host name, which all machines of the lab resolve.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Address of the machine's only interface, `eth0`.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Directory for the machine's data. With a disk, its content is visible in the machine only.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Makes the interface `eth0` of a guest in the network namespace that is the open file `namespace`, as
    /// `/proc/PID/ns/net`. The guest leaves the namespace that it was in before, as after the restart of a container.
    ///
    /// # Errors
    ///
    /// The machine is no guest; the file is no network namespace that the lab may enter, is that of this program, or has
    /// an `eth0` already; the lab has ended.
    pub fn join(&self, namespace: &File) -> Result<(), Error> {
        let number = |file: std::io::Result<Metadata>| file.map(|file| (file.dev(), file.ino()));
        let both = [namespace.metadata(), fs::metadata("/proc/self/ns/net")].map(number);
        let [joined, own] = both.map(|number| number.map_err(Error::io("look at a network namespace")));
        if joined? == own? {
            return Err(Error::Failed("the network of this program must not change".to_owned()));
        }
        self.lab.hand_over(namespace.as_fd(), |stream| ToGuard::Join { machine: self.number, stream })
    }

    /// Starts a process.
    ///
    /// # Errors
    ///
    /// The program or a file of the command cannot be opened; the lab has ended.
    pub fn spawn(&self, command: &Command) -> Result<Process, Error> {
        let (id, end) = (self.lab.number(), Arc::<ProcessEnd>::default());
        lock(&self.lab.processes).insert(id, Arc::clone(&end));
        let call = ToGuard::Spawn { machine: self.number, process: id, command: command.clone() };
        match self.lab.caller.call(&call) {
            Ok(pid) => Ok(Process { lab: Arc::clone(&self.lab), machine: self.number, id, pid, end }),
            Err(error) => {
                lock(&self.lab.processes).remove(&id);
                Err(error)
            }
        }
    }

    /// Starts a process with a stream as its standard input and output. It crosses no network of the lab.
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn); and the lab's directory has a path too long for a socket (about 90 bytes).
    pub fn spawn_with_stream(&self, command: &Command) -> Result<(Process, UnixStream), Error> {
        let path = self.lab.directory.join(format!("s{}", self.lab.number()));
        let listener = UnixListener::bind(&path).map_err(Error::io(format!("listen at {}", path.display())))?;
        let process = self.spawn(&Command { stream: Some(path.clone()), ..command.clone() });
        let _ = fs::remove_file(&path);
        // A started process has connected.
        let process = process?;
        let (stream, _) = listener.accept().map_err(Error::io("accept the process's stream"))?;
        Ok((process, stream))
    }

    /// Runs a command to its end and returns its output.
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn). An exit code other than 0 is no error.
    pub fn exec(&self, command: &Command) -> Result<Output, Error> {
        let number = self.lab.number();
        let [out, err] = ["out", "err"].map(|end| self.lab.directory.join(format!("exec-{number}.{end}")));
        let process = self.spawn(&command.clone().stdout(&out).stderr(&err))?;
        let exit = process.wait()?;
        let read = |path: &Path| {
            let content = fs::read(path).map_err(Error::io(format!("read {}", path.display())));
            let _ = fs::remove_file(path);
            content
        };
        Ok(Output { exit, stdout: read(&out)?, stderr: read(&err)? })
    }
}
