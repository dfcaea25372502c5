//! Templates as users write them, and each kind of mistake.

use super::*;
use crate::kind::Kind;
use crate::units::{Rate, Size};

fn read(text: &str) -> Vec<Template> {
    Template::read("test.yaml", text).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

#[test]
fn the_documents_example_is_read_as_written() {
    let text = "
base:
  user: verify
  nodes: { node-1: 192.0.2.11, node-2: 192.0.2.12 }
systems:
  kafka-1:     { kind: kafka, node_name: node-1, environment: { KAFKA_HEAP_OPTS: -Xmx512m, VERSION: 3.10, LOG: yes } }
  kafka-pub-1: { publishes_to: kafka-1, node_name: node-2, size: 1KiB, rate: 1000 }
  kafka-sub-1: { subscribes_to: kafka-1, node_name: node-2 }
actions: [ { target: kafka-1, fault: pause, start: 40, duration: 20 } ]
measure: { time: 90 }
";
    let [template] = <[Template; 1]>::try_from(read(text)).unwrap();
    assert_eq!((template.name.as_str(), template.variant.as_str()), ("test", "default"));
    assert_eq!(template.base.user.as_deref(), Some("verify"));
    assert_eq!(template.base.nodes.len(), 2);
    let kafka = &template.systems[0];
    assert_eq!((kafka.kind, kafka.replicas, kafka.placing.node.as_deref()), (Kind::Kafka, 1, Some("node-1")));
    let environment: Vec<_> = kafka.placing.environment.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(environment, ["KAFKA_HEAP_OPTS=-Xmx512m", "VERSION=3.10", "LOG=yes"], "values keep their spelling");
    let publisher = &template.clients[0];
    assert_eq!(
        (publisher.role, publisher.size, publisher.rate),
        (Role::Publisher, Size::new(1024), Rate::Messages(1000.0))
    );
    let action = &template.actions[0];
    assert_eq!((action.name.as_str(), &action.fault), ("pause", &Fault::Pause));
    assert_eq!((action.start.clone(), action.duration), (Start::At(Time::from_secs(40)), Some(Time::from_secs(20))));
    assert_eq!(template.measure.before, Time::from_secs(20));
}

#[test]
fn variants_change_single_keys() {
    let text = "
systems:
  broker: { kind: kafka, replicas: 3, config: { a: 1, b: 2 } }
  pub: { publishes_to: broker, acks: 1, group: g }
actions: [ { fault: kill, target: broker-2, start: 5, duration: 1 } ]
assert: [ lost = 0 ]
variants:
  plain: {}
  all: { systems: { pub: { acks: all, group: ~ }, broker: { config: { b: 3 } } }, expect: fail }
";
    let [plain, all] = <[Template; 2]>::try_from(read(text)).unwrap();
    assert_eq!(
        (plain.variant.as_str(), plain.expect, plain.clients[0].acks),
        ("plain", Expect::Pass, Some(Acks::Leader))
    );
    assert_eq!((all.variant.as_str(), all.expect, all.clients[0].acks), ("all", Expect::Fail, Some(Acks::All)));
    assert_eq!((plain.clients[0].group.as_deref(), all.clients[0].group.as_deref()), (Some("g"), None));
    let config = [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "3".to_owned())];
    assert_eq!((all.systems[0].replicas, all.systems[0].config.as_slice()), (3, config.as_slice()));
}

#[test]
fn a_sweep_runs_a_variant_for_each_value() {
    let text = "
systems: { broker: { kind: nats }, pub: { publishes_to: broker } }
actions: [ { name: slow, fault: net.delay, from: pub, delay: 1ms, start: 30, duration: 5 } ]
sweep: { systems.pub.size: [100, 1KiB], actions.slow.delay: [1ms, 5ms] }
variants: { a: {}, b: { systems: { broker: { kind: jetstream } } } }
";
    let templates = read(text);
    let names: Vec<_> = templates.iter().map(|template| template.variant.as_str()).collect();
    assert_eq!(names.len(), 8);
    assert_eq!(names[..3], ["a-size-100-delay-1ms", "a-size-100-delay-5ms", "a-size-1KiB-delay-1ms"]);
    assert_eq!(templates[7].clients[0].size, Size::new(1024));
    let delay = Time::from_ns(5_000_000);
    assert_eq!(templates[7].actions[0].fault, Fault::NetDelay { delay, jitter: Time::ZERO });
    let alone = read("{ systems: { b: { kind: nats }, p: { publishes_to: b } }, sweep: { systems.p.size: [20, 30] } }");
    assert_eq!(alone.iter().map(|template| template.variant.as_str()).collect::<Vec<_>>(), ["size-20", "size-30"]);
}

#[test]
fn every_fault_can_be_written() {
    for name in FAULTS {
        assert_eq!(example(name).map(|fault| fault.name()), Some(name));
    }
    for (text, fault) in [
        ("fault: restart, target: broker", Fault::Restart { grace: Time::from_secs(10) }),
        ("fault: stop, grace: 2s, target: broker", Fault::Stop { grace: Time::from_secs(2) }),
        (
            "fault: command, target: broker, command: rm x, undo: touch x",
            Fault::Command { command: "rm x".to_owned(), undo: Some("touch x".to_owned()) },
        ),
        ("fault: disk.full, target: broker, leave: 1MiB", Fault::DiskFull { leave: Size::new(1 << 20) }),
        ("fault: clock.skew, target: broker, by: -1h", {
            Fault::ClockSkew { by: "-1h".parse().unwrap(), drift_ppm: 0.0 }
        }),
        ("fault: clock.skew, target: broker, drift: 100ppm", {
            Fault::ClockSkew { by: "0".parse().unwrap(), drift_ppm: 100.0 }
        }),
    ] {
        let templates = read(&with_action(text));
        assert_eq!(templates[0].actions[0].fault, fault, "{text}");
    }
}

#[test]
fn starts_are_times_draws_or_ends_of_others() {
    for (text, start) in [
        ("40", Start::At(Time::from_secs(40))),
        ("1m", Start::At(Time::from_secs(60))),
        ("random(40, 60)", Start::Random(Time::from_secs(40), Time::from_secs(60))),
        ("after kill", Start::After("kill".to_owned(), Time::ZERO)),
        ("after kill + 5s", Start::After("kill".to_owned(), Time::from_secs(5))),
    ] {
        assert_eq!(text.parse(), Ok(start), "{text}");
    }
    for text in ["", "soon", "random(60, 40)", "random(4)", "after", "after a b", "-1"] {
        assert!(text.parse::<Start>().is_err(), "{text}");
    }
}

fn with_action(action: &str) -> String {
    let start = if action.contains("start:") { "" } else { ", start: 20" };
    let duration = if action.contains("duration:") { "" } else { ", duration: 5" };
    format!("{SYSTEMS}actions:\n  - {{ {action}{start}{duration} }}\n")
}

const SYSTEMS: &str = "systems:\n  broker: { kind: tenbin }\n  pub: { publishes_to: broker }\n";

/// A file with one mistake: its place, a part of the message, and of the correction.
#[test]
fn each_kind_of_mistake_has_place_and_correction() {
    let top = |text: &str| format!("{SYSTEMS}{text}\n");
    let broker = |text: &str| format!("systems:\n  broker: {{ {text} }}\n");
    let client =
        |text: &str| format!("systems:\n  broker: {{ kind: tenbin }}\n  pub: {{ publishes_to: broker, {text} }}\n");
    let action = with_action;
    let cases: &[(String, (u32, u32), &str, &str)] = &[
        // The form of the file.
        ("a: [1,\n".to_owned(), (1, 4), "unclosed bracket", ""),
        ("a: 1\na: 2\n".to_owned(), (2, 1), "duplicate mapping key", ""),
        ("- 1\n".to_owned(), (1, 1), "the file is a list", "want a map"),
        ("base: {}\n".to_owned(), (1, 1), "the file lacks systems", "add \"systems:\""),
        (top("assertions: [ lost = 0 ]"), (4, 1), "unknown key \"assertions\"", "did you mean \"actions\"?"),
        (top("asert: [ lost = 0 ]"), (4, 1), "unknown key \"asert\"", "did you mean \"assert\"?"),
        (top("expect: fial"), (4, 9), "unknown expect \"fial\"", "did you mean \"fail\"?"),
        (top("expect: fail"), (4, 9), "expect: fail without assertions", "lost = 0"),
        // base
        (top("base: { runtime: nampespaces }"), (4, 18), "unknown runtime", "did you mean \"namespaces\"?"),
        (top("base: { sead: 1 }"), (4, 9), "unknown key of base, \"sead\"", "did you mean \"seed\"?"),
        (top("base: { seed: x }"), (4, 15), "base.seed", "a whole number"),
        (top("base: { nodes: [ a ] }"), (4, 16), "base.nodes is a list", "192.0.2.11"),
        (top("base: { nodes: { a: localhost } }"), (4, 21), "no address", "192.0.2.11"),
        (top("base: { runtime: ssh }"), (4, 7), "runtime ssh needs nodes", "nodes:"),
        (top("base: { sudo: maybe }"), (4, 15), "neither true nor false", "give one of them"),
        (top("base: 5"), (4, 7), "base is a single value", "want a map"),
        // systems
        (broker("kind: kafak"), (2, 19), "unknown kind \"kafak\"", "did you mean \"kafka\"?"),
        (broker("kind: tenbin, replica: 3"), (2, 27), "\"replica\"", "did you mean \"replicas\"?"),
        (broker("replicas: 1"), (2, 3), "neither a system nor a client", "add kind"),
        (broker("kind: mqtt"), (2, 3), "no built-in program", "command:"),
        (broker("command: x, image: y"), (2, 3), "started in several ways", "keep one"),
        (broker("kind: tenbin, replicas: 3"), (2, 3), "3 replicas of tenbin", "replace replicas by \"mode: pair\""),
        (broker("kind: tenbin, mode: pair, replicas: 3"), (2, 3), "3 replicas in a mode of 2 nodes", "remove replicas"),
        (broker("kind: tenbin, mode: cluster, replicas: 2"), (2, 3), "a mode of 3 to 9 nodes", "remove replicas"),
        (broker("kind: kafka, mode: pair"), (2, 3), "kafka has no mode", "remove mode"),
        (broker("kind: mosquitto, replicas: 2"), (2, 3), "2 replicas", "remove replicas"),
        (broker("kind: kafka, replicas: 0"), (2, 36), "out of range", "from 1 to 50"),
        (broker("kind: mqtt, external: 'h:1', replicas: 2"), (2, 3), "2 replicas", "separately"),
        (broker("kind: tenbin, environment: [ A ]"), (2, 40), "environment is a list", "want a map"),
        (broker("kind: tenbin, topic: { partition: 1 }"), (2, 36), "\"partition\"", "did you mean \"partitions\"?"),
        (broker("command: x, ready: { port: web }"), (2, 40), "no port", "from 1 to 65535"),
        (
            "systems: { p: { publishes_to: b } }\n".to_owned(),
            (1, 10),
            "no system to verify",
            "broker: { kind: tenbin }",
        ),
        (broker("kind: tenbin, mode: par"), (2, 33), "unknown mode \"par\"", "did you mean \"pair\"?"),
        (broker("kind: tenbin, brain: pair"), (2, 27), "unknown key of systems.broker, \"brain\"", "known are kind"),
        (broker("kind: tenbin, node_name: n1"), (2, 38), "unknown node \"n1\"", "the file has no node"),
        (broker("kind: tenbin, cpus: [a]"), (2, 34), "no number of a processor", "[0]"),
        (broker("kind: tenbin, disk: { size: 1 MB/s }"), (2, 41), "no size", "64KiB"),
        (broker("kind: tenbin, disk: {}"), (2, 33), "lacks size", "size:"),
        (broker("kind: mqtt, external: here"), (2, 35), "no address", "HOST:PORT"),
        (broker("command: x, ready: {}"), (2, 32), "ready has one condition", "port, line and command"),
        (broker("kind: [ tenbin ]"), (2, 19), "is a list", "single value"),
        ("systems:\n  Broker: { kind: tenbin }\n".to_owned(), (2, 3), "no name of a system", "lower-case"),
        ("systems:\n  any: { kind: tenbin }\n".to_owned(), (2, 3), "meaning as a target", "another name"),
        ("systems: [ broker ]\n".to_owned(), (1, 10), "systems is a list", "want names"),
        (client("service: 5ms"), (3, 32), "unknown key of systems.pub, \"service\"", "known are"),
        (client("sise: 1KiB"), (3, 32), "\"sise\"", "did you mean \"size\"?"),
        (client("size: 1Kb"), (3, 38), "no size", "64KiB"),
        (client("size: 8"), (3, 38), "too small", "20 bytes"),
        (client("rate: 70%"), (3, 38), "no rate", "70% of max"),
        (client("qos: 3"), (3, 37), "no QoS", "0, 1 or 2"),
        (client("acks: 2"), (3, 38), "no number of acknowledgements", "0, 1 or all"),
        (client("keep_alive: soon"), (3, 44), "no time", "10ms"),
        (client("subscribes_to: broker"), (3, 3), "both publishes and subscribes", "two entries"),
        (client("image: mine"), (3, 39), "starts no client by an image", "command:"),
        (client("slow: max"), (3, 38), "slow subscriber", "messages a second"),
        (
            "systems:\n  broker: { kind: tenbin }\n  s: { subscribes_to: broker, rate: 5 }\n".to_owned(),
            (3, 37),
            "a subscriber has no rate",
            "publisher",
        ),
        // actions
        (top("actions: { fault: kill }"), (4, 10), "actions is a map", "want a list"),
        (action("target: broker"), (5, 5), "lacks fault", "fault:"),
        (action("fault: kil, target: broker"), (5, 14), "unknown fault \"kil\"", "did you mean \"kill\"?"),
        (action("fault: net.dealy, target: broker"), (5, 14), "unknown fault", "did you mean \"net.delay\"?"),
        (action("fault: kill"), (5, 5), "lacks target", "target:"),
        (action("fault: net.delay, target: broker"), (5, 5), "lacks delay", "delay:"),
        (action("fault: net.delay, delay: 10ms"), (5, 5), "no link to act on", "from:"),
        (action("fault: net.delay, delay: 10 ms ago, target: broker"), (5, 32), "no time", "10ms"),
        (action("fault: net.loss, loss: 5, target: broker"), (5, 30), "no share", "1%"),
        (action("fault: net.rate, rate: 10, target: broker"), (5, 30), "no rate of a link", "10Mbit/s"),
        (
            action("fault: kill, target: broker, delay: 1s"),
            (5, 36),
            "unknown key of actions[1], \"delay\"",
            "known are",
        ),
        (action("fault: net.partition, from: broker, both: perhaps"), (5, 49), "neither true nor false", "give one"),
        (action("fault: kill, target: random(0)"), (5, 28), "draws no instances", "random(1) or more"),
        (
            action("fault: kill, target: broker, durration: 3, duration: 1"),
            (5, 36),
            "unknown key",
            "did you mean \"duration\"?",
        ),
        (action("fault: kill, target: broker, start: noon"), (5, 43), "no start", "random(40, 60)"),
        (
            action("fault: kill, target: broker, start: after kilt"),
            (5, 43),
            "unknown action \"kilt\"",
            "did you mean \"kill\"?",
        ),
        (
            action("fault: kill, target: broker, start: random(40, 60)"),
            (5, 43),
            "ends at a comma",
            "\"random(40, 60)\"",
        ),
        (action("fault: kill, target: role:leder"), (5, 28), "unknown role", "did you mean \"leader\"?"),
        (action("fault: kill, target: !broker"), (5, 35), "!broker is a tag of YAML", "\"!broker\""),
        (action("fault: kill, target: \"!broker\""), (5, 28), "only excludes", "broker, !broker"),
        (action("fault: net.partition, partition: [[broker]]"), (5, 40), "at least two sides", "[[broker-1]"),
        (action("fault: net.partition, partition: broker"), (5, 40), "partition is a single value", "[[broker-1]"),
        (action("fault: net.partition, target: broker, from: pub"), (5, 5), "several kinds of targets", "keep either"),
        (action("fault: kill, target: broker, times: 3"), (5, 43), "times without every", "every:"),
        (action("fault: kill, target: broker, every: 5s"), (5, 5), "lasts 5 s and comes every 5 s", "below 5 s"),
        (action("fault: kill, target: broker, every: 0, times: 2"), (5, 43), "no time between", "10s"),
        (
            top("actions: [ { fault: pause, target: broker, start: 5, every: 5s } ]"),
            (4, 12),
            "repeated and never ends",
            "duration: 2s",
        ),
        (action("fault: clock.skew, target: broker"), (5, 5), "lacks by", "by:"),
        (action("fault: clock.skew, target: broker, drift: 5"), (5, 49), "no drift", "100ppm"),
        (action("fault: kill, target: broker, name: a+b"), (5, 42), "no name", "letters"),
        (
            format!(
                "{}  - {{ name: kill, target: broker, fault: kill, start: 30 }}\n",
                action("fault: kill, target: broker")
            ),
            (6, 5),
            "two actions are named \"kill\"",
            "another name",
        ),
        // measure, assert, variants, sweep
        (top("measure: { tiem: 60 }"), (4, 12), "\"tiem\"", "did you mean \"time\"?"),
        (top("measure: { warm_up: stedy }"), (4, 21), "no warm-up", "steady"),
        (top("measure: { time: 0 }"), (4, 18), "too short", "more than 0"),
        (top("measure: { repeat: many }"), (4, 20), "out of range", "from 1 to 100"),
        (
            format!("{}measure: {{ before: 30 }}\n", action("fault: kill, target: broker")),
            (6, 20),
            "before is 30 s",
            "at most 20 s",
        ),
        (top("assert: [ lots = 0 ]"), (4, 11), "unknown figure \"lots\"", "did you mean \"lost\"?"),
        (top("assert: lost"), (4, 9), "no assertion", "write FIGURE"),
        (top("assert: [ p99 < 50 ]"), (4, 11), "no unit", "us, ms or s"),
        (top("assert: [ lost during kill = 0 ]"), (4, 11), "unknown action \"kill\"", "the file has no action"),
        (top("assert: [ lost before = 0 ]"), (4, 11), "no phase \"before\"", "whole run"),
        (
            format!("{}assert: [ lost during kil = 0 ]\n", action("fault: kill, target: broker")),
            (6, 11),
            "unknown action \"kil\"",
            "did you mean \"kill\"?",
        ),
        (action("fault: kill, target: broker, wait_for: peers 2"), (5, 46), "no condition", "copies 2"),
        (action("fault: kill, target: broker, duration: 'random(5, 1)'"), (5, 46), "no duration", "random(1, 5)"),
        (top("variants: [ a ]"), (4, 11), "variants is a list", "want names"),
        (top("variants: { a b: {} }"), (4, 13), "no name of a variant", "letters"),
        (top("variants: { a: 5 }"), (4, 16), "is a single value", "expect: fail"),
        (top("variants: { a: { sweep: { x: [1] } } }"), (4, 25), "a contains sweep", "top of the file"),
        (top("variants: { a: { systems: { pub: { sise: 1 } } } }"), (4, 36), "\"sise\"", "\"size\""),
        (top("sweep: [ size ]"), (4, 8), "sweep is a list", "want a path and values"),
        (top("sweep: { systems.pup.size: [1KiB] }"), (4, 10), "leads nowhere", "systems.pub.size"),
        (top("sweep: { systems.pub.size: 1KiB }"), (4, 28), "is a single value", "list of values"),
        (top("sweep: { systems.pub.sise: [1KiB] }"), (4, 29), "unknown key", "did you mean \"size\"?"),
    ];
    let mut wrong = Vec::new();
    for (text, (line, column), message, correction) in cases {
        match Template::read("t.yaml", text) {
            Ok(_) => wrong.push(format!("no mistake in\n{text}")),
            Err(mistakes) => {
                let shown = mistakes.to_string();
                let place = format!("t.yaml:{line}:{column}: ");
                let is_found = shown
                    .lines()
                    .any(|line| line.starts_with(&place) && line.contains(message) && line.contains(correction));
                // The YAML parser names mistakes without corrections.
                let lacks_correction =
                    !correction.is_empty() && mistakes.all().iter().any(|mistake| mistake.correction.is_none());
                if !is_found || lacks_correction || mistakes.all().len() > 2 {
                    wrong.push(format!("wanted {place}{message}; {correction}\nfound  {shown}\nin\n{text}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n---\n"));
}

#[test]
fn all_mistakes_are_reported_in_order() {
    let text = "systems:\n  broker: { kind: tenbim }\n  pub: { publishes_to: broker, sise: 1 }\nasert: []\n";
    let mistakes = Template::read("t.yaml", text).unwrap_err();
    let places: Vec<_> = mistakes.all().iter().map(|mistake| (mistake.place.line, mistake.place.column)).collect();
    assert_eq!(places, [(2, 19), (3, 32), (4, 1)]);
}
