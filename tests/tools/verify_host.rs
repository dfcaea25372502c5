//! Verifications that reach beyond their lab: containers, programs outside of it, control groups.
//!
//! Without a Docker daemon, control groups or root, a test prints a line and checks nothing.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

const TENBIN: &str = env!("CARGO_BIN_EXE_tenbin");
const PATIENCE: Duration = Duration::from_secs(60);

const CLIENTS: [&str; 2] = [
    "pub: { publishes_to: broker, count: 2, size: 100B, rate: 200, qos: 1 }",
    "sub: { subscribes_to: broker, qos: 1, session_expiry: 1h }",
];

/// A running verification with its files in a temporary directory.
struct Run {
    directory: TempDir,
    child: Child,
}

impl Run {
    /// Starts a verification of `broker`. Its temporary files are below its directory, by which its processes can be told.
    fn start(base: &str, broker: &str, rest: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file.yaml");
        let [publishers, subscriber] = CLIENTS;
        let systems = format!("systems:\n  broker: {{ {broker} }}\n  {publishers}\n  {subscriber}\n");
        let text = format!("base: {{ {base} }}\n{systems}{rest}");
        fs::write(&file, text).expect("a file");
        fs::create_dir_all(directory.path().join("tmp")).expect("a directory");
        let child = Command::new(TENBIN)
            .args(["verify", "run"])
            .arg(&file)
            .arg("--out")
            .arg(directory.path().join("out"))
            .env("TMPDIR", directory.path().join("tmp"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command");
        Self { directory, child }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Waits until an action begins or is undone.
    fn wait_for(&mut self, action: &str, event: &str) {
        let events = self.path().join("out/default/events.jsonl");
        let wanted = format!(r#""action":"{action}","repetition":1,"event":"{event}""#);
        eventually(&wanted, || {
            let has_ended = self.child.try_wait().expect("a status").is_some();
            let happened = fs::read_to_string(&events).is_ok_and(|events| events.contains(&wanted));
            assert!(happened || !has_ended, "the run ended before {wanted}");
            happened
        });
    }

    /// Waits for the end, which must be a success.
    fn succeed(self) {
        let output = self.child.wait_with_output().expect("its end");
        let logs = fs::read_to_string(self.directory.path().join("out/default/logs/broker.log"));
        let text = String::from_utf8_lossy(&output.stdout);
        let is_good = output.status.success() && text.contains("all assertions hold");
        assert!(is_good, "{text} {}", logs.unwrap_or_default());
    }

    fn kill(&mut self) {
        self.child.kill().expect("SIGKILL");
        self.child.wait().expect("its end");
    }

    /// Name of the run: the name of its directory for working files.
    fn name(&self) -> String {
        let mut work = fs::read_dir(self.path().join("tmp")).expect("a directory").flatten();
        work.next().expect("working files").file_name().to_string_lossy().into_owned()
    }
}

fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Output of a program that succeeds; `None` if it is absent or fails.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn is_root() -> bool {
    said("id", &["-u"]).as_deref() == Some("0")
}

/// True if users may create namespaces here.
fn has_namespaces() -> bool {
    let has = said("unshare", &["--user", "--map-root-user", "--net", "true"]).is_some();
    if !has {
        println!("skipped: this machine lets its users create no namespaces");
    }
    has
}

/// An image with this program and its libraries, which is removed at the end.
struct Image(String);

impl Image {
    /// `None`, with a printed line, without a daemon or root.
    fn make() -> Option<Self> {
        if !is_root() || said("docker", &["version", "--format", "{{.Server.Version}}"]).is_none() {
            println!("skipped: containers need root and a Docker daemon");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path().join("root");
        let copy = |from: &Path, to: &str| {
            let to = root.join(to.trim_start_matches('/'));
            fs::create_dir_all(to.parent().expect("a directory")).expect("a directory");
            fs::copy(from, to).expect("a copy");
        };
        copy(Path::new(TENBIN), "bin/tenbin");
        let libraries = said("ldd", &[TENBIN]).unwrap_or_default();
        for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
            copy(Path::new(library), library);
        }
        fs::create_dir_all(root.join("tmp")).expect("a directory");
        let tar = directory.path().join("image.tar");
        let path = |path: &Path| path.display().to_string();
        said("tar", &["-C", &path(&root), "-cf", &path(&tar), "."]).expect("an archive");
        let name = format!("tenbin-test-{}-{:?}", std::process::id(), thread::current().id());
        let name = name.to_lowercase().replace(['(', ')'], "");
        let command = r#"CMD ["/bin/tenbin","broker","--listen","0.0.0.0:1883","--data","/tmp/data"]"#;
        said("docker", &["import", "--change", command, &path(&tar), &name]).expect("an image");
        Some(Self(name))
    }

    fn broker(&self) -> String {
        format!("kind: tenbin, image: {}", self.0)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = said("docker", &["image", "rm", "--force", &self.0]);
    }
}

/// Containers of a run.
fn containers(run: &str) -> Vec<String> {
    let label = format!("label=tenbin.verify={run}");
    let names = said("docker", &["ps", "--all", "--filter", &label, "--format", "{{.Names}}"]);
    names.expect("a list").lines().map(str::to_owned).collect()
}

/// Interfaces, bridges and packet rules of this machine, without their states and counters.
fn host() -> Vec<String> {
    let programs: [(&str, &[&str]); 4] = [
        ("ip", &["-o", "-br", "link"]),
        ("ip", &["-o", "-br", "link", "show", "type", "bridge"]),
        ("nft", &["--stateless", "list", "ruleset"]),
        ("iptables-save", &[]),
    ];
    let lasting = |program: &str, line: &str| match program {
        "ip" => line.split_whitespace().next().unwrap_or_default().to_owned(),
        // A comment has the time; a chain ends with its counters, as `[7:420]`.
        _ if line.starts_with('#') => String::new(),
        _ => line.split(" [").next().unwrap_or_default().to_owned(),
    };
    let all = programs.iter().flat_map(|(program, arguments)| {
        let said = said(program, arguments).unwrap_or_default();
        said.lines().map(|line| lasting(program, line)).collect::<Vec<_>>()
    });
    all.collect()
}

#[test]
fn container_keeps_delay_across_a_restart() {
    let Some(image) = Image::make() else { return };
    let before = host();
    let rest = "\
actions:
  - { name: slow, fault: net.delay, delay: 50ms, from: broker, to: sub, start: 1, duration: 8 }
  - { name: again, target: broker, fault: restart, start: 2 }
  - { name: hold, target: broker, fault: pause, start: 5, duration: 1 }
measure: { time: 12, warm_up: 1s, before: 1, drain: 30 }
assert: [ lost = 0, p50 during slow >= 50ms, unavailable during hold >= 500ms ]
";
    let limited = "  - { name: limit, target: broker, fault: cpu.limit, share: 0.5, start: 7, duration: 4 }\nmeasure:";
    let rest = if has_limits() { rest.replace("measure:", limited) } else { rest.to_owned() };
    let mut run = Run::start("runtime: docker", &image.broker(), &rest);
    run.wait_for("slow", "begun");
    let name = run.name();
    assert_eq!(containers(&name), [format!("{name}-broker")]);
    if has_limits() {
        run.wait_for("limit", "begun");
        let id = said("docker", &["inspect", "--format", "{{.Id}}", &format!("{name}-broker")]).expect("a container");
        let own = groups(&id);
        let cpu = || limit(&own, "cpu.max");
        assert_eq!(cpu(), "50000 100000", "{own:?}");
        run.wait_for("limit", "undone");
        assert!(!cpu().starts_with("50000"), "{}", cpu());
    }
    let log = fs::read_to_string(run.path().join("out/default/logs/broker.log")).expect("a log");
    assert_eq!(log.matches(" listening on ").count(), 2, "output of both starts: {log}");
    run.succeed();
    assert_eq!(containers(&name), Vec::<String>::new());
    assert_eq!(host(), before);
}

#[test]
fn killed_command_leaves_no_container() {
    let Some(image) = Image::make() else { return };
    let rest = "\
actions:
  - { name: hold, target: broker, fault: pause, start: 1, duration: 20 }
measure: { time: 30, warm_up: 1s, before: 1 }
";
    let mut run = Run::start("runtime: docker", &image.broker(), rest);
    run.wait_for("hold", "begun");
    let name = run.name();
    assert_eq!(containers(&name).len(), 1);
    run.kill();
    eventually("the end of the container", || containers(&name).is_empty());

    // Without the second guard too, the next `restore` removes the containers.
    let mut run = Run::start("runtime: docker", &image.broker(), rest);
    run.wait_for("hold", "begun");
    let name = run.name();
    let guards = second_guards(run.path());
    assert_eq!(guards.len(), 1);
    assert!(said("kill", &["-KILL", &guards[0]]).is_some());
    run.kill();
    assert_eq!(containers(&name).len(), 1);
    let out = run.path().join("out").display().to_string();
    assert!(said(TENBIN, &["verify", "restore", &out]).is_some_and(|said| said.ends_with("undone")));
    assert_eq!(containers(&name), Vec::<String>::new());
}

/// Processes that wait for the end of a run's program.
fn second_guards(directory: &Path) -> Vec<String> {
    let mark = directory.display().to_string();
    let is_guard = |path: PathBuf| {
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains(" guard journal ") && line.contains(&mark)
    };
    let all = fs::read_dir("/proc").expect("/proc").flatten().filter(|entry| is_guard(entry.path()));
    all.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn image_that_is_absent_is_named() {
    let Some(_image) = Image::make() else { return };
    let run = Run::start("runtime: docker", "kind: mqtt, image: tenbin-no-such-image", "measure: { time: 5 }\n");
    let output = run.child.wait_with_output().expect("its end");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("tenbin-no-such-image") && text.contains("set base.pull: true"), "{text}");
}

#[test]
fn external_program_has_a_network_that_breaks() {
    if !has_namespaces() {
        return;
    }
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let data = tempfile::tempdir().expect("a directory");
    let mut broker = Command::new(TENBIN)
        .args(["broker", "--listen", &address.to_string(), "--data"])
        .arg(data.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a broker");
    // Kept to the end, because the broker writes more.
    let mut lines = BufReader::new(broker.stdout.take().expect("its output")).lines();
    assert!(lines.by_ref().map_while(Result::ok).any(|line| line.contains("listening on")));
    let rest = "\
actions:
  - { name: slow, fault: net.delay, delay: 50ms, from: broker, to: sub, start: 2, duration: 2 }
  - { name: cut, fault: net.partition, from: pub, to: broker, start: 5, duration: 1 }
measure: { time: 8, warm_up: 1s, before: 1, drain: 30 }
assert: [ lost = 0, p50 during slow >= 50ms, unavailable during cut >= 500ms ]
";
    Run::start("runtime: namespaces", &format!("kind: mqtt, external: '{address}'"), rest).succeed();
    broker.kill().expect("SIGKILL");
    broker.wait().expect("its end");
}

/// Directories of control groups whose name has `part`.
fn groups(part: &str) -> Vec<PathBuf> {
    let found = said("find", &["/sys/fs/cgroup", "-type", "d", "-name", &format!("*{part}*")]).unwrap_or_default();
    found.lines().map(PathBuf::from).collect()
}

/// Whether this machine has control groups of version 2 with the controllers of limits.
fn has_limits() -> bool {
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    ["cpu", "memory"].iter().all(|name| controllers.split_whitespace().any(|controller| controller == *name))
}

/// Value of a limit: the content of the file in the first group that has it.
fn limit(groups: &[PathBuf], file: &str) -> String {
    let mut values = groups.iter().filter_map(|group| fs::read_to_string(group.join(file)).ok());
    values.next().expect("a limit").trim().to_owned()
}

#[test]
fn limits_hold_for_the_time_of_their_action() {
    if !is_root() || !has_limits() {
        println!("skipped: limits need root and control groups of version 2 here");
        return;
    }
    let rest = "\
actions:
  - { name: cpu, target: broker, fault: cpu.limit, share: 0.5, start: 1, duration: 4 }
  - { name: memory, target: broker, fault: memory.limit, bytes: 512MiB, start: 1, duration: 4 }
measure: { time: 7, warm_up: 1s, before: 1, drain: 30 }
assert: [ lost = 0 ]
";
    let cpu = |groups: &[PathBuf]| limit(groups, "cpu.max");
    let memory = |groups: &[PathBuf]| limit(groups, "memory.max");
    let mut run = Run::start("runtime: namespaces", "kind: tenbin", rest);
    run.wait_for("cpu", "planned");
    let own = groups(&format!("{}-broker", run.name()));
    let before = (cpu(&own), memory(&own));
    assert!(own.iter().all(|group| fs::read_to_string(group.join("cgroup.procs")).is_ok_and(|list| !list.is_empty())));
    run.wait_for("cpu", "begun");
    run.wait_for("memory", "begun");
    assert_eq!(cpu(&own), "50000 100000", "{own:?}");
    assert_eq!(memory(&own), (512 << 20).to_string());
    // What looks at the instance from beside is not limited.
    let inside = own.iter().filter_map(|group| fs::read_to_string(group.join("cgroup.procs")).ok()).collect::<String>();
    for process in inside.lines() {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        assert!(line.contains(" broker "), "{line}");
    }
    run.wait_for("cpu", "undone");
    run.wait_for("memory", "undone");
    assert_eq!((cpu(&own), memory(&own)), before);
    run.succeed();
    assert!(own.iter().all(|group| !group.exists()), "{own:?}");

    let mut run = Run::start("runtime: namespaces", "kind: tenbin", rest);
    run.wait_for("memory", "begun");
    let own = groups(&format!("{}-broker", run.name()));
    assert!(!own.is_empty());
    run.kill();
    eventually("the end of the groups", || own.iter().all(|group| !group.exists()));
}
