//! Work queues: share groups with rules for messages that their members reject or do not acknowledge in time.

mod dead_letters;
mod ledger;
mod overdue;
mod rejecting;
mod restarts;

use std::time::{Duration, Instant};

use tenbin_codec::{Ack, AckProperties, Connect, Packet, ProtocolVersion, Publish, QoS, ReasonCode, UserProperty};

use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, share, text};

/// A broker without a store, with a rule for the group `workers` with these keys.
fn broker_with(keys: &str) -> BrokerProcess {
    let file = config(keys);
    BrokerProcess::start(&["--ephemeral", "--config", file.path()])
}

/// A file with a rule for the group `workers`, and a standing group for dead letters.
fn config(keys: &str) -> ConfigFile {
    ConfigFile::new(&format!(
        "[[share]]\ngroup = \"workers\"\nfilter = \"jobs/#\"\nkeep_seconds = 604800\n{keys}\n\
         [[share]]\ngroup = \"dead\"\nfilter = \"dead/#\"\nkeep_seconds = 604800\n"
    ))
}

fn join_as(broker: &BrokerProcess, client_id: &str, version: ProtocolVersion) -> RawClient {
    let mut worker = broker.connect(Connect::new(version, text(client_id)));
    worker.subscribe(&share("workers", "jobs/#"), QoS::ExactlyOnce);
    worker
}

fn join(broker: &BrokerProcess, client_id: &str) -> RawClient {
    join_as(broker, client_id, ProtocolVersion::V5)
}

/// Rejects a message, with these User Properties.
fn reject_with(worker: &mut RawClient, publish: &Publish, properties: &[(&str, &str)]) {
    let id = publish.packet_id.expect("QoS 1 or 2");
    let user_properties =
        properties.iter().map(|(name, value)| UserProperty::new(text(name), text(value))).collect::<Vec<_>>();
    let mut ack = Ack::new(id, ReasonCode::UnspecifiedError);
    if !user_properties.is_empty() {
        ack.properties = Some(Box::new(AckProperties { user_properties, ..AckProperties::default() }));
    }
    worker.send(&if publish.qos == QoS::ExactlyOnce { Packet::PubRec(ack) } else { Packet::PubAck(ack) });
}

fn reject(worker: &mut RawClient, publish: &Publish) {
    reject_with(worker, publish, &[]);
}

/// Values of the User Properties of this name.
fn property<'a>(publish: &'a Publish, name: &str) -> Option<&'a str> {
    let properties = publish.properties.as_ref()?;
    let found: Vec<_> = properties.user_properties.iter().filter(|one| one.name.as_str() == name).collect();
    assert!(found.len() <= 1, "{name} comes twice");
    found.first().map(|property| property.value.as_str())
}

fn payload(publish: &Publish) -> String {
    String::from_utf8_lossy(&publish.payload).into_owned()
}

/// Returns the next message of either worker, and which one has it.
fn next_of(workers: &mut [RawClient; 2]) -> (usize, Publish) {
    let begin = Instant::now();
    loop {
        for (index, worker) in workers.iter_mut().enumerate() {
            match worker.try_receive(Duration::from_millis(20)) {
                Ok(Packet::Publish(publish)) => return (index, publish),
                Ok(other) => panic!("{other:?}"),
                Err(_) => assert!(begin.elapsed() < PATIENCE, "no message comes"),
            }
        }
    }
}
