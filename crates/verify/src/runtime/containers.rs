//! Containers as guests of a lab.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tenbin_lab::Machine;
use tenbin_lab::journal::Undo;

use super::{Output, Proc, Processes, Site, World};
use crate::docker::{self, Run};
use crate::groups::Group;
use crate::line::Line;
use crate::plan::{Instance, Plan};
use crate::template::StartBy;

/// Most time from the start of a container to its first process, and from SIGKILL to its end.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// Containers of a run. The journal's undo removes them.
pub(crate) struct Containers {
    run: String,
    work: PathBuf,
    results: PathBuf,
    pull: bool,
    instances: HashMap<String, (Instance, String)>,
    created: Mutex<HashSet<String>>,
    host: Arc<Processes>,
}

/// A started container.
struct Container {
    name: String,
    host: Arc<Processes>,
    /// `docker start --attach`, which ends with the container.
    attached: Box<dyn Proc>,
}

impl Containers {
    /// Prepares the containers of all instances with an image; their removal is in the journal from here on.
    pub(crate) fn prepare(plan: &Plan, site: &Site<'_>) -> Result<Self, String> {
        let image = |instance: &Instance| match &instance.start {
            StartBy::Image(image) => Some((instance.name.clone(), (instance.clone(), image.clone()))),
            _ => None,
        };
        let containers = Self {
            run: site.work.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            work: site.work.to_owned(),
            results: site.results.canonicalize().map_err(|error| format!("cannot resolve the results: {error}"))?,
            pull: plan.pull,
            instances: plan.instances.iter().filter_map(image).collect(),
            created: Mutex::default(),
            host: Arc::new(Processes::new(site)),
        };
        if !containers.instances.is_empty() {
            let journal = site.journal.ok_or("containers need the program tenbin-verify")?;
            journal.record(Undo::Run { line: containers.run().remove() }).map_err(|error| error.to_string())?;
        }
        Ok(containers)
    }

    fn run(&self) -> Run<'_> {
        Run { name: &self.run, work: &self.work, results: &self.results, pull: self.pull }
    }

    /// True if the machine is a container.
    pub(crate) fn has(&self, machine: &str) -> bool {
        self.instances.contains_key(machine)
    }

    /// Starts the container of `guest`, and joins it to the lab. The container is created first if there is none yet.
    pub(crate) fn spawn(&self, guest: &Machine, line: &Line, log: &Path) -> Result<Box<dyn Proc>, String> {
        let run = self.run();
        let name = run.container(guest.name());
        if !self.created.lock().unwrap_or_else(PoisonError::into_inner).contains(guest.name()) {
            self.create(guest.name(), &line.environment)?;
        }
        let attached = self.host.spawn("", &run.start(guest.name()), log)?;
        let container = Container { name, host: Arc::clone(&self.host), attached };
        let deadline = Instant::now() + PATIENCE;
        loop {
            // Checked first, because a container may end during `join`.
            let has_ended = container.ended(Duration::ZERO).is_some();
            let joined = match self.first(guest.name())? {
                Some(first) => {
                    first.network().and_then(|network| guest.join(&network).map_err(|error| error.to_string()))
                }
                None => Err("it has no process".to_owned()),
            };
            match joined {
                Ok(()) => return Ok(Box::new(container)),
                // The log tells why it ended; the caller looks at it.
                Err(_) if has_ended => return Ok(Box::new(container)),
                Err(reason) if Instant::now() > deadline => return Err(format!("{}: {reason}", container.name)),
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    fn create(&self, instance: &str, variables: &[(String, String)]) -> Result<(), String> {
        let (run, (instance, image)) = (self.run(), &self.instances[instance]);
        for (directory, _) in run.mounts(&instance.name) {
            let above = Path::new(&directory).parent().unwrap_or(Path::new("/"));
            // The program in the container may be any user. Other users of this machine get no further than the
            // directory above.
            let made = fs::create_dir_all(&directory)
                .and_then(|()| fs::set_permissions(above, Permissions::from_mode(0o700)))
                .and_then(|()| fs::set_permissions(&directory, Permissions::from_mode(0o777)));
            made.map_err(|error| format!("cannot create {directory}: {error}"))?;
        }
        let variables = docker::environment(variables)?;
        let file = run.environment(&instance.name);
        let opened = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&file);
        opened
            .and_then(|mut file| file.write_all(variables.as_bytes()))
            .map_err(|error| format!("cannot write {file}: {error}"))?;
        let created = succeed(&self.host, &run.create(instance, image));
        // It goes with its directory if it cannot be removed.
        let _ = fs::remove_file(&file);
        created.map_err(|said| {
            let is_absent = said.contains("No such image") && !self.pull;
            let hint = if is_absent { "; build or pull it first, or set base.pull: true" } else { "" };
            format!("cannot create the container: {said}{hint}")
        })?;
        self.created.lock().unwrap_or_else(PoisonError::into_inner).insert(instance.name.clone());
        Ok(())
    }

    /// A container's first process, while it runs.
    fn first(&self, instance: &str) -> Result<Option<First>, String> {
        let container = self.run().container(instance);
        let said = succeed(&self.host, &docker::first_process(&container))?;
        let first =
            said.split_once(' ').and_then(|(id, pid)| Some(First { pid: pid.parse().ok()?, id: id.to_owned() }));
        let first = first.ok_or_else(|| format!("no process number of {container}: {said}"))?;
        Ok((first.pid != 0).then_some(first))
    }

    /// The same; without one, the container has ended.
    fn running(&self, instance: &str) -> Result<First, String> {
        let first = self.first(instance)?.ok_or_else(|| format!("the container of {instance} has ended"))?;
        first.check().map(|()| first)
    }

    /// Control group of a container. It has another one after its next start.
    pub(crate) fn group(&self, instance: &str) -> Result<Group, String> {
        let first = self.running(instance)?;
        let group = Group::of(&first.pid.to_string())?;
        first.check().map(|()| group)
    }

    /// Runs a command in a container.
    pub(crate) fn exec(&self, instance: &str, line: &Line) -> Result<Output, String> {
        self.host.exec("", &docker::exec(&self.run().container(instance), line))
    }

    /// Runs a program of this machine in the network of a container.
    pub(crate) fn exec_beside(&self, instance: &str, line: &Line) -> Result<Output, String> {
        match self.running(instance) {
            Ok(first) => self.host.exec("", &within(first.pid, line)),
            Err(reason) => Ok(Output { is_success: false, stdout: String::new(), stderr: reason }),
        }
    }

    /// Starts a program of this machine in the network of a container.
    pub(crate) fn spawn_beside(&self, instance: &str, line: &Line, log: &Path) -> Result<Box<dyn Proc>, String> {
        self.host.spawn("", &within(self.running(instance)?.pid, line), log)
    }
}

/// First process of a container.
struct First {
    /// Its number on this machine, which another process has after its end.
    pid: u32,
    /// Identifier of the container, which is in the names of its control groups.
    id: String,
}

impl First {
    /// Opens its network namespace.
    fn network(&self) -> Result<File, String> {
        let file = File::open(network(self.pid)).map_err(|error| format!("cannot open its network: {error}"))?;
        // If the number belongs to the container now, it did when the file was opened.
        self.check().map(|()| file)
    }

    /// Checks that the process with this number is in the container.
    fn check(&self) -> Result<(), String> {
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap_or_default();
        match groups.contains(&self.id) {
            true => Ok(()),
            false => Err(format!("process {} is not in container {}", self.pid, self.id)),
        }
    }
}

fn network(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/ns/net"))
}

/// The same command in the network of a process.
fn within(pid: u32, line: &Line) -> Line {
    let arguments = [format!("--net={}", network(pid).display()), "--".to_owned(), line.program.clone()];
    let arguments = arguments.into_iter().chain(line.arguments.iter().cloned());
    Line { environment: line.environment.clone(), ..Line::new("nsenter", arguments) }
}

/// Runs a command; returns its output without the end of the line.
fn succeed(host: &Processes, line: &Line) -> Result<String, String> {
    let output = host.exec("", line)?;
    if output.is_success { Ok(output.stdout.trim().to_owned()) } else { Err(output.stderr.trim().to_owned()) }
}

impl Container {
    /// Runs a command of docker on a container that may have ended, which is no error.
    fn on(&self, command: &[&str], harmless: &str) -> Result<(), String> {
        if self.ended(Duration::ZERO).is_some() {
            return Ok(());
        }
        match succeed(&self.host, &docker::on(&self.name, command)) {
            Err(said) if !said.contains("is not running") && !said.contains(harmless) => Err(said),
            _ => Ok(()),
        }
    }
}

impl Proc for Container {
    fn terminate(&self) -> Result<(), String> {
        self.on(&["kill", "--signal", "TERM"], "No such container")
    }

    fn kill(&self) -> Result<(), String> {
        self.on(&["kill"], "No such container")?;
        let ended = self.ended(PATIENCE);
        ended.map(|_| ()).ok_or_else(|| format!("{} runs {} s after SIGKILL", self.name, PATIENCE.as_secs()))
    }

    fn stop(&self, _: Option<Duration>) -> Result<(), String> {
        self.on(&["pause"], "already paused")
    }

    fn resume(&self) -> Result<(), String> {
        self.on(&["unpause"], "is not paused")
    }

    fn ended(&self, time: Duration) -> Option<String> {
        self.attached.ended(time)
    }
}
