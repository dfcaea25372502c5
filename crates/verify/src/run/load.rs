//! The load of a run, as a plan of the load generator.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tenbin_loadgen::run::{
    Audience, Broker, ClientKinds, Doors, OnLost, Pace, Plan as LoadPlan, Publishers, Schedule, Slow, Spread, Version,
};

use crate::kind::Protocol;
use crate::plan::{Client, Plan};
use crate::template::{Acks, InstanceRole, Role, StartBy};
use crate::units::{Rate, Time};
use tenbin_loadgen::drivers;

/// First and longest pause before a client connects again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// More than any run takes: the run itself stops publishing.
const ENDLESS: Duration = Duration::from_secs(7 * 24 * 3600);
/// Unacknowledged messages of a publisher in a closed loop.
const IN_FLIGHT: u16 = 100;
/// The same for Kafka, whose library sends batches.
const IN_FLIGHT_OF_KAFKA: u16 = 10_000;
/// Unacknowledged messages of a publisher on a schedule.
const MOST_IN_FLIGHT: u16 = 1000;

/// The load of `plan`. `maximum` replaces rates relative to it, in messages a second; without it such publishers send as
/// fast as the system takes messages.
///
/// # Errors
/// A plan without publishers, or with an address that is none; `Plan::new` makes no such plan.
pub(crate) fn load(plan: &Plan, maximum: Option<f64>) -> Result<LoadPlan, String> {
    let (publishers, subscribers): (Vec<_>, Vec<_>) =
        plan.clients.iter().partition(|client| client.entry.role == Role::Publisher);
    let [publisher, ..] = publishers[..] else { return Err("no client publishes".to_owned()) };
    // Clients without a program of the user speak one protocol, which is the load's.
    let speaker = plan.clients.iter().find(|client| client.entry.program.is_none()).unwrap_or(publisher);
    let mut doors: Vec<&String> = plan.clients.iter().flat_map(|client| &client.doors).collect();
    doors.sort();
    doors.dedup();
    let brokers = doors.iter().map(|door| broker(door)).collect::<Result<Vec<_>, _>>()?;
    // A client of one instance of several starts there.
    let spread = |client: &Client| match (&client.doors[..], brokers.len()) {
        ([door], 2..) => {
            doors.iter().position(|other| *other == door).map_or(Spread::InTurns, |at| Spread::Broker(at as u16))
        }
        _ => Spread::InTurns,
    };
    let (pace, in_flight) = pace(publisher, maximum);
    let topic = format!("{}/{{publisher}}", drivers::TOPIC);
    let publishers = Publishers {
        qos: qos(publisher),
        payload: u32::try_from(publisher.entry.size.bytes()).unwrap_or(u32::MAX),
        pace,
        in_flight,
        spread: spread(publisher),
        keep_alive: keep_alive(publisher),
        ..Publishers::new(publisher.entry.count, topic)
    };
    let audience = |client: &&Client| Audience {
        qos: qos(client),
        share: client.entry.group.clone(),
        spread: spread(client),
        keep_alive: keep_alive(client),
        slow: client.entry.slow.map(|rate| Slow {
            members: client.entry.count,
            rate,
            from: Duration::ZERO,
            until: None,
        }),
        ..Audience::new(client.entry.name.clone(), client.entry.count, format!("{}/+", drivers::TOPIC))
    };
    let audiences = subscribers.iter().map(audience).collect();
    let many = brokers.len() > 1;
    let mut load = LoadPlan::new(plan.seed as u16, brokers, publishers, audiences);
    (load.protocol, load.settings) = (protocol(speaker).to_owned(), settings(plan, speaker));
    load.doors = if many { Doors::OneSystem } else { Doors::Independent };
    load.on_lost = OnLost::Reconnect { first: PAUSES.0, most: PAUSES.1 };
    load.schedule =
        Schedule { time_limit: ENDLESS, subscriber_timeout: plan.measure.drain.duration(), ..load.schedule };
    load.ticks = true;
    load.connection.version = publisher.entry.version.unwrap_or(Version::V5);
    load.connection.session_expiry =
        plan.clients.iter().filter_map(|c| c.entry.session_expiry).max().map(Time::duration);
    // An entry without a Keep Alive has the shortest one of the file.
    load.connection.keep_alive = plan.clients.iter().filter_map(keep_alive).filter(|time| *time > 0).min().unwrap_or(0);
    Ok(load)
}

/// Lets clients that begin at a role begin at the instance that has it among `roles`.
///
/// # Errors
/// No instance has the role.
pub(crate) fn begin_at(load: &mut LoadPlan, plan: &Plan, roles: &HashMap<String, InstanceRole>) -> Result<(), String> {
    let brokers = load.brokers.iter().map(|broker| broker.name.clone()).collect::<Vec<_>>();
    let spread = |client: &Client| -> Result<Option<Spread>, String> {
        let Some(role) = client.entry.begins_at else { return Ok(None) };
        let has_role = |door: &String| {
            let instance = plan.instances.iter().find(|instance| instance.door == *door);
            client.doors.contains(door) && instance.is_some_and(|instance| roles.get(&instance.name) == Some(&role))
        };
        let at = brokers.iter().position(has_role);
        let at =
            at.ok_or_else(|| format!("{} begins at role {}, which no instance has", client.entry.name, role.name()))?;
        Ok(Some(Spread::Broker(at as u16)))
    };
    for client in &plan.clients {
        let Some(spread) = spread(client)? else { continue };
        match client.entry.role {
            Role::Publisher => load.publishers.spread = spread,
            Role::Subscriber => {
                let own = load.audiences.iter_mut().filter(|audience| audience.name == client.entry.name);
                own.for_each(|audience| audience.spread = spread);
            }
        }
    }
    Ok(())
}

/// Keep Alive of an entry in seconds, 0 for none; `None` if the entry has no such key.
fn keep_alive(client: &Client) -> Option<u16> {
    client.entry.keep_alive.map(|time| time.secs().ceil() as u16)
}

/// Protocol of a client, as the load generator names it.
fn protocol(client: &Client) -> &'static str {
    match client.protocol {
        Protocol::Mqtt => LoadPlan::MQTT,
        Protocol::Kafka => "kafka",
        Protocol::Nats => "nats",
        Protocol::Jetstream => "jetstream",
        Protocol::Command => "command",
    }
}

/// Protocol and settings of a client whose agent differs from the load's: it is a program of the user.
pub(crate) fn own_protocol(plan: &Plan, client: &Client) -> Option<(&'static str, BTreeMap<String, String>)> {
    client.entry.program.as_ref().map(|_| (protocol(client), settings(plan, client)))
}

/// Settings of a client's driver: the topic of the system, and the publisher's acknowledgements.
fn settings(plan: &Plan, client: &Client) -> BTreeMap<String, String> {
    let publisher = plan.clients.iter().find(|client| client.entry.role == Role::Publisher).unwrap_or(client);
    let instances = || plan.instances.iter().filter(|instance| instance.system == client.system);
    let topic = instances().next().map(|instance| instance.topic).unwrap_or_default();
    let replicas = if topic.replication == 0 { instances().count().max(1) } else { topic.replication as usize };
    let acks = publisher.entry.acks.unwrap_or(Acks::All).name();
    let seconds = |name, time: Option<Time>| time.map(|time| (name, time.secs().to_string()));
    let all = match client.protocol {
        Protocol::Kafka => vec![
            (drivers::ACKS, acks.to_owned()),
            (drivers::PARTITIONS, topic.partitions.to_string()),
            (drivers::REPLICAS, replicas.to_string()),
        ],
        Protocol::Jetstream => vec![(drivers::REPLICAS, replicas.to_string())],
        Protocol::Command => {
            let command = match &client.entry.program {
                Some(StartBy::Command(command)) => command.clone(),
                _ => String::new(),
            };
            let times = [
                seconds("session_expiry", client.entry.session_expiry),
                seconds("keep_alive", client.entry.keep_alive),
            ];
            let all = [
                (drivers::COMMAND, command),
                (drivers::ACKS, acks.to_owned()),
                (drivers::PARTITIONS, topic.partitions.to_string()),
                (drivers::REPLICAS, replicas.to_string()),
                ("seed", plan.seed.to_string()),
            ];
            all.into_iter().chain(times.into_iter().flatten()).collect()
        }
        Protocol::Nats | Protocol::Mqtt => Vec::new(),
    };
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Kinds of clients of an entry, for the agent on its machine.
pub(crate) fn kinds(plan: &Plan, client: &Client) -> ClientKinds {
    let mut subscribers = plan.clients.iter().filter(|client| client.entry.role == Role::Subscriber);
    match client.entry.role {
        Role::Publisher => ClientKinds::Publishers,
        Role::Subscriber => ClientKinds::Audience(
            subscribers.position(|other| other.entry.name == client.entry.name).unwrap_or_default() as u32,
        ),
    }
}

fn broker(door: &str) -> Result<Broker, String> {
    let (host, port) = door.rsplit_once(':').ok_or_else(|| format!("{door:?} is no HOST:PORT"))?;
    let port = port.parse().map_err(|_| format!("{door:?} has no port"))?;
    Ok(Broker::new(door, host, port))
}

/// QoS of MQTT. For other systems: 0 = no acknowledgement, 1 = the leader acknowledges, 2 = all replicas acknowledge.
fn qos(client: &Client) -> u8 {
    match client.entry.acks {
        Some(Acks::None) => 0,
        Some(Acks::Leader) => 1,
        Some(Acks::All) => 2,
        None => client.entry.qos.unwrap_or(1),
    }
}

fn pace(publisher: &Client, maximum: Option<f64>) -> (Pace, u16) {
    let rate = match publisher.entry.rate {
        Rate::Max => None,
        Rate::OfMax(share) => maximum.map(|maximum| share * maximum),
        Rate::Messages(rate) => Some(rate),
        Rate::Bytes(rate) => Some(rate / publisher.entry.size.bytes().max(1) as f64),
    };
    match rate.filter(|rate| *rate > 0.0) {
        None if publisher.protocol == Protocol::Kafka => (Pace::Unlimited, IN_FLIGHT_OF_KAFKA),
        None => (Pace::Unlimited, IN_FLIGHT),
        Some(rate) => {
            let interval = Duration::from_secs_f64(f64::from(publisher.entry.count.max(1)) / rate);
            (Pace::Open { interval }, MOST_IN_FLIGHT)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::Template;

    fn plan(text: &str) -> Plan {
        let templates = Template::read("t.yaml", text).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        Plan::new(&templates[0], None).unwrap_or_else(|mistakes| panic!("{mistakes}"))
    }

    #[test]
    fn rates_are_those_of_all_publishers_together() {
        let text = "systems:\n  b: { kind: tenbin }\n  p: { publishes_to: b, count: 4, rate: RATE, size: 1KB, qos: 1 }\n  s: { subscribes_to: b, qos: 1, session_expiry: 1h }";
        let pace_of = |rate: &str, maximum| load(&plan(&text.replace("RATE", rate)), maximum).unwrap().publishers.pace;
        let every = |ms| Pace::Open { interval: Duration::from_millis(ms) };
        assert_eq!(pace_of("2000", None), every(2));
        assert_eq!(pace_of("1 MB/s", None), every(4));
        assert_eq!(pace_of("50% of max", Some(8000.0)), every(1));
        assert_eq!((pace_of("50% of max", None), pace_of("max", Some(5.0))), (Pace::Unlimited, Pace::Unlimited));
        let load = load(&plan(&text.replace("RATE", "5")), None).unwrap();
        assert_eq!((load.audiences.len(), load.publishers.qos, load.audiences[0].qos), (1, 1, 1));
        assert_eq!(load.connection.session_expiry, Some(Duration::from_secs(3600)));
    }

    #[test]
    fn entries_have_their_own_keep_alive_or_the_shortest() {
        let text = "systems:\n  b: { kind: tenbin }\n  p: { publishes_to: b, keep_alive: 0 }\n  s: { subscribes_to: b, keep_alive: 2 }\n  t: { subscribes_to: b }";
        let load = load(&plan(text), None).unwrap();
        let audiences: Vec<_> = load.audiences.iter().map(|audience| audience.keep_alive).collect();
        assert_eq!((load.connection.keep_alive, load.publishers.keep_alive), (2, Some(0)));
        assert_eq!(audiences, [Some(2), None]);
    }

    #[test]
    fn clients_begin_at_the_instance_with_their_role() {
        let text = "systems:\n  b: { kind: tenbin, mode: cluster }\n  w: { kind: etcd }\n  p: { publishes_to: b, begins_at: leader }\n  s: { subscribes_to: b, begins_at: spare }\n  t: { subscribes_to: b }";
        let plan = plan(text);
        let mut load = load(&plan, None).unwrap();
        let roles = [("b-2", InstanceRole::Leader), ("b-1", InstanceRole::Follower), ("b-3", InstanceRole::Spare)];
        let mut roles = roles.map(|(name, role)| (name.to_owned(), role)).into();
        begin_at(&mut load, &plan, &roles).unwrap();
        let spreads: Vec<_> = load.audiences.iter().map(|audience| audience.spread).collect();
        assert_eq!(load.publishers.spread, Spread::Broker(1));
        assert_eq!(spreads, [Spread::Broker(2), Spread::InTurns]);
        roles.remove("b-3");
        let missing = begin_at(&mut load, &plan, &roles).unwrap_err();
        assert_eq!(missing, "s begins at role spare, which no instance has");
    }

    #[test]
    fn rabbitmq_gets_the_version_that_it_speaks() {
        let version = |kind: &str, more: &str| {
            let text = format!("systems:\n  b: {{ kind: {kind} }}\n  p: {{ publishes_to: b, rate: 5{more} }}\n");
            load(&plan(&text), None).unwrap().connection.version
        };
        assert_eq!((version("tenbin", ""), version("rabbitmq", "")), (Version::V5, Version::V311));
        assert_eq!(
            (version("tenbin", ", version: 3.1.1"), version("rabbitmq", ", version: 5")),
            (Version::V311, Version::V5)
        );
    }

    #[test]
    fn settings_are_those_of_the_topic_and_the_publisher() {
        let settings = |system: &str, acks: &str| {
            let text = format!("systems:\n  b: {{ {system} }}\n  p: {{ publishes_to: b, rate: 5{acks} }}\n");
            load(&plan(&text), None).unwrap().settings.into_iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>()
        };
        let three = settings("kind: kafka, replicas: 3, topic: { partitions: 2 }", ", acks: 1");
        assert_eq!(three, ["acks=1", "partitions=2", "replicas=3"]);
        assert_eq!(settings("kind: jetstream, replicas: 3, topic: { replication: 1 }", ""), ["replicas=1"]);
        assert!(settings("kind: tenbin", ", qos: 1").is_empty());
    }

    #[test]
    fn client_programs_have_a_protocol_of_their_own() {
        let text = "systems:\n  b: { kind: kafka }\n  p: { publishes_to: b, rate: max, acks: 1P }\n  s: { subscribes_to: b, command: my client }";
        let mixed = plan(&text.replace("1P", "1"));
        let load_of = |plan: &Plan| {
            let load = load(plan, None).unwrap();
            (load.protocol, load.publishers.in_flight)
        };
        assert_eq!(load_of(&mixed), ("kafka".to_owned(), IN_FLIGHT_OF_KAFKA));
        assert_eq!(own_protocol(&mixed, &mixed.clients[0]), None);
        let (protocol, settings) = own_protocol(&mixed, &mixed.clients[1]).unwrap();
        let settings: Vec<_> = settings.into_iter().map(|(k, v)| format!("{k}={v}")).collect();
        let wanted = ["acks=1", "command=my client", "partitions=1", "replicas=1", "seed=1"];
        assert_eq!((protocol, &settings[..]), ("command", &wanted.map(String::from)[..]));
        let both = plan(&text.replace("1P", "0, command: mine"));
        assert_eq!(load_of(&both), ("command".to_owned(), IN_FLIGHT));
        assert_eq!(load(&both, None).unwrap().publishers.qos, 0);
    }

    #[test]
    fn each_entry_has_an_agent_of_its_own() {
        let plan = plan(
            "systems:\n  b: { kind: tenbin }\n  one: { subscribes_to: b }\n  p: { publishes_to: b }\n  two: { subscribes_to: b }",
        );
        let kinds: Vec<_> = plan.clients.iter().map(|client| kinds(&plan, client)).collect();
        assert_eq!(kinds, [ClientKinds::Audience(0), ClientKinds::Publishers, ClientKinds::Audience(1)]);
    }
}
