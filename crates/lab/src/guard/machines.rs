//! The guard's side of machines: their interfaces and names.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use rustix::net::{AddressFamily, SocketType, netdevice};
use serde_json::Value;

use super::disks;
use super::machine::{Machine, within};
use crate::descriptor::receive_descriptor;
use crate::error::Error;
use crate::program;
use crate::protocol::{Answers, HOSTS, Settings, ToGuard, ToMachine, lock, value};
use crate::switch::{Port, PortKind, Switch, SwitchState, Trunk, hardware_address, raw};

/// All machines of the lab, and its switch.
pub(super) struct Machines {
    settings: Settings,
    switch: Switch,
    answers: Answers,
    /// By number; `None` for one of another lab.
    machines: Mutex<Vec<Option<Arc<Machine>>>>,
    hosts: PathBuf,
    /// Number of interface pairs that were made.
    pairs: AtomicU32,
}

impl Machines {
    pub(super) fn new(settings: Settings, switch: Switch, answers: Answers) -> Result<Self, Error> {
        let hosts = settings.directory.join(HOSTS);
        fs::write(&hosts, "127.0.0.1 localhost\n").map_err(Error::io(format!("write {}", hosts.display())))?;
        Ok(Self { settings, switch, answers, machines: Mutex::default(), hosts, pairs: AtomicU32::default() })
    }

    pub(super) fn handle(&self, call: ToGuard) -> Result<Value, Error> {
        match call {
            ToGuard::Hello => Ok(Value::Null),
            ToGuard::Machine { name, data, disk } => {
                let start = || Machine::start(name, data, disk, &self.settings.helper, self.answers.clone());
                value(&self.add(start)?)
            }
            ToGuard::Guest { name, data } => value(&self.add(|| Ok(Machine::guest(name, data)))?),
            ToGuard::Join { machine, stream } => self.join(machine, &stream).map(|()| Value::Null),
            ToGuard::Remote { name } => value(&self.add_remote(&name)?),
            ToGuard::Trunk { machines, stream } => {
                let trunk = Trunk::new(received(&stream)?);
                self.with(move |state| state.add_trunk(trunk, &machines)).map(|()| Value::Null)
            }
            ToGuard::Spawn { machine, process, command } => {
                self.machine(machine)?.call(&ToMachine::Spawn { process, command })
            }
            ToGuard::Signal { machine, process, signal, time } => {
                self.machine(machine)?.call(&ToMachine::Signal { process, signal, time })
            }
            ToGuard::Usage { machine, process } => self.machine(machine)?.call(&ToMachine::Usage { process }),
            ToGuard::Impair { id, links, shape, time } => {
                let change = move |state: &mut SwitchState| {
                    let until = time.map(|time| state.now() + time);
                    state.fabric.impair(id, &links, &shape, until);
                };
                self.with(change).map(|()| Value::Null)
            }
            ToGuard::Lift { id } => self.with(move |state| state.fabric.lift(id)).map(|()| Value::Null),
            ToGuard::Counters => value(&self.with(|state| state.fabric.counters())?),
            ToGuard::PowerCut { machines } => {
                let machines =
                    machines.into_iter().map(|number| self.machine(number)).collect::<Result<Vec<_>, _>>()?;
                disks::cut(&machines)?;
                Ok(Value::Null)
            }
        }
    }

    /// Calls `change` on the switch's thread.
    fn with<R: Send + 'static>(&self, change: impl FnOnce(&mut SwitchState) -> R + Send + 'static) -> Result<R, Error> {
        self.switch.with(change).map_err(Error::io("reach the switch"))
    }

    fn machine(&self, number: u16) -> Result<Arc<Machine>, Error> {
        let machines = lock(&self.machines);
        let machine = machines.get(usize::from(number)).cloned().flatten();
        machine.ok_or_else(|| Error::Failed(format!("no machine number {number} in this lab")))
    }

    /// Starts a machine, and joins it to the others unless it is a guest.
    fn add(&self, start: impl FnOnce() -> Result<Machine, Error>) -> Result<(u16, Ipv4Addr), Error> {
        // Held to the end: machines are added one at a time, so that each learns of all the others.
        let mut machines = lock(&self.machines);
        let number = next(&machines)?;
        let (machine, address) = (Arc::new(start()?), address(number));
        let mut port = None;
        if !machine.is_guest() {
            // An answer of the machine's first process proves that the namespaces are complete.
            machine.run(&["ip", "link", "set", "lo", "up"], "")?;
            port = Some(self.connect(&machine, number, machines.len())?);
        }
        introduce(number, &machines)?;
        if let Some(disk) = machine.disk {
            disks::mount_first(&machine, disk)?;
        }
        self.name(&machine.name, address)?;
        if !machine.is_guest() {
            machine.run(&["mount", "--bind", &self.hosts.display().to_string(), "/etc/hosts"], "")?;
        }
        let joined = machine.name.clone();
        self.with(move |state| state.join(&joined, port))?;
        machines.push(Some(machine));
        Ok((number, address))
    }

    /// Reserves number, name and address for a machine of another lab.
    fn add_remote(&self, name: &str) -> Result<(u16, Ipv4Addr), Error> {
        let mut machines = lock(&self.machines);
        let number = next(&machines)?;
        introduce(number, &machines)?;
        self.name(name, address(number))?;
        let joined = name.to_owned();
        self.with(move |state| state.join(&joined, None))?;
        machines.push(None);
        Ok((number, address(number)))
    }

    /// Joins a guest to the others. Its network namespace comes over the socket `stream`.
    fn join(&self, number: u16, stream: &Path) -> Result<(), Error> {
        let namespace = received(stream)?;
        let machine = self.machine(number)?;
        // Held to the end, so that no machine is added that the guest does not learn of.
        let machines = lock(&self.machines);
        machine.enter(namespace)?;
        let set = |port| self.with(move |state| state.set_port(number, port));
        // The kernel removes the former interface with its descriptor.
        set(None)?;
        set(Some(self.connect(&machine, number, machines.len())?))
    }

    /// Makes the machine's interface `eth0`, and makes all `known` machines known in its network. Returns the switch's end.
    fn connect(&self, machine: &Machine, number: u16, known: usize) -> Result<Port, Error> {
        let port = self.port(machine)?;
        let (hardware, address) = (shown(hardware_address(number)), address(number));
        let mut batch = format!("link set eth0 address {hardware}\naddr add {address}/16 dev eth0\nlink set eth0 up\n");
        for other in (0..).take(known).filter(|other| *other != number) {
            let _ = writeln!(batch, "{}", neighbour(other));
        }
        machine.ip(&batch)?;
        Ok(port)
    }

    /// Makes the machine's interface `eth0`, and returns the switch's end of it.
    fn port(&self, machine: &Machine) -> Result<Port, Error> {
        let is_tap = match self.settings.port {
            PortKind::Tap => true,
            PortKind::Veth => false,
            PortKind::Auto => raw::open_tun().is_ok(),
        };
        let make_tap = || raw::tap("eth0").map_err(Error::io("make a TAP device"));
        // The kernel removes interfaces of an ended machine a little later, so that no name is used twice.
        let pair = format!("port{}", self.pairs.fetch_add(1, Ordering::Relaxed));
        let made = machine.with_network(|path| if is_tap { within(path, make_tap) } else { veth(&pair, path) });
        made.map(Port::new)
    }

    /// Adds a machine to the hosts file, which all machines share.
    fn name(&self, name: &str, address: Ipv4Addr) -> Result<(), Error> {
        let path = self.hosts.display().to_string();
        let mut hosts = OpenOptions::new().append(true).open(&self.hosts).map_err(Error::io(format!("open {path}")))?;
        writeln!(hosts, "{address} {name}").map_err(Error::io(format!("write {path}")))
    }
}

/// Number of the next machine.
fn next(machines: &[Option<Arc<Machine>>]) -> Result<u16, Error> {
    let number = u16::try_from(machines.len()).ok().filter(|number| *number < MOST);
    number.ok_or_else(|| Error::Failed(format!("a lab has at most {MOST} machines")))
}

/// Makes machine `number` known to the others.
fn introduce(number: u16, others: &[Option<Arc<Machine>>]) -> Result<(), Error> {
    others.iter().flatten().try_for_each(|other| other.ip(&neighbour(number)))
}

/// The open file that comes over the socket `stream`.
fn received(stream: &Path) -> Result<OwnedFd, Error> {
    let receive = || {
        let (_, file) = receive_descriptor(&UnixStream::connect(stream)?, &mut [0])?;
        file.ok_or_else(|| std::io::Error::other("nothing came"))
    };
    receive().map_err(Error::io("receive an open file"))
}

/// Maximum number of machines of a lab, because `10.77.0.0/16` has 60,000 addresses in rows of 250.
const MOST: u16 = 60_000;

fn address(number: u16) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, (number / 250) as u8, (number % 250 + 1) as u8)
}

fn shown(hardware: [u8; 6]) -> String {
    hardware.map(|byte| format!("{byte:02x}")).join(":")
}

/// Line of `ip` that makes a machine known to another one, so that no ARP adds to the first packet's delay.
fn neighbour(number: u16) -> String {
    format!("neigh replace {} lladdr {} dev eth0 nud permanent", address(number), shown(hardware_address(number)))
}

/// Makes a pair of interfaces: `eth0` in the network namespace that is the file `namespace`, and `name` here, on which it
/// opens a packet socket.
fn veth(name: &str, namespace: &str) -> Result<OwnedFd, Error> {
    program::run(&["ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", namespace], "")?;
    program::run(&["ip", "link", "set", name, "addrgenmode", "none", "up"], "")?;
    let open = || {
        let any = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        raw::packet_socket(netdevice::name_to_index(&any, name)?)
    };
    open().map_err(Error::io(format!("open a packet socket on {name}")))
}
