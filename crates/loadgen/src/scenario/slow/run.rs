//! One message size against a broker, from the first connection until the slow receivers have read their backlog.

use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tenbin_simulator::{Arrivals, Span};

use super::args::SizeLoad;
use super::spooling::SpoolingWatch;
use super::{SlowArgs, SlowFigures};
use crate::LoadgenError;
use crate::progress::Progress;
use crate::run::{
    Audience, Broker, ConnectionOptions, Doors, ExecuteOptions, OnLost, Pace, Plan, Publishers, Schedule, Slow, Spread,
    perform,
};
use crate::target::RunningBroker;

/// Runs one size against `broker`.
pub(super) async fn run(
    args: &SlowArgs,
    size: SizeLoad,
    brokers: &mut [RunningBroker],
    progress: &mut Progress,
) -> Result<SlowFigures, LoadgenError> {
    let plan = plan(args, size, brokers.iter().map(RunningBroker::place).collect());
    let id = format!("{}-watch", plan.connection.client_id_prefix);
    let spooling = SpoolingWatch::begin(&brokers[0].place().address(), id, args.spooling_filter()?).await?;
    let options = ExecuteOptions { title: format!("{size}, "), ..ExecuteOptions::default() };
    let finished = perform(&plan, brokers, options, progress).await?;
    Ok(SlowFigures::of(args, size, &finished, &spooling.end().await))
}

/// One publisher and one topic; receivers at QoS 1, in sessions that outlive their connections.
fn plan(args: &SlowArgs, size: SizeLoad, brokers: Vec<Broker>) -> Plan {
    static RUNS: AtomicU16 = AtomicU16::new(0);
    let tag = RUNS.fetch_add(1, Ordering::Relaxed);
    // A given broker may have other clients, or state of an earlier run.
    let label = format!("{}-{tag}", std::process::id());
    let topic = format!("slow/{label}");
    let arrivals = Arrivals::Fixed(Span::from_ns(size.interval_ns() as u64));
    let publishers = Publishers {
        qos: 1,
        payload: size.bytes as u32,
        messages: Some(size.messages(args)),
        pace: Pace::Arrivals { arrivals, seed: 0 },
        in_flight: u16::MAX,
        ..Publishers::new(1, topic.clone())
    };
    // All begin at the first broker: the leader of a pair.
    let spread = Spread::Broker(0);
    let audience = |name, count: u16| Audience { qos: 1, spread, ..Audience::new(name, count.into(), topic.clone()) };
    let slow = Slow {
        members: args.slow.into(),
        rate: args.slow_reads * size.messages_per_second,
        from: args.before,
        until: Some(args.slow_until()),
    };
    let audiences = vec![audience(NORMAL, args.normal), Audience { slow: Some(slow), ..audience(SLOW, args.slow) }];
    Plan {
        connection: ConnectionOptions {
            session_expiry: Some(SESSION_EXPIRY),
            ..ConnectionOptions::new(format!("slow-{label}"))
        },
        schedule: Schedule { lead: LEAD, time_limit: args.published_for() + args.drain, ..Schedule::default() },
        records: true,
        doors: if args.pair { Doors::OneSystem } else { Doors::default() },
        on_lost: if args.pair { OnLost::Reconnect { first: AGAIN_AFTER, most: AGAIN_MOST } } else { OnLost::Fail },
        ..Plan::new(tag, brokers, publishers, audiences)
    }
}

/// Names of the audiences, in the order of their receivers' numbers.
pub(super) const NORMAL: &str = "normal";
pub(super) const SLOW: &str = "slow";

/// Session Expiry Interval after a lost connection.
const SESSION_EXPIRY: Duration = Duration::from_secs(600);

/// Pauses of a receiver of a pair after the loss of a connection that names no server.
const AGAIN_AFTER: Duration = Duration::from_millis(20);
const AGAIN_MOST: Duration = Duration::from_secs(1);

/// Time from the last connection to the first message.
const LEAD: Duration = Duration::from_millis(300);
