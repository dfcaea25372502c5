//! Plans: draws, times, targets, support of faults, and all ready verifications.

use super::*;
use crate::library;

fn plan(text: &str) -> Plan {
    try_plan(text, None).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

fn try_plan(text: &str, seed: Option<u64>) -> Result<Plan, Mistakes> {
    let templates = Template::read("t.yaml", text).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    Plan::new(&templates[0], seed)
}

const CLUSTER: &str = "systems:
  broker: { kind: jetstream, replicas: 3 }
  pub: { publishes_to: broker, rate: 70% of max }
  sub: { subscribes_to: broker-2 }
";

fn cluster(rest: &str) -> String {
    format!("{CLUSTER}{rest}\n")
}

#[test]
fn instances_have_names_addresses_and_peers() {
    let plan = plan(CLUSTER);
    let machines: Vec<_> =
        plan.machines.iter().map(|machine| format!("{} {}", machine.name, machine.address)).collect();
    assert_eq!(
        machines,
        ["broker-1 10.77.0.1", "broker-2 10.77.0.2", "broker-3 10.77.0.3", "pub 10.77.0.4", "sub 10.77.0.5"]
    );
    let second = &plan.instances[1];
    assert_eq!((second.door.as_str(), second.number), ("broker-2:4222", 2));
    assert_eq!(second.peers, ["broker-1:6222", "broker-3:6222"]);
    assert_eq!(plan.clients[0].doors, ["broker-1:4222", "broker-2:4222", "broker-3:4222"]);
    assert_eq!(plan.clients[1].doors, ["broker-2:4222"]);
    assert!(plan.needs_maximum);
    assert_eq!(plan.longest(), Time::from_secs(20 + 60 + 60 + 30));
    let alone = self::plan("systems: { kafka-1: { kind: kafka }, p: { publishes_to: kafka-1, qos: 1 } }");
    assert_eq!(
        (alone.instances[0].name.as_str(), alone.clients[0].entry.acks, alone.clients[0].entry.qos),
        ("kafka-1", Some(template::Acks::All), None)
    );
}

#[test]
fn processes_share_loopback_by_ports() {
    let plan = plan(
        "{ base: { runtime: processes }, systems: { b: { kind: jetstream, replicas: 2 }, m: { kind: mosquitto }, p: { publishes_to: b } } }",
    );
    let doors: Vec<_> = plan.instances.iter().map(|instance| instance.door.as_str()).collect();
    assert_eq!(doors, ["127.0.0.1:21000", "127.0.0.1:21010", "127.0.0.1:21020"]);
    assert_eq!(plan.instances[0].peers, ["127.0.0.1:21011"]);
}

#[test]
fn the_same_seed_gives_an_equal_plan() {
    let text = cluster(
        "actions:
  - { name: a, fault: kill, target: any, start: 'random(20, 40)', duration: 1, every: 2s, times: 5 }
  - { name: b, fault: pause, target: majority, start: after a, duration: 1 }",
    );
    let of = |seed| try_plan(&text, Some(seed)).unwrap();
    assert_eq!(of(5).json(), of(5).json());
    assert_ne!(of(5).json(), of(6).json());
    let starts: std::collections::BTreeSet<_> = (0..20).map(|seed| of(seed).actions[0].at).collect();
    assert!(starts.len() > 15, "{starts:?}");
    assert!(starts.iter().all(|&at| (Time::from_secs(20)..=Time::from_secs(40)).contains(&at)));
    let plan = of(5);
    assert_eq!(serde_json::from_str::<Plan>(&plan.json()).unwrap(), plan);
    let hit: std::collections::BTreeSet<_> =
        plan.actions.iter().map(|action| action.targets.selections()[0].members.clone().unwrap()).collect();
    assert!(hit.len() > 1, "each repetition draws anew: {hit:?}");
}

#[test]
fn actions_are_in_order_with_their_undos() {
    let plan = plan(&cluster(
        "actions:
  - { name: late, fault: kill, target: broker-1, start: after early + 5s, duration: 2 }
  - { name: early, fault: net.delay, from: \"role:leader\", to: \"role:follower\", delay: 10ms, start: 20, duration: 10 }
  - { name: gone, fault: kill, target: broker-3, start: 50 }",
    ));
    let lines: Vec<_> =
        plan.actions.iter().map(|action| format!("{} {}: {}", action.at, action.name, action.change)).collect();
    assert_eq!(
        lines,
        [
            "20 s early: delay frames from role:leader (when it begins) to role:follower (when it begins) by 10 ms",
            "35 s late: send SIGKILL to all processes of broker-1",
            "50 s gone: send SIGKILL to all processes of broker-3",
        ]
    );
    assert_eq!(plan.actions[1].after, Some(("early".to_owned(), Time::from_secs(5))));
    assert_eq!(plan.actions[1].undo.as_deref(), Some("start broker-1 again and wait until it is ready"));
    assert_eq!(plan.actions[2].undo, None, "it stays away");
    let phases: Vec<_> =
        plan.phases.iter().map(|phase| format!("{} {} {}", phase.phase, phase.from, phase.to)).collect();
    assert_eq!(
        phases[..4],
        ["whole run 0 s 60 s", "before 0 s 20 s", "during late 35 s 37 s", "during early 20 s 30 s"]
    );
}

const PAIR: &str = "systems:
  broker: { kind: tenbin, mode: pair }
  witness: { kind: etcd }
  pub: { publishes_to: broker, qos: 1 }
";

#[test]
fn a_pair_has_two_nodes_after_its_witness() {
    let pair = plan(PAIR);
    let instances: Vec<_> = pair.instances.iter().map(|one| (one.name.as_str(), one.peer.as_deref())).collect();
    assert_eq!(
        instances,
        [("witness", Some("witness:2380")), ("broker-1", Some("broker-1:7883")), ("broker-2", Some("broker-2:7883"))]
    );
    assert_eq!(pair.clients[0].doors, ["broker-1:1883", "broker-2:1883"]);
    assert!(pair.needs.contains(&Need::Program("etcd".to_owned())));
    let cluster = plan(&PAIR.replace("pair", "cluster").replace("etcd }", "etcd, replicas: 3 }"));
    let names: Vec<_> = cluster.instances.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["witness-1", "witness-2", "witness-3", "broker-1", "broker-2", "broker-3"]);
    let alone = plan("systems: { b: { kind: tenbin }, p: { publishes_to: b } }");
    assert_eq!((alone.instances[0].peer.as_deref(), alone.instances[0].mode), (None, None));
}

#[test]
fn failovers_have_faults_and_lengths_of_the_seed() {
    let text = format!(
        "{PAIR}actions: [ {{ target: 'role:leader', fault: failover, start: 10, duration: 'random(1, 5)', every: 10s, times: 30, wait_for: copies 2 }} ]\nmeasure: {{ time: 320 }}\n"
    );
    let of = |seed| try_plan(&text, Some(seed)).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let plan = of(7);
    assert_eq!(plan.json(), of(7).json());
    assert_ne!(plan.json(), of(8).json());
    for fault in ["kill", "pause", "net.partition"] {
        let count = plan.actions.iter().filter(|action| action.fault.name() == fault).count();
        assert!((3..20).contains(&count), "{count} of {fault}");
    }
    for action in &plan.actions {
        let is_cut = matches!(&action.targets, PlannedTargets::Links { from: Some(_), to: None, both: true });
        assert_eq!(action.fault == Fault::NetPartition, is_cut);
        let lasts = action.duration.unwrap();
        assert!((Time::from_secs(1)..=Time::from_secs(5)).contains(&lasts), "{lasts}");
        assert!(action.wait_for.is_some_and(|wait_for| wait_for.copies == 2));
    }
    assert_eq!(serde_json::from_str::<Plan>(&plan.json()).unwrap(), plan);
}

#[test]
fn links_have_directions() {
    let links = |action: &str| {
        let plan = plan(&cluster(&format!("actions: [ {{ {action}, start: 20, duration: 1 }} ]")));
        let role = |name: &str| Some(if name == "broker-2" { InstanceRole::Leader } else { InstanceRole::Follower });
        let links = plan.actions[0].targets.links(&plan.members, |selection| selection.resolve(&plan.members, role));
        links.iter().map(|(from, to)| format!("{from}>{to}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        links("fault: net.delay, delay: 1ms, from: \"role:leader\", to: \"role:follower\""),
        "broker-2>broker-1 broker-2>broker-3"
    );
    assert_eq!(links("fault: net.loss, loss: 1%, from: pub, to: broker-1, both: true"), "pub>broker-1 broker-1>pub");
    assert_eq!(
        links("fault: net.partition, partition: [[broker-1], [broker-2, sub]]"),
        "broker-1>broker-2 broker-1>sub broker-2>broker-1 sub>broker-1"
    );
    assert_eq!(links("fault: net.partition, target: sub").split(' ').count(), 8, "all links of one of five");
    assert_eq!(links("fault: net.partition, to: broker, from: broker").split(' ').count(), 6, "none to itself");
}

#[test]
fn impossible_plans_are_refused_with_their_place() {
    let on = |runtime: &str, action: &str| {
        format!(
            "base: {{ runtime: {runtime} }}\nsystems:\n  b: {{ kind: tenbin }}\n  n: {{ kind: nats }}\n  p: {{ publishes_to: b }}\nactions:\n  - {{ {action}, start: 20, duration: 5 }}\n"
        )
    };
    let cases: &[(String, &str)] = &[
        (
            on("processes", "fault: net.delay, delay: 1ms, target: b"),
            "t.yaml:7:5: runtime processes has no network to break, so net.delay is not supported; use runtime: namespaces",
        ),
        (on("docker", "fault: power_cut, target: b"), "t.yaml:7:5: runtime docker has no disk image"),
        (on("processes", "fault: disk.full, target: b"), "t.yaml:7:5: runtime processes has no filesystem"),
        (on("namespaces", "fault: clock.skew, by: 1s, target: n"), "t.yaml:7:5: nats-server is linked statically"),
        (on("namespaces", "fault: kill, target: c"), "t.yaml:7:5: unknown target \"c\"; did you mean \"b\"?"),
        (
            on("namespaces", "fault: kill, target: random(3)"),
            "t.yaml:7:5: random(3) of 2 instances; give at most random(2)",
        ),
        (on("namespaces", "fault: kill, target: node:x"), "t.yaml:7:5: unknown node \"x\""),
        (on("namespaces", "fault: kill, target: role:leader"), "t.yaml:7:5: role:leader: no system here has a leader"),
        (on("namespaces", "fault: disk.full, target: publishers"), "t.yaml:7:5: disk.full acts on instances, and not on client p; name an instance"),
        (
            cluster("actions: [ { fault: kill, target: broker, start: 58, duration: 5 } ]"),
            "t.yaml:5:50: action \"kill\" ends at 63 s, and the measurement at 60 s",
        ),
        (
            cluster("actions: [ { fault: kill, target: broker, start: 'random(5, 58)', duration: 5 } ]"),
            "t.yaml:5:50: action \"kill\" ends at 63 s",
        ),
        (
            cluster(
                "actions: [ { name: a, fault: kill, target: broker, start: after b }, { name: b, fault: kill, target: broker, start: after a } ]",
            ),
            "t.yaml:5:59: action \"a\" waits for itself",
        ),
        (
            cluster(
                "actions: [ { name: a, fault: pause, target: broker, start: 5 }, { name: b, fault: kill, target: broker, start: after a } ]",
            ),
            "action \"a\" lasts to the end of the measurement; give a a duration",
        ),
        (
            "systems:\n  b: { kind: nats }\n  p: { publishes_to: bb }\n".to_owned(),
            "t.yaml:3:22: unknown system \"bb\"; did you mean \"b\"?",
        ),
        (
            "systems:\n  b: { command: x }\n  p: { publishes_to: b }\n".to_owned(),
            "t.yaml:3:3: p speaks to b, whose protocol is unknown",
        ),
        ("systems:\n  b: { kind: tenbin }\n".to_owned(), "t.yaml:2:3: no client publishes; add one"),
        (
            "systems:\n  b: { kind: tenbin }\n  s: { subscribes_to: b }\n".to_owned(),
            "t.yaml:3:3: no client publishes; add one",
        ),
        (
            "systems:\n  b: { kind: tenbin }\n  p: { publishes_to: b }\n  q: { publishes_to: b }\n".to_owned(),
            "t.yaml:4:3: publishes_to: p and q both publish, and this version runs one entry of publishers; make one",
        ),
        (
            "systems:\n  b: { kind: tenbin }\n  c: { kind: mosquitto }\n  p: { publishes_to: b }\n  s: { subscribes_to: c }\n"
                .to_owned(),
            "t.yaml:5:23: s and p are clients of different systems; let all clients",
        ),
        (
            "base: { runtime: processes }\nsystems:\n  b: { kind: rabbitmq, replicas: 3 }\n  p: { publishes_to: b }\n".to_owned(),
            "t.yaml:3:3: b: each node of RabbitMQ needs an address, and runtime processes has only one; use runtime: namespaces",
        ),
        (
            PAIR.replace("  witness: { kind: etcd }\n", ""),
            "t.yaml:2:3: broker is a pair or cluster without etcd; add \"witness: { kind: etcd }\" to systems",
        ),
        (
            cluster("actions: [ { fault: kill, target: broker, start: 20, wait_for: copies 2 } ]"),
            "t.yaml:5:12: action \"kill\": no system here tells its number of copies",
        ),
        (
            format!("{PAIR}actions: [ {{ fault: clock.skew, by: 1s, target: 'site:leader', start: 20, duration: 1 }} ]\n"),
            "t.yaml:5:12: etcd is linked statically",
        ),
        (
            "systems:\n  b: { kind: tenbin }\n  p: { publishes_to: b, begins_at: leader }\n".to_owned(),
            "t.yaml:3:3: p begins at a role, and b has no such instances for clients of MQTT; remove begins_at",
        ),
        (on("namespaces", "fault: kill, target: p"), "t.yaml:7:5: kill of client p would end its ledger; pause it instead"),
        (on("namespaces", "fault: stop, target: publishers"), "t.yaml:7:5: stop of client p would end its ledger"),
        (
            "systems: { b: { kind: mqtt, image: x } }\n".to_owned(),
            "t.yaml:1:12: b has an image, but runtime namespaces starts no images; use runtime: docker",
        ),
        (
            "{ base: { runtime: docker }, systems: { b: { image: x, disk: { size: 1MiB } } } }\n".to_owned(),
            "t.yaml:1:41: b is a container: containers have no disk of the lab",
        ),
        (
            "base: { runtime: docker }\nsystems: { b: { image: x } }\nactions: [ { fault: disk.full, target: b, start: 30 } ]\n"
                .to_owned(),
            "t.yaml:3:12: b is a container, which has no filesystem",
        ),
        (
            "{ base: { runtime: ssh, nodes: { n: 192.0.2.1 } }, systems: { b: { image: x, node_name: n } } }\n".to_owned(),
            "t.yaml:1:63: b has an image, but runtime ssh starts no images; use runtime: docker",
        ),
        (
            "{ base: { runtime: ssh, nodes: { n: 192.0.2.1 } }, systems: { b: { kind: nats } } }\n".to_owned(),
            "t.yaml:1:63: b is on no node, but runtime ssh needs one",
        ),
        (
            "systems:\n  b: { kind: mqtt, external: 'h:1' }\nactions: [ { fault: kill, target: b, start: 30 } ]\n"
                .to_owned(),
            "t.yaml:3:12: b runs outside of the lab",
        ),
    ];
    for (text, wanted) in cases {
        let mistakes = try_plan(text, None).map(|plan| plan.json()).unwrap_err().to_string();
        assert!(mistakes.contains(wanted), "wanted {wanted}\nfound  {mistakes}\nin\n{text}");
    }
}

#[test]
fn needs_follow_from_runtime_systems_and_faults() {
    let needs = |text: &str| plan(text).needs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    assert_eq!(
        needs(
            "{ systems: { b: { kind: mosquitto }, p: { publishes_to: b } }, actions: [ { fault: clock.skew, by: 1s, target: b, start: 30, duration: 1 } ] }"
        ),
        "user namespaces, the program ip, the program mosquitto, the program unshare, libfaketime"
    );
    assert_eq!(needs("{ base: { runtime: processes }, systems: { b: { kind: tenbin }, p: { publishes_to: b } } }"), "");
    let cut = plan(
        "{ systems: { b: { kind: tenbin }, p: { publishes_to: b } }, actions: [ { fault: power_cut, target: b, start: 30, duration: 1 } ] }",
    );
    assert!(cut.needs.contains(&Need::Root));
    assert!(cut.instances[0].disk.is_some_and(|disk| disk.is_image));
}

#[test]
fn every_file_of_the_directory_is_ready() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../verifications");
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let mut ready = library::ALL.map(|ready| ready.name.to_owned());
    ready.sort();
    assert_eq!(names, ready);
}

#[test]
fn kill_qos1_fits_into_a_minute() {
    let ready = library::find("kill-qos1").unwrap();
    let plans: Vec<_> = Template::read("kill-qos1", ready.text)
        .unwrap()
        .iter()
        .filter(|template| template.systems.iter().all(|system| system.mode.is_none() && system.kind != Kind::Etcd))
        .map(|template| Plan::new(template, None).unwrap())
        .collect();
    let longest = plans.iter().fold(Time::ZERO, |sum, plan| sum.plus(plan.longest()));
    assert!(longest <= Time::from_secs(45), "{longest}, without the starts of brokers");
    let variants: Vec<_> = plans.iter().map(|plan| (plan.variant.as_str(), plan.expect)).collect();
    assert_eq!(variants, [("tenbin", Expect::Pass), ("mosquitto", Expect::Fail)]);
}
