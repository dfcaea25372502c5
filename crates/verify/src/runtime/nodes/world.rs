//! The machines of all nodes, as one world.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tenbin_kit::programs::Program;
use tenbin_loadgen::run::Secret;

use super::connection::{self, COUNTS, Connection};
use super::node::{PART, is_below};
use super::ssh::{self, Ssh};
use super::token;
use super::wire::{Call, Directories, Started, bytes_of, text_of};
use crate::groups::Limit;
use crate::line::{Line, Programs};
use crate::plan::{self, Plan};
use crate::runtime::{FILES, LOGS, LinkCount, LinkFault, Output, Proc, Site, World};

/// The nodes of a run.
pub(crate) struct Nodes {
    nodes: Vec<RemoteNode>,
    /// Machines, and the place of their node in `nodes`.
    machines: HashMap<String, (usize, Directories)>,
    /// Hashes of the programs on all nodes.
    hashes: Hashes,
    /// Directory for the results of instances and clients here.
    results: PathBuf,
    faults: Mutex<Faults>,
    /// By number, from 0: the node of each limit that was set, and its own number of it.
    limits: Mutex<Vec<(usize, u64)>>,
    streams: Mutex<Vec<Child>>,
}

struct RemoteNode {
    plan: plan::Node,
    ssh: Ssh,
    connection: Arc<Connection>,
    programs: Programs,
    processors: u32,
}

/// Faults of links: for each the nodes with their own numbers of it.
#[derive(Default)]
struct Faults {
    last: u64,
    parts: HashMap<u64, Vec<(usize, u64)>>,
}

impl Nodes {
    /// Starts the remote ends of `plan` and their labs, and joins them.
    pub(crate) fn start(plan: &Plan, site: &Site<'_>) -> Result<Self, String> {
        let hashes = Hashes::of(plan, site.programs)?;
        let token = token::new().map_err(|error| format!("cannot make a token: {error}"))?;
        let started = at_once(&plan.nodes, |node| RemoteNode::start(plan, node, site, &hashes, &token))?;
        let (mut nodes, mut machines) = (Vec::new(), HashMap::new());
        for (place, (node, started)) in started.into_iter().enumerate() {
            let own = plan.machines.iter().filter(|machine| machine.node.as_ref() == Some(&node.plan.name));
            let own = own.map(|machine| machine.name.as_str()).collect::<Vec<_>>();
            check(&started.machines, &own).map_err(|reason| format!("{}: {reason}", node.ssh))?;
            machines.extend(started.machines.into_iter().map(|one| (one.machine.clone(), (place, one))));
            nodes.push(node);
        }
        let (faults, limits, streams) = (Mutex::default(), Mutex::default(), Mutex::default());
        let world = Self { nodes, machines, hashes, results: site.results.join(FILES), faults, limits, streams };
        world.join()?;
        Ok(world)
    }

    /// Joins each pair of nodes by a trunk: the later one of a pair connects to the earlier one.
    fn join(&self) -> Result<(), String> {
        for (place, node) in self.nodes.iter().enumerate() {
            let later = &self.nodes[place + 1..];
            let peers = later.iter().map(|peer| peer.plan.name.clone()).collect::<Vec<_>>();
            if peers.is_empty() {
                break;
            }
            let port: u16 = node.connection.call(Call::Listen { address: node.plan.address, peers })?;
            let address = SocketAddr::from((node.plan.address, port));
            at_once(later, |other| other.connection.call::<()>(Call::Join { peer: node.plan.name.clone(), address }))?;
            node.connection.call::<()>(Call::AwaitPeers)?;
        }
        Ok(())
    }

    fn place(&self, machine: &str) -> Result<(&RemoteNode, &Directories), String> {
        let found = self.machines.get(machine);
        let (place, directories) = found.ok_or_else(|| format!("no node has the machine {machine:?}"))?;
        Ok((&self.nodes[*place], directories))
    }

    /// Groups things by the node of a machine.
    fn by_node<T>(&self, things: impl IntoIterator<Item = (String, T)>) -> Result<BTreeMap<usize, Vec<T>>, String> {
        let mut groups = BTreeMap::<usize, Vec<T>>::new();
        for (machine, thing) in things {
            let found = self.machines.get(&machine);
            let (place, _) = found.ok_or_else(|| format!("no node has the machine {machine:?}"))?;
            groups.entry(*place).or_default().push(thing);
        }
        Ok(groups)
    }

    /// A further `ssh` to the node that joins a stream to the socket there.
    fn attach(&self, node: &RemoteNode, socket: &Path, log: &Path) -> Result<UnixStream, String> {
        let fail = |error: std::io::Error| format!("{}: {error}", node.ssh);
        let (own, its) = UnixStream::pair().map_err(fail)?;
        let (input, output): (OwnedFd, OwnedFd) = (its.try_clone().map_err(fail)?.into(), its.into());
        let arguments = ["--attach".to_owned(), socket.display().to_string()];
        let child = node.ssh.start(&self.hashes.verify, &arguments, log, (input.into(), output.into()))?;
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(child);
        Ok(own)
    }
}

/// SHA-256 of the programs of a run.
struct Hashes {
    verify: String,
    /// The broker's, if the plan starts it.
    tenbin: Option<String>,
}

impl Hashes {
    fn of(plan: &Plan, programs: &Programs) -> Result<Self, String> {
        let tenbin = plan.starts_tenbin().then(|| ssh::hash(&programs.tenbin)).transpose()?;
        Ok(Self { verify: ssh::hash(&programs.verify)?, tenbin })
    }
}

impl RemoteNode {
    fn start(
        plan: &Plan,
        node: &plan::Node,
        site: &Site<'_>,
        hashes: &Hashes,
        token: &Secret<String>,
    ) -> Result<(Self, Started), String> {
        let ssh = Ssh::new(plan, node);
        ssh.copy(Program::Verify, &site.programs.verify, &hashes.verify)?;
        if let Some(hash) = &hashes.tenbin {
            ssh.copy(Program::Tenbin, &site.programs.tenbin, hash)?;
        }
        let log = site.results.join(LOGS).join(format!("{}.ssh.log", node.name));
        let connection = Connection::open(&ssh, &hashes.verify, &log)?;
        let (plan_of_run, tenbin) = (Box::new(plan.clone()), hashes.tenbin.clone());
        let call = Call::Start { plan: plan_of_run, node: node.name.clone(), token: token.clone(), tenbin };
        let started: Started = connection.call(call)?;
        let (plan, programs, processors) = (node.clone(), started.programs.clone(), started.processors);
        Ok((Self { plan, ssh, connection, programs, processors }, started))
    }
}

/// Checks that a node names only its `own` machines, by names that are safe in paths: it must not write elsewhere here.
fn check(machines: &[Directories], own: &[&str]) -> Result<(), String> {
    let is_own = |name: &str| own.contains(&name) && is_below(Path::new(name));
    match machines.iter().find(|one| !is_own(&one.machine)) {
        Some(other) => Err(format!("{:?} is no machine of it", other.machine)),
        None => Ok(()),
    }
}

/// Copies at most the first `size` bytes of a file of a node to `to`. The file may still grow.
fn fetch(connection: &Connection, path: &Path, size: u64, to: &Path) -> Result<(), String> {
    let fail = |error: std::io::Error| format!("cannot write {}: {error}", to.display());
    to.parent().map_or(Ok(()), fs::create_dir_all).map_err(fail)?;
    let mut file = File::create(to).map_err(fail)?;
    let mut from = 0;
    while from < size {
        let mut part = bytes_of(&connection.call::<String>(Call::Read { path: path.to_owned(), from })?);
        if part.is_empty() {
            break;
        }
        part.truncate(usize::try_from(size - from).unwrap_or(usize::MAX));
        file.write_all(&part).map_err(fail)?;
        from += part.len() as u64;
    }
    Ok(())
}

/// Does something for all of these at the same time; returns the results in order, or the first error.
fn at_once<T: Send, R: Send>(
    all: impl IntoIterator<Item = T>,
    act: impl Fn(T) -> Result<R, String> + Sync,
) -> Result<Vec<R>, String> {
    let act = &act;
    thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(move || act(one))).collect();
        let joined = threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?);
        joined.collect()
    })
}

impl World for Nodes {
    fn listen(&self) -> &'static str {
        "0.0.0.0"
    }

    fn data(&self, machine: &str) -> PathBuf {
        self.place(machine).map_or_else(|_| PathBuf::new(), |(_, directories)| directories.data.clone())
    }

    fn directories(&self, name: &str) -> Result<(PathBuf, PathBuf), String> {
        let (_, Directories { files, results, .. }) = self.place(name)?;
        Ok((files.clone(), results.clone()))
    }

    fn programs(&self, machine: &str) -> Programs {
        self.place(machine).map(|(node, _)| node.programs.clone()).unwrap_or_default()
    }

    fn processors(&self, machine: &str) -> u32 {
        self.place(machine).map_or(1, |(node, _)| node.processors)
    }

    fn write(&self, machine: &str, path: &Path, content: &[u8], mode: Option<u32>) -> Result<(), String> {
        let connection = &self.place(machine)?.0.connection;
        // Signs of life pass between the parts. An empty file has one part.
        let mut from = 0;
        loop {
            let part = &content[from..content.len().min(from + PART as usize)];
            let call = Call::Write { path: path.to_owned(), from: from as u64, content: text_of(part), mode };
            connection.call::<()>(call)?;
            from += part.len();
            if from >= content.len() {
                return Ok(());
            }
        }
    }

    fn fetch_results(&self) -> Result<(), String> {
        at_once(&self.machines, |(machine, (place, directories))| {
            let connection = &self.nodes[*place].connection;
            let files: Vec<(String, u64)> = connection.call(Call::Results { machine: machine.clone() })?;
            files.iter().try_for_each(|(name, size)| {
                // A node must not write elsewhere on this host.
                if !is_below(Path::new(name)) {
                    return Err(format!("{}: {name:?} is no file of its results", self.nodes[*place].ssh));
                }
                fetch(connection, &directories.results.join(name), *size, &self.results.join(machine).join(name))
            })
        })
        .map(|_: Vec<()>| ())
    }

    fn spawn(&self, machine: &str, line: &Line, log: &Path) -> Result<Box<dyn Proc>, String> {
        let connection = &self.place(machine)?.0.connection;
        let log = connection.log(log);
        let (machine, line) = (machine.to_owned(), line.clone());
        let started = connection.spawn::<Option<PathBuf>>(|process| Call::Spawn {
            process,
            machine,
            line,
            log,
            with_stream: false,
        });
        Ok(Box::new(started?.0))
    }

    fn spawn_with_stream(&self, machine: &str, line: &Line, log: &Path) -> Result<(Box<dyn Proc>, UnixStream), String> {
        let (node, _) = self.place(machine)?;
        let number = node.connection.log(log);
        let (machine, line) = (machine.to_owned(), line.clone());
        let (process, socket) = node.connection.spawn::<Option<PathBuf>>(|process| Call::Spawn {
            process,
            machine,
            line,
            log: number,
            with_stream: true,
        })?;
        let socket = socket.ok_or_else(|| format!("{}: no stream", node.ssh))?;
        Ok((Box::new(process), self.attach(node, &socket, log)?))
    }

    fn exec(&self, machine: &str, line: &Line) -> Result<Output, String> {
        self.place(machine)?.0.connection.call(Call::Exec { machine: machine.to_owned(), line: line.clone() })
    }

    fn impair(&self, links: &[(String, String)], shape: &LinkFault, time: Option<Duration>) -> Result<u64, String> {
        let groups = self.by_node(links.iter().map(|link| (link.0.clone(), link.clone())))?;
        let parts = at_once(groups, |(place, links)| {
            let number = self.nodes[place].connection.call(Call::Impair { links, shape: shape.clone(), time })?;
            Ok((place, number))
        })?;
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.last += 1;
        let number = faults.last;
        faults.parts.insert(number, parts);
        Ok(number)
    }

    fn lift(&self, fault: u64) -> Result<(), String> {
        let parts = self.faults.lock().unwrap_or_else(PoisonError::into_inner).parts.remove(&fault);
        let lift = |(place, fault): (usize, u64)| self.nodes[place].connection.call(Call::Lift { fault });
        at_once(parts.into_iter().flatten(), lift).map(|_: Vec<()>| ())
    }

    fn limit(&self, machine: &str, limit: Limit) -> Result<u64, String> {
        let (place, _) = *self.machines.get(machine).ok_or_else(|| format!("no node has the machine {machine:?}"))?;
        let own = self.nodes[place].connection.call(Call::Limit { machine: machine.to_owned(), limit })?;
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.push((place, own));
        Ok(limits.len() as u64 - 1)
    }

    fn end_limit(&self, number: u64) -> Result<(), String> {
        let known = self.limits.lock().unwrap_or_else(PoisonError::into_inner).get(number as usize).copied();
        known.map_or(Ok(()), |(place, number)| self.nodes[place].connection.call(Call::EndLimit { number }))
    }

    fn power_cut(&self, machines: &[String]) -> Result<(), String> {
        let groups = self.by_node(machines.iter().map(|machine| (machine.clone(), machine.clone())))?;
        let cut =
            |(place, machines): (usize, Vec<String>)| self.nodes[place].connection.call(Call::PowerCut { machines });
        at_once(groups, cut).map(|_: Vec<()>| ())
    }

    fn links(&self) -> Vec<LinkCount> {
        let counts = |node: &RemoteNode| node.connection.call_for::<Vec<LinkCount>>(Call::Links, COUNTS);
        let all = at_once(&self.nodes, counts);
        merged(all.unwrap_or_default().into_iter().flatten())
    }

    fn lost(&self) -> Option<String> {
        let connections = || self.nodes.iter().map(|node| &node.connection);
        connections().find_map(|node| node.lost()).or_else(|| connections().find_map(|node| node.cut()))
    }

    fn close(&self) -> Vec<String> {
        let mut streams = std::mem::take(&mut *self.streams.lock().unwrap_or_else(PoisonError::into_inner));
        connection::end(streams.iter_mut());
        // The end of one lab cuts its trunks, which is no loss any more.
        self.nodes.iter().for_each(|node| node.connection.expect_end());
        let failures = at_once(&self.nodes, |node| Ok(node.connection.close()));
        failures.unwrap_or_default().into_iter().flatten().collect()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // An unreported failure stays in the journal of its node.
        let _ = self.close();
    }
}

/// One count for each link. Its packets are counted at the sender's node, and drops at the receiver's machine at the
/// receiver's node.
fn merged(counts: impl Iterator<Item = LinkCount>) -> Vec<LinkCount> {
    let mut links = BTreeMap::<(String, String), LinkCount>::new();
    for count in counts {
        let link = (count.from.clone(), count.to.clone());
        match links.get_mut(&link) {
            None => drop(links.insert(link, count)),
            Some(sum) => {
                sum.bytes += count.bytes;
                sum.packets += count.packets;
                sum.dropped += count.dropped;
                sum.queued_bytes += count.queued_bytes;
            }
        }
    }
    links.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_may_name_only_their_own_machines() {
        let named = |machine: &str| {
            let path = PathBuf::from("/tmp/run");
            Directories { machine: machine.to_owned(), data: path.clone(), files: path.clone(), results: path }
        };
        let check = |machine: &str| check(&[named("broker"), named(machine)], &["broker", "sub", "../up", "/etc"]);
        assert_eq!(check("sub"), Ok(()));
        for machine in ["pub", "", "..", "../up", "/etc"] {
            assert!(check(machine).unwrap_err().contains(&format!("{machine:?}")), "{machine}");
        }
    }
}
