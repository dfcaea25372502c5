//! Several publishers at once, for receivers that are slow again and again.

use std::io::Write as _;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use tenbin_codec::{Connect, Packet, ProtocolVersion, QoS, ReasonCode};

use super::{Figures, figure, narrow, number_of, numbered, publish_all};
use crate::support::{
    BrokerProcess, ConfigFile, DataDirectory, Dice, PATIENCE, RawClient, Silence, lasting, seed, text,
};

const PUBLISHERS: usize = 3;
const ROUNDS: usize = 10;
/// Long enough for any busy machine.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(180);

/// Number of messages by publisher and QoS.
type Counts = [[usize; 2]; PUBLISHERS];

#[test]
fn publisher_order_holds_while_receivers_slow_down_and_catch_up() {
    let seed = seed("TENBIN_RACING_SEED");
    let _ = writeln!(std::io::stderr(), "TENBIN_RACING_SEED={seed}");
    // Slow from 256 KiB on.
    let config = ConfigFile::new(
        "[queue]\nbytes_maximum = 524288\nwhen_full = \"spool\"\n[store]\nsync = \"never\"\n[sys]\ninterval_seconds = 1\n",
    );
    let directory = DataDirectory::new();
    let broker = directory.start_with(&["--config", config.path()]);
    let receivers = [
        narrow(Connect::new(ProtocolVersion::V5, text("passing")), 16),
        Connect::new(ProtocolVersion::V311, text("passing-old")),
        narrow(lasting(ProtocolVersion::V5, "lasting"), 16),
    ];
    let connected = receivers.map(|connect| {
        let mut client = broker.connect(connect);
        client.subscribe("race/#", QoS::AtLeastOnce);
        client
    });
    let end = OnceLock::new();
    thread::scope(|scope| {
        let (broker, end) = (&broker, &end);
        let publishers: [_; PUBLISHERS] =
            std::array::from_fn(|publisher| scope.spawn(move || publish(broker, publisher, seed)));
        // All receivers are slow once before they read anything, on machines of any speed.
        Figures::of(broker).wait_for("clients/spooling", |clients| clients == 3);
        for (number, client) in connected.into_iter().enumerate() {
            scope.spawn(move || receive(client, number, seed, end));
        }
        let sent: Counts = publishers.map(|publisher| publisher.join().expect("it publishes"));
        end.set(sent).expect("set once");
    });
    let end = end.into_inner().expect("said");
    assert!(end.iter().flatten().all(|&count| count > 500), "{end:?}");
    Figures::of(&broker).wait_for("spooling/begun", |begun| begun >= 3);
    Figures::of(&broker).wait_for("clients/spooling", |clients| clients == 0);
    Figures::of(&broker).wait_for("spooling/messages", |messages| messages == 0);
    let _ = writeln!(std::io::stderr(), "switched {} times, {end:?}", figure(&broker, "spooling/begun"));
    assert_eq!(figure(&broker, "publish/messages/dropped"), 0);
}

/// Returns the number of messages of each QoS.
fn publish(broker: &BrokerProcess, publisher: usize, seed: u64) -> [usize; 2] {
    let mut dice = Dice::new(seed, publisher);
    let mut client = broker.v5(&format!("publisher-{publisher}"));
    let mut sent = [0; 2];
    for _ in 0..ROUNDS {
        for _ in 0..dice.within(5..30) {
            let bytes = [100, 700, 3000][dice.within(0..3) as usize];
            let messages = (0..dice.within(1..40)).map(|_| {
                let qos = dice.within(0..2) as usize;
                sent[qos] += 1;
                let qos_of = [QoS::AtMostOnce, QoS::AtLeastOnce][qos];
                numbered(&format!("race/{publisher}"), sent[qos] - 1, bytes, qos_of)
            });
            let reasons = publish_all(&mut client, messages.collect());
            assert!(reasons.iter().all(|reason| *reason == ReasonCode::Success), "{reasons:?}");
        }
        thread::sleep(Duration::from_millis(dice.within(0..1200)));
    }
    // No answer shows the fate of the last QoS 0 message, so a QoS 1 message follows.
    sent[1] += 1;
    publish_all(&mut client, vec![numbered(&format!("race/{publisher}"), sent[1] - 1, 10, QoS::AtLeastOnce)]);
    sent
}

/// Reads and pauses in turn, then reads all remaining messages.
fn receive(mut client: RawClient, number: usize, seed: u64, end: &OnceLock<Counts>) {
    let mut dice = Dice::new(seed, PUBLISHERS + number);
    let mut got = Counts::default();
    let begun = Instant::now();
    let sent = loop {
        assert!(begun.elapsed() < PUBLISHED_WITHIN, "publishers have ended otherwise");
        if let Some(&sent) = end.get() {
            break sent;
        }
        thread::sleep(Duration::from_millis(dice.within(0..800)));
        let until = Instant::now() + Duration::from_millis(dice.within(100..1500));
        while Instant::now() < until {
            take(&mut client, &mut got, Duration::from_millis(10));
        }
    };
    while sent != got {
        assert!(take(&mut client, &mut got, PATIENCE), "receiver {number} has {got:?} of {sent:?}");
    }
    client.expect_nothing_waiting();
}

/// Returns true if a message arrived within `patience`.
fn take(client: &mut RawClient, got: &mut Counts, patience: Duration) -> bool {
    let publish = match client.try_receive(patience) {
        Ok(Packet::Publish(publish)) => publish,
        Ok(other) => panic!("{other:?} instead of PUBLISH"),
        Err(Silence::TimedOut) => return false,
        Err(silence) => panic!("{silence:?}"),
    };
    client.acknowledge(&publish);
    let publisher = usize::from(publish.topic.as_bytes()[5] - b'0');
    let next = &mut got[publisher][usize::from(publish.qos.bits())];
    assert_eq!(number_of(&publish), *next, "publisher {publisher}, QoS {}", publish.qos);
    *next += 1;
    true
}
