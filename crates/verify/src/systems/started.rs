//! Real systems for tests, on loopback.

use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{InstancePlace, ReadyWhen, startup};
use crate::line::Line;
use crate::plan::{Instance, Plan};
use crate::template::Template;

/// Instances of one system, which end with this value.
pub(crate) struct Started {
    pub(crate) instances: Vec<Instance>,
    children: Vec<Child>,
    directory: TempDir,
}

impl Started {
    /// Starts `replicas` instances of `kind` and waits until they are ready; `None`, with a printed line, if a program
    /// is not installed.
    #[allow(clippy::print_stdout, reason = "a skipped test says so")]
    pub(crate) fn try_start(kind: &str, replicas: usize) -> Option<Self> {
        let text = format!(
            "{{ base: {{ runtime: processes }}, systems: {{ {kind}: {{ kind: {kind}, replicas: {replicas} }}, p: {{ publishes_to: {kind} }} }} }}"
        );
        let templates = Template::read("t.yaml", &text).unwrap();
        let mut instances = Plan::new(&templates[0], None).unwrap().instances;
        let ports = free_ports(2 * replicas);
        for (index, instance) in instances.iter_mut().enumerate() {
            instance.door = format!("127.0.0.1:{}", ports[2 * index]);
            instance.peer = Some(format!("127.0.0.1:{}", ports[2 * index + 1]));
        }
        let peers: Vec<_> = instances.iter().filter_map(|instance| instance.peer.clone()).collect();
        for instance in &mut instances {
            instance.peers = peers.iter().filter(|peer| Some(*peer) != instance.peer.as_ref()).cloned().collect();
        }
        let mut started = Self { instances, children: Vec::new(), directory: TempDir::new().unwrap() };
        started.run().inspect_err(|reason| println!("skipped {kind}: {reason}")).ok().map(|()| started)
    }

    /// Addresses of all instances.
    pub(crate) fn doors(&self) -> Vec<(String, String)> {
        self.instances.iter().map(|instance| (instance.name.clone(), instance.door.clone())).collect()
    }

    /// Kills instance `index`, without a chance to close its connections in order.
    #[cfg(feature = "nats")]
    pub(crate) fn kill(&mut self, index: usize) {
        kill(&mut self.children[index]);
    }

    /// Starts instance `index` again after [`Started::kill`].
    #[cfg(feature = "nats")]
    pub(crate) fn restart(&mut self, index: usize) {
        let (child, ready) = self.start(index, false).unwrap();
        self.children[index] = child;
        ready();
    }

    fn run(&mut self) -> Result<(), String> {
        let mut waits = Vec::new();
        for index in 0..self.instances.len() {
            let (child, ready) = self.start(index, true)?;
            self.children.push(child);
            waits.push(ready);
        }
        waits.into_iter().for_each(|ready| ready());
        Ok(())
    }

    /// Starts instance `index`; the closure waits until it is ready.
    fn start(&self, index: usize, is_first: bool) -> Result<(Child, Wait), String> {
        let instance = &self.instances[index];
        let root = self.directory.path().join(&instance.name);
        let (files, data, results) = (root.join("files"), root.join("data"), root.join("results"));
        let all: Vec<_> = self.instances.iter().collect();
        let tenbin = self.directory.path().join("tenbin");
        let place = InstancePlace {
            instance,
            all: &all,
            listen: "127.0.0.1",
            files: &files,
            results: &results,
            data: &data,
            tenbin: &tenbin,
            address: std::net::Ipv4Addr::LOCALHOST.into(),
            etcd: &[],
        };
        let startup = startup(&place)?;
        if is_first {
            std::fs::create_dir_all(&files).unwrap();
            std::fs::create_dir_all(&data).unwrap();
            startup.files.iter().for_each(|(path, text)| std::fs::write(path, text).unwrap());
            for line in &startup.prepare {
                let output = command(line).output().map_err(|error| format!("{}: {error}", line.program))?;
                assert!(output.status.success(), "{line:?}: {output:?}");
            }
        }
        let mut command = command(&startup.line);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null()).process_group(0);
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", startup.line.program))?;
        let (lines, said) = mpsc::sync_channel(100_000);
        read(child.stdout.take().unwrap(), lines.clone());
        read(child.stderr.take().unwrap(), lines);
        let name = instance.name.clone();
        let ready = startup.ready;
        Ok((child, Box::new(move || wait(&name, &ready, &said))))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.children.iter_mut().for_each(kill);
    }
}

/// Waits until an instance is ready.
type Wait = Box<dyn FnOnce()>;

/// Ends a process with all that it started.
fn kill(child: &mut Child) {
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-9", "--", &group]).stderr(Stdio::null()).status();
    let _ = child.wait();
}

fn command(line: &Line) -> Command {
    let mut command = Command::new(&line.program);
    command.args(&line.arguments).envs(line.environment.iter().map(|(name, value)| (name, value)));
    command
}

/// Passes on the lines of an output, to its end.
fn read(output: impl Read + Send + 'static, lines: mpsc::SyncSender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // The lines have no reader after the start; the program must not block.
            let _ = lines.try_send(line);
        }
    });
}

fn wait(name: &str, ready: &ReadyWhen, said: &mpsc::Receiver<String>) {
    let until = Instant::now() + STARTING;
    let mut heard = Vec::new();
    match ready {
        ReadyWhen::Line(text) => loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = said.recv_timeout(left).unwrap_or_else(|_| panic!("{name} is not ready: {heard:#?}"));
            if line.contains(text) {
                return;
            }
            heard.push(line);
        },
        ReadyWhen::Port(port) | ReadyWhen::Mqtt(port) => {
            while TcpStream::connect(("127.0.0.1", *port)).is_err() {
                assert!(Instant::now() < until, "{name} does not listen: {:#?}", said.try_iter().collect::<Vec<_>>());
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        ReadyWhen::Health(port) => {
            while !crate::probe::answers(&format!("127.0.0.1:{port}"), crate::probe::Answer::Health) {
                assert!(Instant::now() < until, "{name} is not healthy: {:#?}", said.try_iter().collect::<Vec<_>>());
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        ReadyWhen::Command(line) => {
            while !command(line).status().is_ok_and(|status| status.success()) {
                assert!(Instant::now() < until, "{name}: {line:?} fails");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// Ports that were free just now.
fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

/// Longest start of a system on a busy machine.
const STARTING: Duration = Duration::from_secs(120);
