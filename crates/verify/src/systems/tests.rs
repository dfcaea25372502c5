//! Each driver against its real server. A test without the server's program prints that it is skipped.
#![allow(clippy::print_stdout, reason = "figures of real servers are worth a look")]

use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tenbin_loadgen::run::{
    Audience, Broker, Doors, Finished, OnLost, Pace, Plan, Publishers, RunningLoad, Schedule, Slow, Status,
};

#[cfg(feature = "nats")]
use tenbin_loadgen::drivers::ACK_WAIT;
use tenbin_loadgen::drivers::{ACKS, REPLICAS, TOPIC, all};

use super::started::Started;
use crate::kind::Kind;
use crate::leader::leader;

/// Tags of runs: messages and consumers of an earlier run on the same system are others.
static TAGS: AtomicU16 = AtomicU16::new(1);

/// One publisher at 5,000 messages a second, two subscribers, and a group of two.
fn plan(system: &Started, protocol: &str, messages: u64) -> Plan {
    let brokers = system.doors().into_iter().map(|(name, door)| {
        let (host, port) = door.rsplit_once(':').unwrap();
        Broker::new(name, host, port.parse().unwrap())
    });
    let publishers = Publishers {
        qos: 1,
        messages: Some(messages),
        payload: 64,
        in_flight: 1_000,
        pace: Pace::Open { interval: Duration::from_micros(200) },
        ..Publishers::new(1, format!("{TOPIC}/{{publisher}}"))
    };
    let each = Audience { qos: 1, ..Audience::new("each", 2, format!("{TOPIC}/+")) };
    let group = Audience { qos: 1, share: Some("group".into()), ..Audience::new("group", 2, format!("{TOPIC}/#")) };
    Plan {
        protocol: protocol.into(),
        doors: Doors::OneSystem,
        on_lost: OnLost::Reconnect { first: Duration::from_millis(50), most: Duration::from_millis(500) },
        schedule: Schedule {
            time_limit: Duration::from_secs(60),
            subscriber_timeout: Duration::from_secs(20),
            ..Schedule::default()
        },
        ..Plan::new(TAGS.fetch_add(1, Ordering::Relaxed), brokers.collect(), publishers, vec![each, group])
    }
}

fn with(plan: Plan, settings: &[(&str, &str)]) -> Plan {
    let settings = settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    Plan { settings, ..plan }
}

/// Runs `plan` to its end; `look` sees the progress every 10 ms.
async fn run(plan: &Plan, mut look: impl FnMut(&Status)) -> Finished {
    let mut load = RunningLoad::prepare(plan, &all(), Vec::new()).await.unwrap();
    load.start().await.unwrap();
    while let Some(status) = load.tick().await.unwrap() {
        look(status);
    }
    load.finish().await.unwrap()
}

/// Runs 10,000 messages, each to three receivers, and checks that each came once and in order.
async fn check_all_come_once(system: &Started, protocol: &str, settings: &[(&str, &str)]) {
    let finished = run(&with(plan(system, protocol, 10_000), settings), |_| {}).await;
    let ledger = finished.ledger.unwrap().whole();
    let latency = finished.outcome.latency.unwrap();
    println!("{protocol} {settings:?}: {ledger:?}, {latency:?}, late {} ms", finished.outcome.latest_send_ms);
    assert_eq!((ledger.published, ledger.acknowledged, ledger.expected), (10_000, 10_000, 30_000));
    assert_eq!((ledger.received, ledger.lost, ledger.duplicated), (30_000, 0, 0));
    // Members of a queue group get parts of the stream, each in order.
    assert_eq!(ledger.out_of_order, 0);
    assert_eq!((finished.outcome.connections.accepted, finished.outcome.unsent), (5, 0));
}

/// 2,500 messages of 4 KiB a second are no burden for the driver, even in a debug build.
async fn check_paper_rate(system: &Started, protocol: &str, settings: &[(&str, &str)]) {
    let mut plan = with(plan(system, protocol, 12_500), settings);
    plan.publishers.payload = 4_096;
    plan.publishers.pace = Pace::Open { interval: Duration::from_micros(400) };
    plan.audiences.truncate(1);
    plan.audiences[0].count = 1;
    let finished = run(&plan, |_| {}).await;
    let ledger = finished.ledger.unwrap().whole();
    let latency = finished.outcome.latency.unwrap();
    println!(
        "{protocol} 4 KiB {settings:?}: {latency:?}, late {} ms, {} CPU-s",
        finished.outcome.latest_send_ms, finished.outcome.own_cpu_seconds
    );
    assert_eq!((ledger.acknowledged, ledger.received, ledger.lost), (12_500, 12_500, 0));
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn nats_delivers_every_message_once() {
    let Some(system) = Started::try_start("nats", 1) else { return };
    check_all_come_once(&system, "nats", &[]).await;
    check_paper_rate(&system, "nats", &[]).await;
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn jetstream_delivers_every_message_once() {
    let Some(system) = Started::try_start("jetstream", 1) else { return };
    check_all_come_once(&system, "jetstream", &[]).await;
    check_paper_rate(&system, "jetstream", &[]).await;
    assert_eq!(leader(Kind::Jetstream, &system.doors()).await, Ok(Some("jetstream".to_owned())));
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn jetstream_replicates_over_three_nodes() {
    let Some(system) = Started::try_start("jetstream", 3) else { return };
    check_all_come_once(&system, "jetstream", &[(REPLICAS, "3")]).await;
    let leader = leader(Kind::Jetstream, &system.doors()).await.unwrap().unwrap();
    assert!(system.doors().iter().any(|(name, _)| *name == leader), "{leader}");
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn jetstream_loses_nothing_acknowledged_when_killed() {
    let Some(mut system) = Started::try_start("jetstream", 1) else { return };
    // The server sends unacknowledged messages again.
    let mut plan = with(plan(&system, "jetstream", 20_000), &[(ACK_WAIT, "2")]);
    plan.schedule.subscriber_timeout = Duration::from_secs(10);
    let mut was_killed = false;
    let finished = run(&plan, |status| {
        if !was_killed && status.received > 15_000 {
            was_killed = true;
            system.kill(0);
            system.restart(0);
        }
    })
    .await;
    let ledger = finished.ledger.unwrap().whole();
    println!("killed: {ledger:?}, {:?}", finished.outcome.connections);
    assert_eq!((ledger.published, ledger.lost), (20_000, 0));
    assert!(ledger.acknowledged > 10_000, "{ledger:?}");
    let connections = finished.outcome.connections;
    assert_eq!((connections.lost, connections.reconnected), (5, 5));
}

#[tokio::test]
async fn kafka_delivers_every_message_once() {
    let Some(system) = Started::try_start("kafka", 1) else { return };
    check_all_come_once(&system, "kafka", &[(ACKS, "1")]).await;
    check_all_come_once(&system, "kafka", &[(ACKS, "all")]).await;
    check_all_come_once(&system, "kafka", &[(ACKS, "0")]).await;
    check_paper_rate(&system, "kafka", &[(ACKS, "1")]).await;
    check_paper_rate(&system, "kafka", &[(ACKS, "all")]).await;
    let mut slow = plan(&system, "kafka", 3_000);
    slow.audiences.truncate(1);
    slow.audiences[0].slow = Some(Slow { members: 2, rate: 10.0, from: Duration::ZERO, until: None });
    slow.schedule.time_limit = Duration::from_secs(3);
    slow.schedule.subscriber_timeout = Duration::from_secs(1);
    // It ends within the run's patience, and not when it has read all that it was given at once.
    let ledger = run(&slow, |_| {}).await.ledger.unwrap().whole();
    assert!((20..200).contains(&ledger.received), "{ledger:?}");
    assert_eq!(leader(Kind::Kafka, &system.doors()).await, Ok(Some("kafka".to_owned())));
}

#[tokio::test]
async fn kafka_replicates_over_three_nodes() {
    let Some(system) = Started::try_start("kafka", 3) else { return };
    check_all_come_once(&system, "kafka", &[(ACKS, "all"), (REPLICAS, "3")]).await;
    let leader = leader(Kind::Kafka, &system.doors()).await.unwrap().unwrap();
    assert!(system.doors().iter().any(|(name, _)| *name == leader), "{leader}");
}

#[tokio::test]
async fn rabbitmq_delivers_every_message_over_mqtt() {
    let Some(system) = Started::try_start("rabbitmq", 1) else { return };
    let mut plan = plan(&system, Plan::MQTT, 10_000);
    // Its plug-in speaks MQTT 3.1.1, and has no share groups.
    plan.connection.version = tenbin_loadgen::run::Version::V311;
    plan.audiences.truncate(1);
    let finished = run(&plan, |_| {}).await;
    let ledger = finished.ledger.unwrap().whole();
    assert_eq!((ledger.acknowledged, ledger.received, ledger.lost), (10_000, 20_000, 0));
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn closed_loop_ends_with_its_messages() {
    let Some(system) = Started::try_start("nats", 1) else { return };
    let mut plan = plan(&system, "nats", 5_000);
    plan.publishers.pace = Pace::Closed { window: 100 };
    let ledger = run(&plan, |_| {}).await.ledger.unwrap().whole();
    assert_eq!((ledger.acknowledged, ledger.received, ledger.lost), (5_000, 15_000, 0));
}

#[tokio::test]
async fn plans_that_only_mqtt_can_run_are_refused() {
    let publishers = Publishers::new(1, "verify/0");
    let plan = |protocol: &str| Plan {
        protocol: protocol.into(),
        ..Plan::new(1, vec![Broker::new("b", "127.0.0.1", 1)], publishers.clone(), Vec::new())
    };
    let error = |plan: Plan| async move {
        RunningLoad::prepare(&plan, &all(), Vec::new()).await.map(|_| ()).unwrap_err().to_string()
    };
    let protocols: &[_] = if cfg!(feature = "nats") { &["nats", "jetstream", "kafka"] } else { &["kafka"] };
    for protocol in protocols {
        let retained = Plan { publishers: Publishers { retain: true, ..publishers.clone() }, ..plan(protocol) };
        assert!(error(retained).await.contains("no retained messages"));
        assert!(error(with(plan(protocol), &[("speed", "high")])).await.contains("no setting \"speed\""));
    }
    assert!(error(with(plan("kafka"), &[(ACKS, "2")])).await.contains("none of 0, 1 and all"));
    assert!(error(with(plan("kafka"), &[(REPLICAS, "0")])).await.contains("no number of at least 1"));
    let broad = Plan { audiences: vec![Audience::new("a", 1, "+/0")], ..plan("kafka") };
    assert!(error(broad).await.contains("needs a name as its first level"));
}
