//! `tenbin-verify run` with runtime ssh: two nodes with an `sshd` each, and the machine of the controller, in a lab.
//!
//! Without root, `sshd` or namespaces the tests print a line and check nothing.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tenbin_lab::{Helper, Lab, Machine, Process, Shape};

const TENBIN: &str = env!("CARGO_BIN_EXE_tenbin");
const SSHD: &str = "/usr/sbin/sshd";
const PATIENCE: Duration = Duration::from_secs(120);

const FILE: &str = "\
base: { runtime: ssh, user: root, nodes: { node-1: 10.77.0.1, node-2: 10.77.0.2 } }
systems:
  broker: { kind: tenbin, node_name: node-1 }
  pub: { publishes_to: broker, node_name: node-1, count: 2, size: 100B, rate: 200, qos: 1 }
  sub: { subscribes_to: broker, node_name: node-2, qos: 1, session_expiry: 1h }
  extra: { kind: mqtt, command: \"exec {config}/keys/tool {config} {results}\", node_name: node-2, ready: { command: 'true' } }
actions:
  - { name: kill, target: broker, fault: kill, start: 2, duration: 1 }
  - { name: slow, fault: net.delay, delay: 100ms, from: broker, to: sub, start: 6, duration: 3 }
measure: { time: 11, warm_up: 1s, before: 1, drain: 30 }
assert: [ lost = 0, p50 before < 100ms, p50 during slow >= 100ms, p50 during slow < 200ms, unavailable during kill >= 500ms ]
";

/// Program of the instance `extra`, among its files. It leaves a copy of another one.
const TOOL: &str = "#!/bin/sh\ncp $1/note $2/copy && exec sleep 98765\n";
/// Bytes of the other one, which are no text.
const NOTE: [u8; 4] = [0, 0xff, b'\n', 0x80];

/// Writes the file of a run, with `text`, and the files of an instance beside it. Returns its path.
fn write_file(directory: &Path, text: &str) -> PathBuf {
    let (file, keys) = (directory.join("file.yaml"), directory.join("configs/extra/keys"));
    fs::create_dir_all(&keys).expect("a directory");
    fs::write(keys.join("tool"), TOOL).expect("a file");
    fs::set_permissions(keys.join("tool"), fs::Permissions::from_mode(0o500)).expect("a file");
    fs::write(directory.join("configs/extra/note"), NOTE).expect("a file");
    fs::write(&file, text).expect("a file");
    file
}

/// Two nodes and the controller's machine.
struct Hosts {
    lab: Lab,
    nodes: [Machine; 2],
    desk: Machine,
    /// The servers, which end with the lab.
    _servers: [Process; 2],
    directory: TempDir,
}

/// None, with a line, where something is missing.
fn hosts() -> Option<Hosts> {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    let has = |program: &str| Command::new(program).arg("-V").stderr(Stdio::null()).status().is_ok();
    if !is_root || !Path::new(SSHD).exists() || !has("ssh") {
        println!("skipped: this needs root, ssh and {SSHD}");
        return None;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let helper = Helper::new(TENBIN, &["verify", "guard"]);
    let lab = match Lab::builder(helper, directory.path().join("lab")).start() {
        Ok(lab) => lab,
        Err(error) => {
            println!("skipped: {error}");
            return None;
        }
    };
    let machine = |name: &str| lab.machine(name, None).expect("a machine");
    let (nodes, desk) = ([machine("node-1"), machine("node-2")], machine("desk"));
    let at = directory.path();
    for key in ["host", "user"] {
        let line = ["-q", "-t", "ed25519", "-N", "", "-f"];
        let made = Command::new("ssh-keygen").args(line).arg(at.join(key)).status();
        assert!(made.is_ok_and(|made| made.success()), "a key");
    }
    let host = fs::read_to_string(at.join("host.pub")).expect("a key");
    let known: String = nodes.iter().map(|node| format!("{} {host}", node.address())).collect();
    fs::write(at.join("known_hosts"), known).expect("a file");
    let shown = at.display();
    let config = format!("StrictHostKeyChecking yes\nUserKnownHostsFile {shown}/known_hosts\nIdentitiesOnly yes\n");
    fs::write(at.join("ssh_config"), config).expect("a file");
    fs::create_dir(at.join("bin")).expect("a directory");
    // The system's program, with the test's configuration in place of the user's.
    let ssh = format!("#!/bin/sh\nexec /usr/bin/ssh -F {shown}/ssh_config \"$@\"\n");
    fs::write(at.join("bin/ssh"), ssh).expect("a file");
    let made = Command::new("chmod").arg("755").arg(at.join("bin/ssh")).status();
    assert!(made.is_ok_and(|made| made.success()));
    let servers = [("", &nodes[0]), (faketime(), &nodes[1])].map(|(clock, node)| serve(at, node, clock));
    Some(Hosts { lab, nodes, desk, _servers: servers, directory })
}

/// Environment in which clocks are 0.3 s ahead; empty without the library.
fn faketime() -> &'static str {
    let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
    if Path::new(library).exists() {
        return "LD_PRELOAD=/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1 FAKETIME=+0.3 \
                FAKETIME_DONT_FAKE_MONOTONIC=1";
    }
    println!("skipped: clocks that differ, as libfaketime is missing");
    ""
}

/// Starts `sshd` on a machine, with separate directories for everything that a session may write.
fn serve(at: &Path, node: &Machine, clock: &str) -> Process {
    let own = at.join(node.name());
    fs::create_dir_all(own.join("tmp")).expect("a directory");
    let (own, at) = (own.display(), at.display());
    let config = format!(
        "HostKey {at}/host\nAuthorizedKeysFile {at}/user.pub\nStrictModes no\nPidFile none\nUsePAM no\n\
         PermitRootLogin yes\nPasswordAuthentication no\n\
         SetEnv TMPDIR={own}/tmp XDG_CACHE_HOME={own}/cache {clock}\n"
    );
    fs::write(format!("{own}/sshd_config"), config).expect("a file");
    let script = format!(
        "mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /dev/shm && mkdir /run/sshd && \
         exec {SSHD} -D -e -f {own}/sshd_config"
    );
    let log = format!("{own}/sshd.log");
    let process = node.spawn(&tenbin_lab::Command::new("sh").args(["-c", &script]).stdout(&log).stderr(&log));
    let process = process.expect("a server");
    eventually("a server that listens", || fs::read_to_string(&log).is_ok_and(|log| log.contains("listening")));
    process
}

fn eventually(what: &str, mut happened: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !happened() {
        assert!(begin.elapsed() < PATIENCE, "{what} did not happen");
        thread::sleep(Duration::from_millis(20));
    }
    begin.elapsed()
}

/// Processes of this host and, with them, of all labs: their numbers and command lines.
fn processes() -> Vec<(String, String)> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name.parse::<u32>().is_ok());
    let line = |pid: &String| fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|line| !line.is_empty());
    pids.filter_map(|pid| Some((pid.clone(), String::from_utf8_lossy(&line(&pid)?).replace('\0', " ")))).collect()
}

impl Hosts {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts the controller for a file with this text.
    fn run(&self, text: &str) -> Process {
        let file = write_file(self.directory.path(), text);
        fs::create_dir_all(self.path("desk")).expect("a directory");
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap_or_default());
        let command = tenbin_lab::Command::new(TENBIN)
            .args(["verify", "run"])
            .arg(&file)
            .args(["--allow-hosts", "node-1,10.77.0.2", "--out"])
            .arg(self.path("out"))
            .env("PATH", path)
            .env("TMPDIR", self.path("desk"))
            .env("VERIFY_SSH_KEY", self.path("user"))
            .stdout(self.path("printed"))
            .stderr(self.path("printed"));
        self.desk.spawn(&command).expect("the command")
    }

    fn wait_for(&self, event: &str) {
        let events = self.path("out/default/events.jsonl");
        let has = || fs::read_to_string(&events).is_ok_and(|events| events.contains(event));
        let printed = || fs::read_to_string(self.path("printed")).unwrap_or_default();
        let begin = Instant::now();
        while !has() {
            assert!(begin.elapsed() < PATIENCE && !printed().contains('✗'), "no {event}: {}", printed());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Processes of the copied program, and sessions of `ssh`; files and mounts of runs.
    fn leftovers(&self, node: &Machine) -> Vec<String> {
        let own = self.path(node.name());
        let (own, cache) = (own.display().to_string(), format!("{}/cache/", own.display()));
        let all = processes();
        let mut left: Vec<_> = all.iter().filter(|(_, line)| line.contains(&cache)).map(|one| one.1.clone()).collect();
        let server = all.iter().find(|(_, line)| line.contains(SSHD) && line.contains(&own)).expect("the server");
        let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let is_session = |(pid, line): &&(String, String)| line.contains("sshd: ") && *pid != server.0;
        let sessions = all.iter().filter(is_session).filter(|(pid, _)| network(pid) == network(&server.0));
        left.extend(sessions.map(|(_, line)| line.clone()));
        let files = fs::read_dir(format!("{own}/tmp")).expect("a directory").flatten();
        left.extend(files.map(|file| file.path().display().to_string()));
        let mounts = fs::read_to_string(format!("/proc/{}/mounts", server.0)).expect("mounts");
        left.extend(mounts.lines().filter(|mount| mount.contains("tenbin-verify")).map(str::to_owned));
        let links = node.exec(&tenbin_lab::Command::new("ip").args(["-o", "link"])).expect("interfaces");
        let links = String::from_utf8_lossy(&links.stdout).lines().filter(|link| !link.contains("LOOPBACK")).count();
        left.extend((links != 1).then(|| format!("{links} interfaces")));
        left
    }

    fn are_clean(&self) -> bool {
        self.nodes.iter().all(|node| self.leftovers(node).is_empty())
    }

    /// Numbers of processes on the controller's machine whose command lines have these parts.
    fn kill(&self, parts: &[&str]) {
        let is_meant = |line: &str| parts.iter().all(|part| line.contains(part)) && !line.contains("--attach");
        let meant: Vec<_> = processes().into_iter().filter(|(_, line)| is_meant(line)).collect();
        let [(pid, _)] = &meant[..] else { panic!("{parts:?}: {meant:?}") };
        let killed = Command::new("kill").args(["-9", pid]).status();
        assert!(killed.is_ok_and(|killed| killed.success()));
    }
}

/// A program in place of `ssh`, which runs its last argument here as an ordinary user.
const NO_SSH: &str = "\
#!/bin/sh
for script; do :; done
export HOME=$NODE TMPDIR=$NODE XDG_CACHE_HOME=$NODE/cache
[ \"$(id -u)\" = 0 ] && exec setpriv --reuid=nobody --regid=nogroup --clear-groups sh -c \"$script\"
exec sh -c \"$script\"
";

#[test]
fn nodes_need_no_root() {
    let made = Command::new("unshare").args(["--user", "--map-root-user", "--net", "true"]).status();
    if !made.is_ok_and(|made| made.success()) {
        println!("skipped: this machine lets its users create no namespaces");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    fs::write(path("ssh"), NO_SSH).expect("a file");
    fs::create_dir(path("node")).expect("a directory");
    let all: Vec<_> = ["", "ssh", "node"].iter().map(|name| path(name)).collect();
    let made = Command::new("chmod").arg("777").args(all).status();
    assert!(made.is_ok_and(|made| made.success()));
    // The addresses are of this host, which needs no permission.
    write_file(directory.path(), &FILE.replace("10.77.0.", "127.0.0."));
    let search = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap_or_default());
    let mut run = Command::new(TENBIN);
    run.args(["verify", "run"]).arg(path("file.yaml")).arg("--out").arg(path("out"));
    let output = run.env("PATH", search).env("NODE", path("node")).output().expect("the command");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("all assertions hold"), "{printed}");
    let left = || fs::read_dir(path("node")).expect("a directory").count();
    eventually("the end of the nodes", || left() == 1);
    assert!(path("node/cache").exists(), "the program alone is kept");
}

#[test]
fn node_hears_a_controller_that_reads_nothing() {
    let mut node = Command::new(TENBIN);
    node.args(["verify", "node", "--silence", "1h"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut node = node.spawn().expect("a node");
    let mut input = node.stdin.take().expect("its input");
    // More calls, and more answers, than pipes hold.
    let calls = "{\"id\":0,\"call\":\"Alive\"}\n".repeat(20_000);
    let (written, all_written) = sync_channel(1);
    let writer = thread::spawn(move || written.send(input.write_all(calls.as_bytes()).is_ok()));
    let heard = all_written.recv_timeout(PATIENCE);
    if heard.is_err() {
        node.kill().expect("a signal");
    }
    let _ = writer.join();
    assert_eq!(heard, Ok(true), "the node reads on");
    assert!(node.wait().expect("its end").success(), "the node ends with its input");
}

const KILL_BEGUN: &str = r#""action":"kill","repetition":1,"event":"begun""#;

#[test]
fn nodes_form_one_network_with_one_clock() {
    let Some(hosts) = hosts() else { return };
    assert!(hosts.are_clean());
    // Control groups of nodes need root and version 2.
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    let has_limits = controllers.contains("cpu") && controllers.contains("memory");
    let limit = "  - { name: limit, target: broker, fault: cpu.limit, share: 0.5, start: 10, duration: 1 }\nmeasure:";
    let file = if has_limits { FILE.replace("measure:", limit) } else { FILE.to_owned() };
    let exit = hosts.run(&file).wait().expect("its end");
    let printed = fs::read_to_string(hosts.path("printed")).expect("text");
    assert!(exit.success() && printed.contains("all assertions hold"), "{printed}");
    let verdict = fs::read_to_string(hosts.path("out/verdict.json")).expect("a verdict");
    if !faketime().is_empty() {
        assert!(
            verdict.contains("clock of agent sub: 300.") || verdict.contains("clock of agent sub: 299."),
            "{verdict}"
        );
    }
    let links = fs::read_to_string(hosts.path("out/default/links.csv")).expect("links");
    assert!(links.contains("broker,sub") && links.contains("pub,broker"), "{links}");
    let samples = |name: &str| fs::read_to_string(hosts.path("out/default").join(name)).expect("samples");
    let instances = samples("instances.csv");
    assert!(instances.contains(",broker,") && instances.contains(",sub,"), "{instances}");
    let sockets = samples("sockets.csv");
    assert!(sockets.lines().any(|row| row.contains("broker") && row.contains("sub")), "{sockets}");
    let events = samples("events.jsonl");
    let lifted = events.contains(r#""action":"limit","repetition":1,"event":"undone""#);
    assert_eq!(lifted, has_limits, "{events}");
    assert_eq!(fs::read(hosts.path("out/default/files/extra/copy")).expect("results"), NOTE);
    let log = fs::read_to_string(hosts.path("out/default/logs/broker.log")).expect("a log");
    assert!(!log.is_empty(), "logs follow to the controller");
    eventually("the end of all sessions", || hosts.are_clean());
    assert_eq!(fs::read_dir(hosts.path("desk")).expect("a directory").count(), 0);
    for node in &hosts.nodes {
        let kept = fs::read_dir(hosts.path(node.name()).join("cache/tenbin/verify")).expect("a directory").count();
        assert_eq!(kept, 2, "tenbin-verify and tenbin alone are kept");
    }
}

#[test]
fn hosts_that_are_not_allowed_are_left_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, out) = (directory.path().join("file.yaml"), directory.path().join("out"));
    fs::write(&file, FILE).expect("a file");
    let mut run = Command::new(TENBIN);
    run.args(["verify", "run"]).arg(&file).args(["--allow-hosts", "node-1", "--out"]).arg(&out);
    let output = run.output().expect("the command");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("allow it with --allow-hosts 10.77.0.2"), "{said}");
    assert!(!out.exists());
    let plan = Command::new(TENBIN).args(["verify", "plan"]).arg(&file).output().expect("the command");
    let plan = String::from_utf8_lossy(&plan.stdout);
    assert!(
        plan.contains("-l root 10.77.0.1 exec sh -c '") && plan.contains("tenbin-verify-") && plan.contains("\" node'"),
        "{plan}"
    );
    assert!(!plan.contains("HASH"), "{plan}");
}

#[test]
fn killed_controller_or_connection_leaves_nothing_on_nodes() {
    let Some(hosts) = hosts() else { return };
    let out = hosts.path("out").display().to_string();
    for part in ["guards", "controller", "connection", "network"] {
        let _ = fs::remove_dir_all(hosts.path("out"));
        let controller = hosts.run(FILE);
        hosts.wait_for(KILL_BEGUN);
        assert!(hosts.nodes.iter().all(|node| hosts.leftovers(node).len() > 5), "nothing runs");
        let runs = fs::read_dir(hosts.path("node-2/tmp")).expect("a directory").count();
        assert_eq!(runs, 1, "the start of a node undoes the rest of a run whose guards were killed");
        let (begin, mut cut) = (Instant::now(), None);
        match part {
            "guards" => {
                let cache = format!("{}/cache/", hosts.path("node-2").display());
                let all = processes().into_iter().filter(|(_, line)| line.contains(&cache)).map(|(pid, _)| pid);
                // Some end by the death of others before their turn.
                let _ = Command::new("kill").arg("-9").args(all).stderr(Stdio::null()).status();
            }
            "controller" => hosts.kill(&[concat!(env!("CARGO_BIN_EXE_tenbin"), "-verify run"), &out]),
            "connection" => hosts.kill(&["/usr/bin/ssh", "10.77.0.2", "\" node"]),
            _ => {
                let links = [(&hosts.desk, &hosts.nodes[1]), (&hosts.nodes[1], &hosts.desk)];
                let shape = Shape { partition: true, ..Shape::default() };
                cut = Some(hosts.lab.impair(&links, &shape, None).expect("a partition"));
            }
        }
        // A session whose network is cut stays with its server: it is none of the run's.
        let is_own = |left: &String| match part {
            "guards" => !left.contains("/tmp/tenbin-verify"),
            _ => cut.is_none() || !left.contains("sshd: "),
        };
        let clean = || hosts.nodes.iter().all(|node| !hosts.leftovers(node).iter().any(is_own));
        let took = eventually("the undo on all nodes", clean);
        // Silence of 5 s, and the undo itself on a busy machine. Without the end by silence, connections last for hours.
        assert!(took < PATIENCE / 2, "{part}: {took:.1?}");
        let exit = controller.wait().expect("its end");
        println!("{part}: undone after {took:.1?}, controller ended after {:.1?}", begin.elapsed());
        let printed = fs::read_to_string(hosts.path("printed")).expect("text");
        match part {
            "controller" => {}
            "network" => assert!(exit.code == Some(3) && printed.contains("node-2"), "{printed}"),
            _ => {
                let is_said = |text: &str| printed.contains(&format!("node node-2 (10.77.0.2){text}"));
                assert!(exit.code == Some(3) && is_said(" is lost"), "{printed}");
                assert!(is_said(": not known whether all was undone: "), "{printed}");
            }
        }
        if let Some(cut) = cut {
            hosts.lab.lift(cut).expect("no partition");
            eventually("the end of all sessions", || hosts.are_clean());
        }
        let _ = fs::remove_file(hosts.path("printed"));
    }
}
