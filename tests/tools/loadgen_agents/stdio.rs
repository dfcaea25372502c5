use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tenbin_loadgen::run::{
    AgentStream, Audience, Broker, Drivers, Finished, LedgerCounts, Pace, Plan, Publishers, RunningLoad,
};
use tokio::net::unix::pipe;

use crate::support::BrokerProcess;

/// An agent at pipes, as a lab or `ssh` starts it.
fn agent(name: &str, arguments: &[&str]) -> (Child, AgentStream) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    command.args(["loadgen", "agent", "--stdio"]).args(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("our own binary");
    let output = OwnedFd::from(child.stdout.take().expect("piped"));
    let input = OwnedFd::from(child.stdin.take().expect("piped"));
    let reader = pipe::Receiver::from_owned_fd(output).expect("a pipe");
    let writer = pipe::Sender::from_owned_fd(input).expect("a pipe");
    (child, AgentStream::new(name, reader, writer))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

#[test]
fn agents_at_pipes_run_a_plan_and_end_with_it() {
    let broker = BrokerProcess::start(&[]);
    let runtime = runtime();
    let _inside = runtime.enter();
    let (mut one, to_one) = agent("one", &[]);
    let (mut other, to_other) = agent("other", &["--clock-shift", "300ms"]);
    let pace = Pace::Open { interval: Duration::from_millis(4) };
    let publishers = Publishers { qos: 1, pace, messages: Some(250), ..Publishers::new(2, "t/{publisher}") };
    let audience = Audience { qos: 1, ..Audience::new("all", 2, "t/+") };
    let port = broker.address().port();
    let plan = Plan::new(77, vec![Broker::new("ours", "127.0.0.1", port)], publishers, vec![audience]);
    let Finished { outcome, ledger, .. } = runtime.block_on(async {
        let agents = vec![to_one, to_other];
        let mut load = RunningLoad::prepare(&plan, &Drivers::none(), agents).await.expect("agents serve");
        load.start().await.expect("agents start");
        while load.tick().await.expect("agents go on").is_some() {}
        load.finish().await.expect("agents hand over")
    });
    let counts = ledger.expect("payloads have a stamp").whole();
    let expected = LedgerCounts { published: 500, acknowledged: 500, expected: 1000, received: 1000, ..counts };
    assert_eq!((counts, counts.lost, counts.duplicated), (expected, 0, 0));
    let offset = outcome.notes.iter().find_map(|note| note.strip_prefix("clock of agent other: "));
    let ahead_ms = offset.and_then(|offset| offset.split_once(" ms ahead")?.0.parse::<f64>().ok());
    // Both clocks derive from readings of the system clock, in processes that a busy machine may suspend.
    assert!(ahead_ms.is_some_and(|ms| (250.0..350.0).contains(&ms)), "{:?}", outcome.notes);
    for agent in [&mut one, &mut other] {
        assert!(agent.wait().expect("it ends").success());
    }
}

#[test]
fn an_agent_at_pipes_that_is_killed_ends_the_run() {
    let broker = BrokerProcess::start(&[]);
    let runtime = runtime();
    let _inside = runtime.enter();
    let (mut one, to_one) = agent("lab-1", &[]);
    let pace = Pace::Open { interval: Duration::from_millis(4) };
    let publishers = Publishers { pace, ..Publishers::new(1, "t") };
    let brokers = vec![Broker::new("ours", "127.0.0.1", broker.address().port())];
    let plan = Plan::new(78, brokers, publishers, vec![Audience::new("all", 1, "t")]);
    let error = runtime.block_on(async {
        let mut load = RunningLoad::prepare(&plan, &Drivers::none(), vec![to_one]).await.expect("it serves");
        load.start().await.expect("it starts");
        one.kill().expect("it runs");
        loop {
            match load.tick().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the run ended well"),
                Err(error) => return error.to_string(),
            }
        }
    });
    assert!(error.starts_with("agent lab-1: "), "{error}");
    one.wait().expect("it was killed");
}
