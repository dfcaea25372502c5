use std::net::UdpSocket;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::loadgen_agents::agent::{Agent, run_by, summary};
use crate::support::BrokerProcess;

/// Publisher and subscriber k are on agent k: of four copies, two cross from one clock to the other, one each way.
fn latencies(broker: &BrokerProcess, agents: &[&Agent]) -> Value {
    let mut command = run_by(agents, broker);
    command.args(["--publishers", "2", "--subscribers", "2", "--topic", "t/{publisher}", "--filter", "t/+"]);
    command.args(["--interval", "4ms", "--messages", "250", "--qos", "1"]);
    let summary = summary(command);
    let verdict = &summary["verdict"];
    assert_eq!((&verdict["expected"], &verdict["received"]), (&1000.into(), &1000.into()), "{verdict}");
    for fault in ["lost", "duplicated", "out_of_order", "foreign", "wrong"] {
        assert_eq!(verdict[fault], 0, "{verdict}");
    }
    summary
}

#[test]
fn a_clock_that_is_wrong_by_300_ms_changes_no_latency() {
    let broker = BrokerProcess::start(&[]);
    let (exact, other) = (Agent::start(&[]), Agent::start(&[]));
    let (ahead, behind) = (Agent::start(&["--clock-shift", "300ms"]), Agent::start(&["--clock-shift", "-300ms"]));
    const SHIFT_MS: f64 = 300.0;
    for shifted in [&ahead, &behind] {
        // Other load on the machine only adds to latencies, so the best runs are compared.
        let (mut plain, mut moved) = ([f64::MAX; 3], [f64::MAX; 3]);
        let agrees = (0..8).any(|_| {
            improve(&mut plain, &latencies(&broker, &[&exact, &other]));
            improve(&mut moved, &latencies(&broker, &[&exact, shifted]));
            plain.iter().zip(&moved).all(|(plain, moved)| (plain - moved).abs() < SHIFT_MS / 30.0)
        });
        assert!(agrees, "mean, p50 and p90 in ms: {plain:?} and {moved:?}");
    }
}

/// Keeps the least mean, p50 and p90.
fn improve(best: &mut [f64; 3], summary: &Value) {
    for (best, figure) in best.iter_mut().zip(["mean", "p50", "p90"]) {
        *best = best.min(summary["latency"][figure].as_f64().expect("a latency"));
    }
}

#[test]
fn summary_reports_the_offset_of_each_clock() {
    let broker = BrokerProcess::start(&[]);
    let agents = [Agent::start(&[]), Agent::start(&["--clock-shift", "300ms"])];
    let summary = latencies(&broker, &[&agents[0], &agents[1]]);
    let notes: Vec<_> = summary["notes"].as_array().expect("notes").iter().filter_map(Value::as_str).collect();
    for (agent, expected_ms) in agents.iter().zip([0.0, 300.0]) {
        let start = format!("clock of agent {}: ", agent.address);
        let note = notes.iter().find_map(|note| note.strip_prefix(&start)).unwrap_or_else(|| panic!("{notes:?}"));
        let mut words = note.split(' ');
        let ms: f64 = words.next().and_then(|word| word.parse().ok()).expect("milliseconds");
        // Each process reads the system clock once, and a busy machine may interrupt it there.
        assert!((ms - expected_ms).abs() < 100.0, "{note}");
    }
}

#[test]
fn an_ntp_server_sets_the_clock_of_a_run() {
    const HOUR: u64 = 3600;
    let server = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let address = server.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        let mut question = [0; 48];
        while let Ok((48, peer)) = server.recv_from(&mut question) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
            let seconds = now.as_secs() + HOUR + 2_208_988_800;
            let time = (seconds << 32) | ((u64::from(now.subsec_nanos()) << 32) / 1_000_000_000);
            let mut answer = [0; 48];
            (answer[0], answer[1]) = (0b00_100_100, 1);
            answer[24..32].copy_from_slice(&question[40..]);
            answer[32..40].copy_from_slice(&time.to_be_bytes());
            answer[40..].copy_from_slice(&time.to_be_bytes());
            server.send_to(&answer, peer).expect("a socket");
        }
    });
    let (broker, agent) = (BrokerProcess::start(&[]), Agent::start(&["--clock-shift", "-5s"]));
    let mut command = run_by(&[&agent], &broker);
    command.args(["--messages", "10", "--ntp", &address]);
    let summary = summary(command);
    let started = Duration::from_millis(summary["started_unix_ms"].as_u64().expect("a time"));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let ahead = started.checked_sub(now).expect("the run was in the future");
    assert!(ahead > Duration::from_secs(HOUR - 60) && ahead <= Duration::from_secs(HOUR), "{ahead:?}");
    let note = summary["notes"][0].as_str().expect("a note");
    assert!(note.starts_with(&format!("clock of {address}: 3")) && note.contains(" ms ahead "), "{note}");
}
