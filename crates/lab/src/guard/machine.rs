//! One machine, as the guard sees it: its namespaces and its first process.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command as Program, Stdio};
use std::sync::Mutex;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::disk::Disk;
use crate::error::Error;
use crate::program;
use crate::protocol::{Answer, Answers, Caller, ToMachine, lock};

/// One machine, as the guard sees it.
pub(super) struct Machine {
    pub(super) name: String,
    pub(super) data: PathBuf,
    pub(super) disk: Option<Disk>,
    place: MachineKind,
}

/// Namespaces of a machine.
enum MachineKind {
    /// The lab's.
    Own {
        init: Caller,
        /// `unshare`, which made the machine's namespaces. The kernel ends the machine with this process.
        child: Child,
    },
    /// The network namespace of another program, once it is known.
    Guest(Mutex<Option<OwnedFd>>),
}

const IP_BATCH: [&str; 3] = ["ip", "-batch", "-"];

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
        Ok(Self { name, data, disk, place: MachineKind::Own { init, child } })
    }

    /// A guest: a machine in another program's namespace, which joins the lab later.
    pub(super) fn guest(name: String, data: PathBuf) -> Self {
        Self { name, data, disk: None, place: MachineKind::Guest(Mutex::default()) }
    }

    /// True for a machine in another program's namespaces.
    pub(super) fn is_guest(&self) -> bool {
        matches!(self.place, MachineKind::Guest(_))
    }

    /// Sets the network namespace of a guest.
    pub(super) fn enter(&self, namespace: OwnedFd) -> Result<(), Error> {
        let MachineKind::Guest(known) = &self.place else {
            return Err(Error::Failed(format!("machine {} is no guest: it has a network already", self.name)));
        };
        *lock(known) = Some(namespace);
        Ok(())
    }

    /// Calls `act` with the path of the machine's network namespace, as processes of the guard see it.
    pub(super) fn with_network<R>(&self, act: impl FnOnce(&str) -> Result<R, Error>) -> Result<R, Error> {
        match &self.place {
            MachineKind::Own { child, .. } => act(&format!("/proc/{}/ns/net", child.id())),
            MachineKind::Guest(namespace) => match &*lock(namespace) {
                Some(namespace) => act(&format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd())),
                None => Err(Error::Failed(format!("guest {} has no network yet", self.name))),
            },
        }
    }

    /// Runs `ip` with lines of commands in the machine's network. A guest without a network learns of them when it joins.
    pub(super) fn ip(&self, lines: &str) -> Result<(), Error> {
        match &self.place {
            MachineKind::Own { .. } => self.run(&IP_BATCH, lines),
            MachineKind::Guest(namespace) if lock(namespace).is_none() => Ok(()),
            // The guard runs `ip` itself, because a container may lack the program.
            MachineKind::Guest(_) => self.with_network(|path| within(path, || program::run(&IP_BATCH, lines))),
        }
    }

    pub(super) fn call<R: serde::de::DeserializeOwned>(&self, call: &ToMachine) -> Result<R, Error> {
        let MachineKind::Own { init, .. } = &self.place else {
            return Err(Error::Failed(format!("machine {} is a guest: the lab has no processes in it", self.name)));
        };
        init.call(call).map_err(|error| match error {
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

/// Calls `act` in the network namespace that is the file `path`. Programs that it starts are in it too.
pub(super) fn within<R: Send>(path: &str, act: impl FnOnce() -> Result<R, Error> + Send) -> Result<R, Error> {
    let act = move || {
        let namespace = File::open(path).map_err(Error::io(format!("open {path}")))?;
        let moved = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network));
        moved.map_err(|error| Error::io("enter a network namespace")(error.into()))?;
        act()
    };
    // On a new thread, because a thread is in one network namespace only.
    let done = thread::scope(|scope| scope.spawn(act).join());
    done.unwrap_or_else(|_| Err(Error::Failed("a thread panicked".to_owned())))
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let MachineKind::Own { init, child } = &mut self.place {
            init.close();
            let _ = child.wait();
        }
    }
}
