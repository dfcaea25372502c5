//! The program's side of a lab.

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Program, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::disk::Disk;
use crate::error::Error;
use crate::helper::Helper;
use crate::machine::Machine;
use crate::protocol::{Caller, HOSTS, Settings, ToGuard, lock};
use crate::shared::{Processes, Shared};
use crate::switch::{LinkCounters, PortKind, Shape};

/// Settings of a lab.
#[derive(Clone, Debug)]
pub struct Builder {
    helper: Helper,
    directory: PathBuf,
    seed: u64,
    port: PortKind,
}

impl Builder {
    /// Seed of all random draws. Default: 1.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How machines are joined to the switch. Default: [`PortKind::Auto`].
    #[must_use]
    pub fn port(mut self, port: PortKind) -> Self {
        self.port = port;
        self
    }

    /// Starts the guard and its switch.
    ///
    /// # Errors
    ///
    /// [`Error::Namespaces`] if this user may not create namespaces here; others if a program or file is missing.
    pub fn start(self) -> Result<Lab, Error> {
        fs::create_dir_all(&self.directory).map_err(Error::io(format!("create {}", self.directory.display())))?;
        let directory = self.directory.canonicalize().map_err(Error::io("resolve the lab's directory"))?;
        let log = directory.join("guard.log");
        let stderr = File::create(&log).map_err(Error::io(format!("create {}", log.display())))?;
        let helper = self.helper.line().to_vec();
        let settings = Settings { seed: self.seed, directory: directory.clone(), port: self.port, helper };
        let settings = serde_json::to_string(&settings).map_err(|error| Error::Failed(error.to_string()))?;
        let (own, guards) = UnixStream::pair().map_err(Error::io("make a pair of sockets"))?;
        let mut line = unshare();
        line.extend(self.helper.line().iter().map(String::as_str));
        let child = Program::new(line[0])
            .args(&line[1..])
            .args(["lab", &settings])
            .stdin(Stdio::from(OwnedFd::from(guards)))
            .stdout(Stdio::null())
            .stderr(stderr)
            // Signals of the terminal are for the program, which ends the lab in its own way.
            .process_group(0)
            .spawn()
            .map_err(Error::io("start `unshare`"))?;
        let processes = Processes::default();
        let (known, all) = (Arc::clone(&processes), Arc::clone(&processes));
        let exited = move |process, exit| {
            if let Some(end) = lock(&known).remove(&process) {
                end.set(Ok(exit));
            }
        };
        let ended = move || lock(&all).drain().for_each(|(_, end)| end.set(Err(())));
        let caller = Caller::start(own, exited, ended).map_err(Error::io("start a thread"))?;
        let shared = Shared { caller, directory, processes, numbers: AtomicU64::new(1), names: Mutex::default() };
        let lab = Lab { shared: Arc::new(shared), child };
        match lab.shared.caller.call(&ToGuard::Hello) {
            Ok(()) => Ok(lab),
            Err(Error::Ended) => {
                // The child has ended, so that its messages are complete.
                drop(lab);
                let reason = fs::read_to_string(&log).unwrap_or_default().trim().to_owned();
                let is_namespace = reason.starts_with("unshare: ") && !reason.contains("execute");
                Err(if is_namespace { Error::Namespaces(reason) } else { Error::Failed(reason) })
            }
            Err(error) => Err(error),
        }
    }
}

/// The program that creates the guard's namespaces. Root keeps its rights, as loop devices and cgroups need them;
/// other users become root of a user namespace.
fn unshare() -> Vec<&'static str> {
    let user: &[&str] = if rustix::process::geteuid().is_root() { &[] } else { &["--user", "--map-root-user"] };
    let rest = ["--pid", "--net", "--mount", "--fork", "--kill-child", "--mount-proc"];
    ["unshare"].into_iter().chain(user.iter().copied()).chain(rest).collect()
}

/// Machines made of namespaces, and a switch between them. See the [crate's page](crate).
///
/// Dropping it ends all processes of all machines, and waits until they are gone; the end of the program does so too,
/// even by SIGKILL.
#[derive(Debug)]
pub struct Lab {
    shared: Arc<Shared>,
    child: Child,
}

/// Faults of some links, which can be lifted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Impairment(u64);

impl Lab {
    /// Settings for a lab. It keeps its files (data of machines, hosts file, `guard.log`) in `directory`, and leaves them there.
    pub fn builder(helper: Helper, directory: impl Into<PathBuf>) -> Builder {
        Builder { helper, directory: directory.into(), seed: 1, port: PortKind::Auto }
    }

    /// File with names and addresses of all machines, in the form of `/etc/hosts`.
    #[must_use]
    pub fn hosts(&self) -> PathBuf {
        self.shared.directory.join(HOSTS)
    }

    /// The lab's directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.shared.directory
    }

    /// Adds a machine with a name, an address, and a directory for its data. All machines find each other by name.
    ///
    /// # Errors
    ///
    /// The name is in use or no host name; a disk needs more rights or space; a step failed.
    pub fn machine(&self, name: &str, disk: Option<Disk>) -> Result<Machine, Error> {
        self.add(name, |name, data| ToGuard::Machine { name, data, disk })
    }

    /// Adds a guest: a machine in the network namespace of another program, for example a container. It has name, address
    /// and links at once, and an interface from its first [`Machine::join`] on. The lab starts no processes in it.
    ///
    /// # Errors
    ///
    /// The name is in use or no host name; a step failed.
    pub fn guest(&self, name: &str) -> Result<Machine, Error> {
        self.add(name, |name, data| ToGuard::Guest { name, data })
    }

    fn add(&self, name: &str, call: impl FnOnce(String, PathBuf) -> ToGuard) -> Result<Machine, Error> {
        let mut names = lock(&self.shared.names);
        check_name(name, &names)?;
        let data = self.shared.directory.join("machines").join(name).join("data");
        fs::create_dir_all(&data).map_err(Error::io(format!("create {}", data.display())))?;
        let (number, address) = self.shared.caller.call(&call(name.to_owned(), data.clone()))?;
        names.push(name.to_owned());
        Ok(Machine { lab: Arc::clone(&self.shared), number, name: name.to_owned(), address, data })
    }

    /// Adds a machine of another lab, whose frames come and go through a [trunk](Self::trunk). It has no processes here.
    /// Labs that are joined must add the same machines in the same order: their numbers give addresses.
    ///
    /// # Errors
    ///
    /// As [`machine`](Self::machine).
    pub fn remote(&self, name: &str) -> Result<Machine, Error> {
        let mut names = lock(&self.shared.names);
        check_name(name, &names)?;
        let (number, address) = self.shared.caller.call(&ToGuard::Remote { name: name.to_owned() })?;
        names.push(name.to_owned());
        let (lab, name, data) = (Arc::clone(&self.shared), name.to_owned(), PathBuf::new());
        Ok(Machine { lab, number, name, address, data })
    }

    /// Joins another lab's machines by a TCP connection to it. The other side calls this with its end of the connection
    /// and the machines of this lab. Faults of a link act at the sender's lab alone, so that [`impair`](Self::impair) is
    /// for the labs of the senders.
    ///
    /// # Errors
    ///
    /// The lab has ended, or its directory has a path too long for a socket.
    pub fn trunk(&self, stream: &TcpStream, machines: &[&Machine]) -> Result<(), Error> {
        // No delay: a frame must not wait for further frames. Non-blocking: the switch must not wait for the connection.
        let set = stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true));
        set.map_err(Error::io("set up a trunk's connection"))?;
        let machines = machines.iter().map(|machine| machine.number).collect();
        self.shared.hand_over(stream.as_fd(), |stream| ToGuard::Trunk { machines, stream })
    }

    /// Adds faults to links, each from one machine to another. They end after `time` by the switch's own clock, or when
    /// they are lifted. All links change between the same two frames.
    ///
    /// # Errors
    ///
    /// A figure of the shape is no probability; the lab has ended.
    pub fn impair(
        &self,
        links: &[(&Machine, &Machine)],
        shape: &Shape,
        time: Option<Duration>,
    ) -> Result<Impairment, Error> {
        if let Some(mistake) = shape.mistake() {
            return Err(Error::Failed(mistake));
        }
        let id = self.shared.number();
        let links = links.iter().map(|(from, to)| (from.number, to.number)).collect();
        self.shared.caller.call::<()>(&ToGuard::Impair { id, links, shape: shape.clone(), time })?;
        Ok(Impairment(id))
    }

    /// Ends faults. Frames that are held stay so until their time.
    ///
    /// # Errors
    ///
    /// The lab has ended.
    pub fn lift(&self, impairment: Impairment) -> Result<(), Error> {
        self.shared.caller.call(&ToGuard::Lift { id: impairment.0 })
    }

    /// Counters of all links.
    ///
    /// # Errors
    ///
    /// The lab has ended.
    pub fn counters(&self) -> Result<Vec<LinkCounters>, Error> {
        self.shared.caller.call(&ToGuard::Counters)
    }

    /// Cuts the power of machines with [`Disk::Image`], all at one instant. Their processes are gone afterwards, and of
    /// their data only the part that had reached the disk; start their processes again to see.
    ///
    /// # Errors
    ///
    /// A machine has no disk image, or a copy failed. Then its processes may be stopped or dead.
    pub fn power_cut(&self, machines: &[&Machine]) -> Result<(), Error> {
        let machines = machines.iter().map(|machine| machine.number).collect();
        self.shared.caller.call(&ToGuard::PowerCut { machines })
    }
}

/// Checks the name of a new machine.
fn check_name(name: &str, names: &[String]) -> Result<(), Error> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if name.is_empty() || name.len() > 63 || name == "localhost" || !name.bytes().all(is_valid) {
        return Err(Error::Failed(format!("`{name}` is no host name: use letters, digits and hyphens")));
    }
    if names.iter().any(|known| known == name) {
        return Err(Error::Failed(format!("the lab has a machine `{name}` already")));
    }
    Ok(())
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.shared.caller.close();
        // The kernel lets the guard end only after all processes of its namespace.
        let _ = self.child.wait();
    }
}
