//! Machines made of namespaces, with a switch between them.

use std::collections::HashMap;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenbin_lab::{Command, Disk, Impairment, Lab, Machine, Process, Rate, Shape, Signal};

use super::containers::Containers;
use super::limits::Limits;
use super::{LinkCount, LinkFault, Output, Proc, Site, Usage, World, directories_here};
use crate::groups::Limit;
use crate::line::{Line, Programs};
use crate::plan::Plan;
use crate::relay;
use crate::systems::port;

/// A lab, and containers as its guests.
pub(crate) struct Namespaces {
    lab: Lab,
    machines: Vec<Machine>,
    containers: Containers,
    limits: Limits,
    /// Names of machines by their nodes; empty if all are here.
    elsewhere: HashMap<String, Vec<String>>,
    work: PathBuf,
    results: PathBuf,
    programs: Programs,
    faults: Mutex<(u64, HashMap<u64, Impairment>)>,
}

impl Namespaces {
    /// Starts the lab of `plan`. This program lends itself as helper. With `node`, only the machines of that node are
    /// here, and the others come by [`Namespaces::join`].
    pub(crate) fn start(plan: &Plan, site: &Site<'_>, node: Option<&str>) -> Result<Self, String> {
        let elsewhere = elsewhere(plan, node);
        let is_elsewhere = |name: &str| elsewhere.values().flatten().any(|other| other == name);
        let containers = Containers::prepare(plan, site)?;
        let limits = Limits::prepare(plan, site, |name| containers.has(name) || is_elsewhere(name))?;
        let lab = Lab::builder(site.programs.helper(), site.work).seed(plan.seed).start().map_err(text)?;
        let mut machines = Vec::new();
        for planned in &plan.machines {
            let name = &planned.name;
            let is_here = !is_elsewhere(name);
            let made = match containers.has(name) {
                true => lab.guest(name),
                false if is_here => lab.machine(name, disk(plan, name)),
                false => lab.remote(name),
            };
            let named = |error: String| format!("{name}: {error}");
            let machine = made.map_err(|error| named(error.to_string()))?;
            if let Some(address) = planned.relays.as_ref().filter(|_| is_here) {
                relay(&machine, address, &site.programs.verify).map_err(named)?;
            }
            machines.push(machine);
        }
        let ([work, results], programs) = ([site.work, site.results].map(Path::to_owned), site.programs.clone());
        let faults = Mutex::default();
        Ok(Self { lab, machines, containers, limits, elsewhere, work, results, programs, faults })
    }

    /// Joins the machines of another node by a connection to it.
    pub(crate) fn join(&self, node: &str, stream: &TcpStream) -> Result<(), String> {
        let names = self.elsewhere.get(node).ok_or_else(|| format!("no machine is on node {node:?}"))?;
        let machines = names.iter().map(|name| self.machine(name)).collect::<Result<Vec<_>, _>>()?;
        self.lab.trunk(stream, &machines).map_err(text)
    }

    fn launch(&self, machine: &str, line: &Line, log: &Path) -> Result<Box<dyn Proc>, String> {
        let process = self.machine(machine)?.spawn(&command(line).stdout(log).stderr(log)).map_err(text)?;
        Ok(Box::new(process))
    }

    fn machine(&self, name: &str) -> Result<&Machine, String> {
        let found = self.machines.iter().find(|machine| machine.name() == name);
        found.ok_or_else(|| format!("the lab has no machine {name:?}"))
    }
}

/// Names of machines by their nodes, without those of `node`. Without a node, all are here.
fn elsewhere(plan: &Plan, node: Option<&str>) -> HashMap<String, Vec<String>> {
    let mut elsewhere = HashMap::<_, Vec<_>>::new();
    for machine in &plan.machines {
        if let Some(other) = machine.node.as_deref().filter(|other| node.is_some_and(|node| node != *other)) {
            elsewhere.entry(other.to_owned()).or_default().push(machine.name.clone());
        }
    }
    elsewhere
}

/// Disk of the instance on a machine.
fn disk(plan: &Plan, machine: &str) -> Option<Disk> {
    let disk = plan.instances.iter().find(|instance| instance.machine == machine)?.disk?;
    let bytes = disk.size.bytes();
    Some(if disk.is_image { Disk::Image { bytes } } else { Disk::Memory { bytes } })
}

/// Starts the relay of a machine to a program outside of the lab.
fn relay(machine: &Machine, address: &str, program: &Path) -> Result<(), String> {
    let port = port(address).to_string();
    let command = Command::new(program).args(["relay", &port]);
    let (_, stream) = machine.spawn_with_stream(&command).map_err(text)?;
    relay::serve(stream, address.to_owned())
}

fn command(line: &Line) -> Command {
    let command = Command::new(&line.program).args(&line.arguments);
    line.environment.iter().fold(command, |command, (name, value)| command.env(name, value))
}

fn text(error: tenbin_lab::Error) -> String {
    error.to_string()
}

impl World for Namespaces {
    fn listen(&self) -> &'static str {
        "0.0.0.0"
    }

    fn data(&self, machine: &str) -> PathBuf {
        self.machine(machine).map_or_else(|_| PathBuf::new(), |machine| machine.data().to_owned())
    }

    fn directories(&self, name: &str) -> Result<(PathBuf, PathBuf), String> {
        directories_here(&self.work, &self.results, name)
    }

    fn programs(&self, _: &str) -> Programs {
        self.programs.clone()
    }

    fn spawn(&self, machine: &str, line: &Line, log: &Path) -> Result<Box<dyn Proc>, String> {
        if self.containers.has(machine) {
            return self.containers.spawn(self.machine(machine)?, line, log);
        }
        self.launch(machine, &self.limits.inside(machine, line), log)
    }

    fn spawn_with_stream(&self, machine: &str, line: &Line, log: &Path) -> Result<(Box<dyn Proc>, UnixStream), String> {
        self.spawn_beside_with_stream(machine, &self.limits.inside(machine, line), log)
    }

    fn exec(&self, machine: &str, line: &Line) -> Result<Output, String> {
        if self.containers.has(machine) {
            return self.containers.exec(machine, line);
        }
        let output = self.machine(machine)?.exec(&command(line)).map_err(text)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        Ok(Output { is_success: output.exit.success(), stdout, stderr })
    }

    fn spawn_beside(&self, machine: &str, line: &Line, log: &Path) -> Result<Box<dyn Proc>, String> {
        match self.containers.has(machine) {
            true => self.containers.spawn_beside(machine, line, log),
            false => self.launch(machine, line, log),
        }
    }

    fn spawn_beside_with_stream(
        &self,
        machine: &str,
        line: &Line,
        log: &Path,
    ) -> Result<(Box<dyn Proc>, UnixStream), String> {
        let command = command(line).stderr(log);
        let (process, stream) = self.machine(machine)?.spawn_with_stream(&command).map_err(text)?;
        Ok((Box::new(process), stream))
    }

    fn exec_beside(&self, machine: &str, line: &Line) -> Result<Output, String> {
        match self.containers.has(machine) {
            true => self.containers.exec_beside(machine, line),
            false => self.exec(machine, line),
        }
    }

    fn impair(&self, links: &[(String, String)], fault: &LinkFault, time: Option<Duration>) -> Result<u64, String> {
        let shape = Shape {
            delay: fault.delay,
            jitter: fault.jitter,
            reorder: fault.reorder,
            loss: fault.loss,
            duplicate: fault.duplicate,
            corrupt: fault.corrupt,
            rate: fault.rate.map(|(bits_per_second, queue_bytes)| Rate { bits_per_second, queue_bytes }),
            partition: fault.partition,
        };
        let mut ends = Vec::new();
        for (from, to) in links {
            ends.push((self.machine(from)?, self.machine(to)?));
        }
        let impairment = self.lab.impair(&ends, &shape, time).map_err(text)?;
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.0 += 1;
        let number = faults.0;
        faults.1.insert(number, impairment);
        Ok(number)
    }

    fn lift(&self, fault: u64) -> Result<(), String> {
        let impairment = self.faults.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&fault);
        impairment.map_or(Ok(()), |impairment| self.lab.lift(impairment).map_err(text))
    }

    fn limit(&self, machine: &str, limit: Limit) -> Result<u64, String> {
        let own = if self.containers.has(machine) { Some(self.containers.group(machine)?) } else { None };
        self.limits.set(machine, own, limit)
    }

    fn end_limit(&self, number: u64) -> Result<(), String> {
        self.limits.lift(number)
    }

    fn power_cut(&self, machines: &[String]) -> Result<(), String> {
        let machines = machines.iter().map(|name| self.machine(name)).collect::<Result<Vec<_>, _>>()?;
        self.lab.power_cut(&machines).map_err(text)
    }

    fn links(&self) -> Vec<LinkCount> {
        let counters = self.lab.counters().unwrap_or_default();
        let count = |link: tenbin_lab::LinkCounters| LinkCount {
            bytes: link.counters.bytes,
            packets: link.counters.packets,
            dropped: link.counters.lost + link.counters.overflowed,
            queued_bytes: link.counters.queued_bytes,
            from: link.from,
            to: link.to,
        };
        counters.into_iter().map(count).collect()
    }
}

impl Proc for Process {
    fn terminate(&self) -> Result<(), String> {
        self.signal(Signal::Terminate).map_err(text)
    }

    fn kill(&self) -> Result<(), String> {
        self.signal(Signal::Kill).map_err(text)
    }

    fn stop(&self, time: Option<Duration>) -> Result<(), String> {
        time.map_or_else(|| self.signal(Signal::Stop), |time| self.stop_for(time)).map_err(text)
    }

    fn resume(&self) -> Result<(), String> {
        self.signal(Signal::Continue).map_err(text)
    }

    fn ended(&self, time: Duration) -> Option<String> {
        match self.wait_for(time) {
            Ok(None) => None,
            Ok(Some(exit)) => Some(match (exit.code, exit.signal) {
                (Some(code), _) => format!("exit code {code}"),
                (None, Some(signal)) => format!("signal {signal}"),
                (None, None) => "an unknown reason".to_owned(),
            }),
            Err(error) => Some(error.to_string()),
        }
    }
    fn usage(&self) -> Option<Usage> {
        Process::usage(self).ok()?.map(Usage::from)
    }
}
