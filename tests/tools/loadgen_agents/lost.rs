use std::io::Read;
use std::process::Child;
use std::time::{Duration, Instant};

use tenbin_codec::QoS;

use crate::loadgen_agents::agent::{Agent, failure, run, run_by, summary};
use crate::support::{BrokerProcess, PATIENCE, RawClient};

/// Starts a long run and waits until messages of both agents arrive.
fn start_long_run(broker: &BrokerProcess, agents: [&Agent; 2]) -> Child {
    let mut command = run_by(&agents, broker);
    command.args(["--publishers", "2", "--subscribers", "2", "--interval", "5ms", "--time", "60s"]);
    command.args(["--topic", "long/{publisher}", "--filter", "long/+"]);
    let mut publishers = ["long/0", "long/1"].map(|topic| {
        let mut listener = broker.v5("");
        listener.subscribe(topic, QoS::AtMostOnce);
        listener
    });
    let child = command.spawn().expect("our own binary");
    publishers.iter_mut().for_each(|publisher| drop(publisher.receive_publish()));
    publishers.into_iter().for_each(RawClient::cut);
    child
}

/// Established connections of the broker (Linux only).
fn connections(broker: &BrokerProcess) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
    let local = format!(":{:04X}", broker.address().port());
    let is_one = |line: &&str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (at, _, state) = (words.next(), words.next(), words.next());
        at.is_some_and(|at| at.ends_with(&local)) && state == Some("01")
    };
    table.lines().filter(is_one).count()
}

fn short_run(broker: &BrokerProcess, agents: &[&Agent]) {
    let mut command = run_by(agents, broker);
    command.args(["--publishers", "3", "--subscribers", "3", "--messages", "50", "--interval", "1ms"]);
    let summary = summary(command);
    assert_eq!((&summary["verdict"]["received"], &summary["verdict"]["lost"]), (&450.into(), &0.into()), "{summary}");
}

#[test]
fn lost_agent_ends_the_run_and_the_other_agent_stays_usable() {
    let broker = BrokerProcess::start(&[]);
    let (stays, goes) = (Agent::start(&[]), Agent::start(&[]));
    let mut run = start_long_run(&broker, [&stays, &goes]);
    let lost = goes.address.clone();
    drop(goes);
    let status = run.wait().expect("our own child");
    let mut text = String::new();
    run.stderr.take().expect("piped").read_to_string(&mut text).expect("text");
    assert!(!status.success() && text.contains(&format!("tenbin-loadgen: agent {lost}: ")), "{text}");
    stays.lines().wait_for(&["the connection was closed"], PATIENCE);
    short_run(&broker, &[&stays]);
}

#[test]
fn lost_controller_ends_its_load_and_agents_stay_usable() {
    let broker = BrokerProcess::start(&[]);
    let agents = [Agent::start(&[]), Agent::start(&[])];
    let mut run = start_long_run(&broker, [&agents[0], &agents[1]]);
    run.kill().expect("our own child");
    run.wait().expect("our own child");
    let until = Instant::now() + PATIENCE;
    while connections(&broker) > 0 {
        assert!(Instant::now() < until, "the load goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    for _ in 0..2 {
        short_run(&broker, &[&agents[0], &agents[1]]);
    }
    for agent in &agents {
        assert_eq!(agent.lines().count(": done", 2, PATIENCE), 2, "{:?}", agent.lines().all());
    }
}

#[test]
fn agent_exits_on_sigterm() {
    let agent = Agent::start(&[]);
    agent.signal("TERM");
    assert_eq!(agent.lines().to_end(PATIENCE).len(), 1);
}

#[test]
fn agent_errors_are_reported_by_the_controller() {
    let broker = BrokerProcess::start(&[]);
    let agent = Agent::start(&["--token", "secret"]);
    let address = &agent.address;
    assert_eq!(
        failure(run_by(&[&agent], &broker)),
        format!("tenbin-loadgen: agent {address}: it wants a token (--token)")
    );
    let mut wrong = run_by(&[&agent], &broker);
    wrong.args(["--token", "public"]);
    assert_eq!(failure(wrong), format!("tenbin-loadgen: agent {address}: wrong token"));

    let mut absent = run("127.0.0.1:1");
    absent.args(["--token", "secret", "--agents", address]);
    let error = failure(absent);
    assert!(error.starts_with(&format!("tenbin-loadgen: agent {address}: cannot connect to 127.0.0.1:")), "{error}");

    let other = Agent::start(&["--token", "secret"]);
    let mut closed = run_by(&[&agent, &other], &broker);
    closed.args(["--token", "secret", "--closed"]);
    assert!(failure(closed).contains("--in-flight"));
}
