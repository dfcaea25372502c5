use std::net::TcpListener;
use std::thread::scope;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenbin_codec::{Ack, ConnAck, Publish, ReasonCode};
use tenbin_loadgen::LoadgenError;
use tenbin_loadgen::run::{Audience, Broker, ConnectionOptions, Outcome, Plan, Publishers, Schedule, Stamp, run_plan};

/// Runs `plan` against the scripted `broker`.
pub(crate) fn run<T: Send>(
    plan: impl FnOnce(&mut Plan),
    broker: impl FnOnce(TcpListener) -> T + Send,
) -> (Result<Outcome, LoadgenError>, T) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a socket need not wait");
    let port = listener.local_addr().expect("it is bound").port();
    let mut planned = basic(port);
    plan(&mut planned);
    scope(|scope| {
        let broker = scope.spawn(|| broker(listener));
        (run_plan(&planned), broker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// A plan of one publisher of QoS 1 with three messages in flight, without subscribers.
fn basic(port: u16) -> Plan {
    let publishers = Publishers { qos: 1, messages: Some(4), in_flight: 3, ..Publishers::new(1, "wire") };
    // Wait for missing answers; the test's own threads may be late by less than this.
    let subscriber_timeout = Duration::from_secs(5);
    Plan {
        connection: ConnectionOptions::new("wire"),
        schedule: Schedule { time_limit: PATIENCE, subscriber_timeout, ..Schedule::default() },
        threads: 1,
        ..Plan::new(7, vec![Broker::new("scripted", "127.0.0.1", port)], publishers, vec![])
    }
}

pub(crate) fn audience(qos: u8) -> Audience {
    Audience { qos, ..Audience::new("all", 1, "wire") }
}

pub(crate) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_nanos() as u64
}

pub(crate) fn due_ns(publish: &Publish) -> u64 {
    Stamp::decode_due_ns(&publish.payload).expect("every payload has it")
}

pub(crate) fn success() -> ConnAck {
    ConnAck::new(false, ReasonCode::Success)
}

pub(crate) fn ack(publish: &Publish, reason: ReasonCode) -> Ack {
    Ack::new(publish.packet_id.expect("above QoS 0"), reason)
}

pub(crate) fn ids(publishes: &[Publish]) -> Vec<u16> {
    publishes.iter().filter_map(|publish| publish.packet_id).map(|id| id.get()).collect()
}

/// Time limit of the broker's side, reached only in failing tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
