//! `docs/cluster.md` as an operator follows it: its configuration files and its commands, on loopback.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use toml::Table;

use crate::commands::{Commands, part, shell};
use crate::harness::{Cluster, Etcd, finds, free_address, misses_leader};
use crate::ledger::Ledger;
use crate::loopback::{self, network};
use crate::page::Page;
use crate::support::{Lines, PATIENCE};

/// Parts of the page whose commands a test runs. `directories` has the one about a standalone broker.
const PARTS: [&str; 7] = [
    "Try it on one machine",
    "From a standalone broker",
    "Status",
    "Without an engine",
    "Maintenance",
    "Recovery",
    "Backup",
];
/// Commands in sentences of the page, and the test that runs them.
const IN_SENTENCES: [(&str, &str); 15] = [
    ("tenbin admin ban", "small_files"),
    ("tenbin admin drain --member", "groups/share_rules"),
    ("tenbin broker --check", "configuration"),
    ("tenbin broker --data DIR", "directories"),
    ("tenbin cluster force --accept-loss", "below"),
    ("tenbin cluster status", "below"),
    ("tenbin cluster status --address HOST:PORT --config FILE", "secure"),
    ("tenbin cluster status --data tenbin-cluster/node-1", "below"),
    ("tenbin cluster status --json", "below"),
    ("tenbin cluster status --ready", "chart, compose"),
    ("tenbin cluster switch", "below"),
    ("tenbin store backup /var/lib/tenbin FILE", "durable/store_command"),
    ("tenbin store check", "below"),
    ("tenbin store check DIR", "below"),
    ("tenbin-loadgen scenario slow --pair", "tools/loadgen_scenario"),
];

#[test]
fn every_command_of_the_page_is_known() {
    assert_eq!(Commands::titles(), PARTS);
    let spans = Page::read("docs/cluster.md").spans().into_iter();
    let commands: BTreeSet<_> =
        spans.filter(|span| span.starts_with("tenbin ") || span.starts_with("tenbin-loadgen ")).collect();
    let known: BTreeSet<_> = IN_SENTENCES.iter().map(|(command, _)| (*command).to_owned()).collect();
    assert_eq!(commands, known, "add where the command is run, or why it is not");
}

#[test]
fn cluster_of_one_machine_bears_the_printed_kill() {
    if !Etcd::is_there() {
        return;
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let mut commands = Commands::of(&PARTS[..1]);
    let port = three_ports();
    commands.replace("-p 1884 ", format!("-p {} ", port + 1));
    commands.replace("-p 1885 ", format!("-p {} ", port + 2));
    let run = |text: &str| Program::start(shell(text, directory.path()));
    let mut cluster = run(&format!("exec {} --port {port} 2>&1", commands.next("tenbin cluster dev")));
    let line = cluster.lines.wait_for(&["takes over after: kill -9 "], PATIENCE);
    let reader = commands.next("mosquitto_sub -p 1884 -i reader -c -q 1 -t 'jobs/#'");
    // A `mosquitto_pub` whose node is killed under it may hang for ever. It fails if the node takes over.
    let publisher =
        commands.next("while true; do date +%T | timeout 5 mosquitto_pub -p 1885 -q 1 -t jobs/1 -s; sleep 0.1; done");
    // `real_clients` asks for them.
    let has_clients = Command::new("mosquitto_pub").arg("--help").output().is_ok();
    let clients = has_clients.then(|| (run(&format!("exec {reader}")), run(&format!("set +e; {publisher}"))));
    if let Some((reader, _)) = &clients {
        assert!(reader.lines.count(":", 10, PATIENCE) >= 10, "messages before the takeover");
    }
    let status =
        shell("tenbin cluster status --data tenbin-cluster/node-1", directory.path()).output().expect("a shell");
    assert!(status.status.success(), "{}", crate::said(&status));

    let (_, kill) = line.split_once("after: ").expect("a command");
    let (_, follower) = line.split_once("; ").expect("a node");
    let follower = follower.split(' ').next().expect("a name");
    assert!(shell(kill, directory.path()).status().expect("a shell").success(), "{kill}");
    cluster.lines.wait_for(&["ended: killed by signal 9"], PATIENCE);
    cluster.lines.wait_for(&["cluster | ", &format!("{follower} leads in epoch")], PATIENCE);
    cluster.lines.wait_for(&["starts again in 3 s"], PATIENCE);
    if let Some((reader, publisher)) = &clients {
        let before = reader.lines.all().len();
        let after = reader.lines.count(":", before + 20, PATIENCE);
        let lines = || (reader.lines.all(), publisher.lines.all(), cluster.lines.all());
        assert!(after >= before + 20, "{after} messages, and before the takeover {before}: {:?}", lines());
    }
    drop(clients);
    assert!(cluster.end(), "{:?}", cluster.lines.all());
}

#[test]
fn commands_for_two_nodes_without_an_engine_run() {
    let mut commands = Commands::of(&PARTS[3..4]);
    let mut cluster = configured("Without an engine", |_| unreachable!("it names no server"));
    cluster.start_all();
    assert_eq!(cluster.wait_for_copies(), 0, "the first node of `nodes` leads");
    // The leader changes the record when it is alone. A node that leads later cannot know the messages that the leader has acknowledged.
    cluster.nodes[1].kill();
    // If it sees the end of the copy before the end of the link, it keeps its clients, and acknowledges nothing either.
    cluster.wait_for_status(0, "only copy", |status| {
        finds(status, "reaches neither its follower nor the engine") || finds(status, "wait for a second copy")
    });
    cluster.nodes[0].kill();
    cluster.nodes[1].start();
    cluster.wait_for_role(1, "follower");
    commands.run(&cluster, 1, "tenbin cluster promote --data /var/lib/tenbin");
    // With two copies it has acknowledged nothing alone. So its store is put aside by hand.
    let aside = cluster.nodes[0].data.join("aside-1048580-0");
    let kept = cluster.directory().join("kept");
    assert!(Command::new("cp").arg("-a").args([&cluster.nodes[0].data, &kept]).status().expect("cp runs").success());
    std::fs::rename(kept, aside).expect("one file system");
    cluster.nodes[0].start();
    assert_eq!(cluster.wait_for_copies(), 1);
    let said = commands.run(&cluster, 0, "tenbin store check /var/lib/tenbin/aside-1048580-0");
    assert!(said.contains("fine: "), "{said}");
    commands.run(&cluster, 0, "tenbin store dump --messages /var/lib/tenbin/aside-1048580-0");
}

#[test]
fn commands_for_a_pair_with_a_witness_run() {
    if !Etcd::is_there() {
        return;
    }
    let network = network();
    let mut cluster = configured("A pair with a witness", |url| url.replace("10.0.0.", &network));
    cluster.etcd = engines("A pair with a witness", &[("w", 3)], &network, &cluster).pop();
    let mut commands = Commands::of(&PARTS[2..3]);
    cluster.nodes[0].start();
    cluster.wait_for_leader();
    cluster.nodes[1].start();
    let leader = cluster.wait_for_copies();
    let shown = commands.run(&cluster, 1 - leader, "tenbin cluster status");
    let sample = part("Status").blocks.into_iter().find(|(language, _)| language == "text").expect("a table").1;
    let first_words = |lines: &mut dyn Iterator<Item = &str>| -> BTreeSet<String> {
        lines.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
    };
    assert!(
        first_words(&mut shown.lines()).is_superset(&first_words(&mut sample.iter().map(|line| &line[..]))),
        "{shown}"
    );
    let shown = commands.run(&cluster, 0, "tenbin cluster status --address 10.0.0.2:7883");
    assert!(shown.contains("node       b, version"), "{shown}");
    commands.run(&cluster, 0, "tenbin cluster status --json");

    let mut commands = Commands::of(&PARTS[4..]);
    for command in ["tenbin cluster switch", "tenbin cluster switch --address 10.0.0.2:7883"] {
        let leader = cluster.wait_for_copies();
        let said = commands.run(&cluster, leader, command);
        assert_eq!(said, format!("{} leads\n", cluster.nodes[1 - leader].name));
    }
    if cluster.wait_for_copies() == 1 {
        let (is_done, said) = cluster.nodes[1].switch(&[]);
        assert!(is_done, "{said}");
        cluster.wait_for_copies();
    }
    commands.run(&cluster, 0, "tenbin cluster switch --to b");
    let leader = cluster.wait_for_copies();
    commands.run(&cluster, leader, "tenbin admin drain --seconds 60 --server-reference other.example:1883");
    commands.run(&cluster, leader, "tenbin admin drain --cancel");

    // The leader's machine is lost, and its follower's copy is old.
    cluster.nodes[1 - leader].kill();
    cluster.wait_for_status(leader, "only copy", |status| status["copies"] == 1 && status["serving"] == true);
    cluster.nodes[leader].kill();
    let (lost, leader) = (leader, 1 - leader);
    cluster.nodes[leader].start();
    cluster.wait_for_status(leader, "silence of the leader", misses_leader);
    let (is_done, said) = commands.attempt(&cluster, leader, "tenbin cluster force --data /var/lib/tenbin");
    assert!(!is_done && said.contains("are lost") && said.contains("--accept-loss"), "{said}");
    commands.run(&cluster, leader, "tenbin cluster force --data /var/lib/tenbin --accept-loss");
    cluster.nodes[lost].start();
    assert_eq!(cluster.wait_for_copies(), leader);
    cluster.etcd.as_mut().expect("it agrees by etcd").lose_data();
    cluster.wait_for_status(leader, "lost record", |status| finds(status, "The engine has no record"));
    commands.run(&cluster, leader, "tenbin cluster adopt --data /var/lib/tenbin");

    commands.run(&cluster, leader, "tenbin cluster backup /backup/tenbin-$(date +%F) --data /var/lib/tenbin");
    let file = std::fs::read_dir(cluster.directory().join("backup")).expect("a directory").next().expect("a backup");
    let file = file.expect("an entry").file_name().into_string().expect("a readable name");
    for node in &mut cluster.nodes {
        node.kill();
    }
    cluster.nodes[lost].wipe();
    commands.replace("tenbin-2026-01-31", file);
    commands.run(&cluster, lost, "tenbin cluster restore /backup/tenbin-2026-01-31 --data /var/lib/tenbin");
    let said = commands.run(&cluster, lost, "tenbin store check /var/lib/tenbin");
    assert!(said.contains("fine: "), "{said}");
}

#[test]
fn three_machines_bear_the_loss_of_one() {
    if !Etcd::is_there() {
        return;
    }
    let network = network();
    let mut cluster = configured("Three machines", |url| url.replace("10.0.0.", &network));
    let mut engines = engines("Three machines", &[("a", 1), ("b", 2), ("c", 3)], &network, &cluster);
    cluster.start_all();
    let leader = cluster.wait_for_copies();
    let ledger = Ledger::start(&cluster);
    ledger.wait_for_more(20);
    engines[leader].kill();
    cluster.nodes[leader].kill();
    assert_ne!(cluster.wait_for_copies(), leader, "the spare joins");
    ledger.wait_for_more(20);
    ledger.finish();
}

/// Nodes with the configuration of a part of the page. They have the pair's listeners and store.
fn configured(title: &str, engine: impl Fn(&str) -> String) -> Cluster {
    let table = |title| -> Table { block(title, "toml", "[").join("\n").parse().expect("TOML") };
    let mut config = table("A pair with a witness");
    config["cluster"] = table(title)["cluster"].clone();
    loopback::nodes(&config, engine)
}

/// Servers of etcd with the file of a part of the page, which is the first machine's. Machines have names and numbers.
fn engines(title: &str, machines: &[(&str, u8)], network: &str, cluster: &Cluster) -> Vec<Etcd> {
    let file = block(title, "sh", "ETCD_NAME=");
    let own = format!("{network}{}:", machines[0].1);
    let start = |(name, number): &(&str, u8)| {
        let option = |line: &String| {
            let (option, value) = line.strip_prefix("ETCD_").and_then(|line| line.split_once('=')).expect("an option");
            let value = value.replace("10.0.0.", network);
            let value = match option {
                "NAME" => (*name).to_owned(),
                "INITIAL_CLUSTER" => value,
                _ => value.replace(&own, &format!("{network}{number}:")),
            };
            (option.to_lowercase().replace('_', "-"), value)
        };
        Etcd::start_with(cluster.directory(), file.iter().map(option).collect())
    };
    machines.iter().map(start).collect()
}

/// Lines of the first block of a part that begins with these words.
fn block(title: &str, language: &str, words: &str) -> Vec<String> {
    let blocks = part(title).blocks.into_iter();
    let mut blocks = blocks.filter(|(other, lines)| other == language && lines[0].starts_with(words));
    blocks.next().expect("a block").1
}

/// The first of three free ports in a row.
fn three_ports() -> u16 {
    loop {
        let [first, second, third] = [free_address(), free_address(), free_address()].map(|address| address.port());
        if (second, third) == (first + 1, first + 2) {
            return first;
        }
    }
}

/// A program with its lines. It ends by SIGTERM when dropped.
struct Program {
    process: Child,
    lines: Lines,
}

impl Program {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().expect("it can be started");
        let lines = Lines::collect(process.stdout.take().expect("piped"));
        Self { process, lines }
    }

    /// Ends it by SIGTERM, or by SIGKILL if it does not end. Returns whether its exit code is 0.
    fn end(&mut self) -> bool {
        let until = Instant::now() + PATIENCE;
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        while Instant::now() < until {
            if let Some(status) = self.process.try_wait().expect("our own child") {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        false
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|status| status.is_none()) {
            self.end();
        }
    }
}
