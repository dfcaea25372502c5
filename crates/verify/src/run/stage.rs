//! Instances of a run: their starts, ends and readiness.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::kind::Kind;
use crate::plan::{Client, ConfigFile, Instance, Plan};
use crate::probe::Answer;
use crate::runtime::{Proc, World};
use crate::systems::{self, InstancePlace, ReadyWhen, Startup};
use crate::template::{Fault, Runtime, StartBy};
use crate::variables;
use tenbin_loadgen::drivers;

/// Most time from the start of an instance to its readiness. A JVM on a busy machine takes a minute.
const READY: Duration = Duration::from_secs(120);
/// Pause between two looks at the readiness of an instance.
const LOOK: Duration = Duration::from_millis(20);
/// Looks at lost nodes after a failure.
const NOTICE: u32 = 100;
/// Time that an instance has to end by itself at the end of a run.
const GRACE: Duration = Duration::from_secs(5);

/// The running systems and clients of a run. Actions use it from several threads.
pub(crate) struct Stage {
    pub(crate) plan: Plan,
    pub(crate) world: Box<dyn World>,
    /// Directory of the logs.
    logs: PathBuf,
    running: Mutex<HashMap<String, Running>>,
}

/// An instance or client that was started at least once.
struct Running {
    process: Arc<dyn Proc>,
    startup: Option<Startup>,
    /// True while a fault keeps it away.
    is_away: bool,
    /// Bytes of its log from earlier starts, whose lines tell nothing about this one.
    said_before: u64,
}

impl Stage {
    /// A stage without instances. Its logs are in `logs`.
    pub(crate) fn new(plan: Plan, world: Box<dyn World>, logs: &Path) -> Self {
        Self { plan, world, logs: logs.to_owned(), running: Mutex::default() }
    }

    /// Log of an instance or client.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }

    /// File with the offset of an instance's clock, for libfaketime.
    pub(crate) fn clock_file(&self, name: &str) -> Result<PathBuf, String> {
        Ok(self.world.directories(name)?.0.join("clock"))
    }

    /// Starts all instances, and waits until each is ready. Instances of one system start together, as they need each
    /// other. Those of etcd are ready before others start.
    pub(crate) fn start_all(&self) -> Result<(), String> {
        let instances = self.plan.instances.iter().filter(|instance| is_started(instance));
        let (etcd, others): (Vec<_>, Vec<_>) = instances.partition(|instance| instance.kind == Kind::Etcd);
        for instances in [etcd, others] {
            for instance in &instances {
                self.launch(instance)?;
            }
            instances.iter().try_for_each(|instance| self.wait_until_ready(&instance.name))?;
        }
        Ok(())
    }

    /// Starts instances again, and waits until each is ready.
    pub(crate) fn start_again(&self, names: &[String]) -> Result<(), String> {
        for name in names {
            self.launch(self.instance(name)?)?;
        }
        names.iter().try_for_each(|name| self.wait_until_ready(name))
    }

    /// The loss of a node, if that is behind the `reason` of a failure.
    pub(crate) async fn reason(&self, reason: String) -> String {
        if self.plan.runtime != Runtime::Ssh {
            return reason;
        }
        // Clients notice the end of a connection a little earlier.
        for _ in 0..NOTICE {
            if let Some(lost) = self.world.lost() {
                return lost;
            }
            tokio::time::sleep(LOOK).await;
        }
        reason
    }

    /// Ends all instances.
    pub(crate) fn end_all(&self) {
        let running = std::mem::take(&mut *self.lock());
        let instances = running.into_values().filter(|running| running.startup.is_some()).collect::<Vec<_>>();
        for running in &instances {
            // A paused instance handles no signal. One that is gone needs none.
            let _ = running.process.resume();
            let _ = running.process.terminate();
        }
        let deadline = Instant::now() + GRACE;
        for running in instances {
            if running.process.ended(deadline.saturating_duration_since(Instant::now())).is_none() {
                let _ = running.process.kill();
            }
        }
    }

    /// Registers a client's process as a target.
    pub(crate) fn add_client(&self, name: &str, process: Box<dyn Proc>) {
        self.lock().insert(
            name.to_owned(),
            Running { process: process.into(), startup: None, is_away: false, said_before: 0 },
        );
    }

    /// Processes of all instances and clients that were started.
    pub(crate) fn all_processes(&self) -> Vec<(String, Arc<dyn Proc>)> {
        self.lock().iter().map(|(name, running)| (name.clone(), Arc::clone(&running.process))).collect()
    }

    /// Sends SIGTERM to instances, and SIGKILL to those that are still there after `grace`.
    pub(crate) fn stop(&self, names: &[String], grace: Duration) -> Result<(), String> {
        let processes = self.processes(names, true)?;
        processes.iter().try_for_each(|process| process.terminate())?;
        let deadline = Instant::now() + grace;
        let is_there =
            |process: &&Arc<dyn Proc>| process.ended(deadline.saturating_duration_since(Instant::now())).is_none();
        processes.iter().filter(is_there).try_for_each(|process| process.kill())
    }

    /// Sends SIGKILL to all processes of instances.
    pub(crate) fn kill(&self, names: &[String]) -> Result<(), String> {
        self.processes(names, true)?.iter().try_for_each(|process| process.kill())
    }

    /// Stops the processes of instances or clients. The machine continues them after `time`.
    pub(crate) fn pause(&self, names: &[String], time: Option<Duration>) -> Result<(), String> {
        self.processes(names, false)?.iter().try_for_each(|process| process.stop(time))
    }

    /// Continues the processes of instances or clients.
    pub(crate) fn resume(&self, names: &[String]) -> Result<(), String> {
        self.processes(names, false)?.iter().try_for_each(|process| process.resume())
    }

    /// Cuts the power of the instances' machines.
    pub(crate) fn power_cut(&self, names: &[String]) -> Result<(), String> {
        let machine = |name: &String| Ok(self.instance(name)?.machine.clone());
        let machines = names.iter().map(machine).collect::<Result<Vec<_>, String>>()?;
        self.processes(names, true)?;
        self.world.power_cut(&machines)
    }

    /// Instances that ended although no fault acts on them, each with its end. Each is returned once.
    pub(crate) fn ended_by_themselves(&self) -> Vec<(String, String)> {
        let mut ended = Vec::new();
        for (name, running) in self.lock().iter_mut() {
            if running.startup.is_some()
                && !running.is_away
                && let Some(end) = running.process.ended(Duration::ZERO)
            {
                running.is_away = true;
                ended.push((name.clone(), end));
            }
        }
        ended
    }

    fn launch(&self, instance: &Instance) -> Result<(), String> {
        let known = self.lock().get_mut(&instance.name).and_then(|running| running.startup.take());
        let startup = match known {
            Some(startup) => startup,
            None => self.prepare(instance)?,
        };
        let said_before = fs::metadata(self.log(&instance.name)).map_or(0, |log| log.len());
        let process = self.world.spawn(&instance.machine, &startup.line, &self.log(&instance.name));
        let process = process.map_err(|reason| format!("{}: {reason}", instance.name))?;
        self.lock().insert(
            instance.name.clone(),
            Running { process: process.into(), startup: Some(startup), is_away: false, said_before },
        );
        Ok(())
    }

    /// Writes the files of an instance, and runs the commands that its first start needs.
    fn prepare(&self, instance: &Instance) -> Result<Startup, String> {
        let all = self.plan.instances.iter().filter(|other| other.system == instance.system).collect::<Vec<_>>();
        let (files, results) = self.directories(&instance.name)?;
        let (data, programs) = (self.world.data(&instance.machine), self.world.programs(&instance.machine));
        let machine = self.plan.machines.iter().find(|machine| machine.name == instance.machine);
        let is_etcd = |instance: &&Instance| instance.kind == Kind::Etcd;
        let etcd: Vec<_> = self.plan.instances.iter().filter(is_etcd).map(|etcd| etcd.door.clone()).collect();
        let place = InstancePlace {
            instance,
            all: &all,
            listen: self.world.listen(),
            files: &files,
            results: &results,
            data: &data,
            tenbin: &programs.tenbin,
            address: machine.map_or(Ipv4Addr::LOCALHOST.into(), |machine| machine.address),
            etcd: &etcd,
        };
        let mut startup = systems::startup(&place)?;
        let skews = |action: &crate::plan::PlannedAction| matches!(action.fault, Fault::ClockSkew { .. });
        if self.plan.actions.iter().any(skews) && !instance.kind.is_static() && !is_container(instance) {
            let file = self.clock_file(&instance.name)?;
            startup.files.push((file.clone(), "+0\n".to_owned()));
            startup.line.environment.extend(super::fault::clock_environment(&file));
        }
        for (path, content) in &startup.files {
            if let Some(given) = self.configs(&instance.name).find(|given| files.join(&given.name) == *path) {
                let source = given.source.display();
                return Err(format!(
                    "{}: {source} has the name of a file that the tool writes; put its settings into config, or rename it",
                    instance.name
                ));
            }
            self.world.write(&instance.machine, path, content.as_bytes(), None)?;
        }
        for line in &startup.prepare {
            let output = self.world.exec(&instance.machine, line)?;
            if !output.is_success {
                let said = format!("{} {}", output.stdout.trim(), output.stderr.trim());
                return Err(format!("{}: {} failed: {}", instance.name, line.program, said.trim()));
            }
        }
        Ok(startup)
    }

    /// Directory with the files of an instance or client, among them those of `configs/NAME/`, and the one for its
    /// results.
    pub(crate) fn directories(&self, name: &str) -> Result<(PathBuf, PathBuf), String> {
        let (files, results) = self.world.directories(name)?;
        for ConfigFile { name: file, source, .. } in self.configs(name) {
            let read = || Ok((fs::read(source)?, fs::metadata(source)?.permissions().mode()));
            let (content, mode) =
                read().map_err(|error: io::Error| format!("cannot read {}: {error}", source.display()))?;
            self.world.write(name, &files.join(file), &content, Some(mode))?;
        }
        Ok((files, results))
    }

    /// Environment of a client: the template's, and the variables with its directories.
    pub(crate) fn environment(&self, client: &Client) -> Result<Vec<(String, String)>, String> {
        let (files, results) = self.directories(&client.entry.name)?;
        let mut environment = Vec::new();
        for (name, value) in &client.entry.placing.environment {
            let value = value.replace("{config}", &files.display().to_string());
            let value = variables::filled(&value.replace("{results}", &results.display().to_string()));
            environment.push((name.clone(), value.map_err(|reason| format!("{}: {reason}", client.entry.name))?));
        }
        environment.extend(systems::directories(&files, &results));
        let own: Vec<_> = environment.iter().map(|(name, _)| name.as_str()).collect();
        environment.push((drivers::OWN_VARIABLES.to_owned(), own.join(",")));
        Ok(environment)
    }

    fn configs<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s ConfigFile> {
        self.plan.configs.iter().filter(move |file| file.member == name)
    }

    fn wait_until_ready(&self, name: &str) -> Result<(), String> {
        let instance = self.instance(name)?;
        let ready = self.lock().get(name).and_then(|running| running.startup.clone()).map(|startup| startup.ready);
        let ready = ready.ok_or_else(|| format!("{name} was never started"))?;
        let deadline = Instant::now() + READY;
        loop {
            if self.is_ready(instance, &ready)? {
                return Ok(());
            }
            let ended = self.lock().get(name).and_then(|running| running.process.ended(Duration::ZERO));
            if let Some(end) = ended {
                return Err(format!("{name} ended before it was ready, by {end}: {}", last_lines(&self.log(name))));
            }
            if Instant::now() > deadline {
                let said = last_lines(&self.log(name));
                return Err(format!("{name} was not ready after {} s: {said}", READY.as_secs()));
            }
            thread::sleep(LOOK);
        }
    }

    fn is_ready(&self, instance: &Instance, ready: &ReadyWhen) -> Result<bool, String> {
        match ready {
            ReadyWhen::Port(port) => self.answers(instance, *port, Answer::Connection),
            ReadyWhen::Mqtt(port) => self.answers(instance, *port, Answer::Mqtt),
            ReadyWhen::Health(port) => self.answers(instance, *port, Answer::Health),
            ReadyWhen::Line(text) => {
                let log = fs::read(self.log(&instance.name)).unwrap_or_default();
                let from = self.lock().get(&instance.name).map_or(0, |running| running.said_before) as usize;
                let log = String::from_utf8_lossy(log.get(from..).unwrap_or_default());
                Ok(log.lines().any(|line| line.contains(text.as_str())))
            }
            ReadyWhen::Command(line) => Ok(self.world.exec(&instance.machine, line)?.is_success),
        }
    }

    /// True if a port of the instance's machine answers as it is `wanted`.
    fn answers(&self, instance: &Instance, port: u16, wanted: Answer) -> Result<bool, String> {
        let address = format!("127.0.0.1:{port}");
        if self.is_on_loopback() {
            return Ok(crate::probe::answers(&address, wanted));
        }
        let arguments = ["await-port", &address].into_iter().chain(wanted.option());
        let line = self.world.programs(&instance.machine).verify(arguments);
        Ok(self.world.exec_beside(&instance.machine, &line)?.is_success)
    }

    /// True if all instances are processes of this machine.
    pub(crate) fn is_on_loopback(&self) -> bool {
        self.world.listen() == "127.0.0.1"
    }

    pub(crate) fn instance(&self, name: &str) -> Result<&Instance, String> {
        let found = self.plan.instances.iter().find(|instance| instance.name == name);
        found.ok_or_else(|| format!("{name} is no instance of a system"))
    }

    /// Processes of these instances or clients. A fault that takes them away says so.
    fn processes(&self, names: &[String], goes_away: bool) -> Result<Vec<Arc<dyn Proc>>, String> {
        let mut running = self.lock();
        let process = |name: &String| {
            let one = running.get_mut(name).ok_or_else(|| format!("{name} has no separate process here"))?;
            one.is_away |= goes_away;
            Ok(Arc::clone(&one.process))
        };
        names.iter().map(process).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_container(instance: &Instance) -> bool {
    matches!(instance.start, StartBy::Image(_))
}

fn is_started(instance: &Instance) -> bool {
    !matches!(instance.start, StartBy::External(_))
}

/// End of a log, for an error.
fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines = text.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect::<Vec<_>>();
    match lines.is_empty() {
        true => "it said nothing".to_owned(),
        false => lines.into_iter().rev().collect::<Vec<_>>().join(" | "),
    }
}
