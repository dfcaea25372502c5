//! A disk that is full: a file system in memory of its own, which needs a system where one may be mounted.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tenbin_codec::{Packet, ProtocolVersion, Publish, QoS, ReasonCode, Subscribe};

use super::support::{
    BrokerProcess, ConfigFile, PATIENCE, RawClient, Silence, lasting, message, retained, subscription,
};

struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("the tests' directory is ours to write");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).arg(directory.path()).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then_some(Self(directory))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Until nothing more goes in.
    fn fill(&self) -> PathBuf {
        let path = self.path().join("filler");
        let mut filler = fs::File::create(&path).expect("an empty file takes no room");
        while filler.write_all(&[1; 4096]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

#[test]
fn on_a_full_disk_nothing_is_acknowledged_that_is_not_kept_and_everything_else_goes_on() {
    let Some(disk) = SmallDisk::mount() else {
        let _ = writeln!(std::io::stderr(), "skipped: no file system can be mounted here");
        return;
    };
    let data = disk.path().join("data");
    let data = data.to_str().expect("a target directory with a readable name");
    let config = ConfigFile::new("[connections]\nconnect_timeout_ms = 1000\n");
    let broker = BrokerProcess::start(&["--data", data, "--config", config.path()]);
    let mut client = broker.connect(lasting(ProtocolVersion::V5, "client"));
    client.subscribe("before", QoS::AtLeastOnce);
    let mut other = broker.v5("other");
    other.subscribe("goes/on", QoS::AtLeastOnce);

    let filler = disk.fill();
    // Larger than what may be left in the last page.
    let big = Publish { packet_id: Some(other.next_id()), ..retained("retained", &"x".repeat(100_000)) };
    other.send(&Packet::Publish(big));
    wait_for_log(&broker, "the state cannot be written");
    let packet_id = client.next_id();
    let (user_properties, subscriptions) = (Vec::new(), vec![subscription("during", QoS::AtLeastOnce)]);
    let subscribe = Subscribe { packet_id, subscription_identifier: None, user_properties, subscriptions };
    client.send(&Packet::Subscribe(subscribe));
    // What has nothing to do with the disk goes on, on the same connections too.
    client.settle();
    other.settle();
    other.send(&Packet::Publish(message("goes/on", "1")));
    assert_eq!(other.receive_message().payload, "1");
    assert_eq!(client.publish("goes/on", "2", QoS::AtLeastOnce).byte(), 0);
    assert_eq!(other.receive_message().payload, "2");
    assert_eq!(client.try_receive(Duration::from_millis(1500)), Err(Silence::TimedOut), "no SUBACK");
    assert_eq!(other.try_receive(Duration::from_millis(1)), Err(Silence::TimedOut), "no PUBACK");

    // A session that is to last is not begun, one that is not is.
    let (_, connack) = RawClient::try_connect(broker.address(), lasting(ProtocolVersion::V5, "new"));
    assert_eq!(connack.reason, ReasonCode::ServerUnavailable);
    broker.assert_serves();

    fs::remove_file(filler).expect("just made");
    assert!(matches!(client.receive(), Packet::SubAck(_)));
    assert!(matches!(other.receive(), Packet::PubAck(_)));
    wait_for_log(&broker, "the state is written again");
    broker.connect(lasting(ProtocolVersion::V5, "new")).settle();
    drop((client, other, broker));
    let broker = BrokerProcess::start(&["--data", data]);
    let (mut client, connack) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, "client"));
    assert!(connack.session_present);
    let mut publisher = broker.v5("publisher");
    for topic in ["before", "during"] {
        publisher.publish(topic, topic, QoS::AtLeastOnce);
        assert_eq!(client.receive_message().payload, topic);
    }
    publisher.subscribe("retained", QoS::AtMostOnce);
    assert_eq!(publisher.receive_publish().payload.len(), 100_000);
}

fn wait_for_log(broker: &BrokerProcess, words: &str) {
    let until = Instant::now() + PATIENCE;
    while !broker.log().all().iter().any(|line| line.contains(words)) {
        assert!(Instant::now() < until, "{words}: {}", broker.log().all().join("\n"));
        std::thread::sleep(Duration::from_millis(10));
    }
}
