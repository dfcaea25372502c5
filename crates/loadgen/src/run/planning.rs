//! Makes a plan from arguments and a `.conf` file.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::num::NonZeroU32;
use std::time::Duration;

use super::args::LoadArgs;
use super::conf::Conf;
use super::values::Protocol;
use super::{
    Audience, Broker, Carrier, ConnectionOptions, Doors, Idle, Pace, Plan, Publishers, Reports, Schedule, Slow, Spread,
    TlsOptions, Version, WillOptions, Work, WorkerKind,
};
use crate::{LoadgenError, target};

/// The plan of `args` and `conf` for `brokers`, with a new tag each time; `args` override `conf`.
///
/// # Errors
/// The arguments contradict each other.
pub(crate) fn plan(args: &LoadArgs, conf: &Conf, brokers: Vec<Broker>) -> Result<Plan, LoadgenError> {
    let tag = random();
    check_protocol(args)?;
    let audiences = audiences(args, conf)?;
    Ok(Plan {
        tag,
        protocol: protocol(args).to_owned(),
        brokers,
        doors: Doors::default(),
        on_lost: args.reconnect.unwrap_or_default(),
        connection: connection(args, conf, tag),
        settings: settings(args),
        publishers: publishers(args, conf)?,
        audiences,
        idle: args.conns.map(|count| Idle { count, rate: args.rate }),
        cuts: args.cut,
        schedule: schedule(args, conf),
        threads: args.threads.unwrap_or(2),
        records: false,
        ticks: false,
    })
}

/// Checks that the options fit the protocol.
///
/// # Errors
/// One has no meaning with it, or is missing. The text names it.
fn check_protocol(args: &LoadArgs) -> Result<(), LoadgenError> {
    let is_given = args.mqtt_broker.is_some();
    let mistake = match args.protocol {
        Some(Protocol::Http) if !is_given => "--protocol http needs --mqtt-broker: subscribers use MQTT",
        Some(Protocol::Http) => return Ok(()),
        _ if args.connection_per_request => "--connection-per-request needs --protocol http",
        Some(Protocol::MqttSn) => return Ok(()),
        _ if is_given => "--mqtt-broker needs --protocol mqtt-sn or http",
        _ => return Ok(()),
    };
    Err(LoadgenError::Arguments(mistake.to_owned()))
}

fn protocol(args: &LoadArgs) -> &'static str {
    match args.protocol {
        Some(Protocol::MqttSn) => Plan::MQTT_SN,
        Some(Protocol::Http) => Plan::HTTP,
        Some(Protocol::Mqtt(_)) | None => Plan::MQTT,
    }
}

fn settings(args: &LoadArgs) -> BTreeMap<String, String> {
    let broker = args.mqtt_broker.clone().map(|broker| (Plan::MQTT_BROKER.to_owned(), broker));
    let per_request = args.connection_per_request.then(|| (Plan::CONNECTION_PER_REQUEST.to_owned(), "true".to_owned()));
    broker.into_iter().chain(per_request).collect()
}

/// Whether connections use TLS.
fn uses_tls(args: &LoadArgs, conf: &Conf) -> bool {
    args.tls.or(conf.asks_for_tls()).unwrap_or(args.ca.is_some() || args.client_key.is_some() || args.insecure)
}

/// Default port of brokers.
pub(crate) fn default_port(args: &LoadArgs, conf: &Conf) -> u16 {
    match (args.protocol, uses_tls(args, conf)) {
        (Some(Protocol::MqttSn), _) => target::SN_PORT,
        (Some(Protocol::Http), _) => target::HTTP_PORT,
        (_, true) => target::TLS_PORT,
        (_, false) => target::PORT,
    }
}

fn connection(args: &LoadArgs, conf: &Conf, tag: u16) -> ConnectionOptions {
    let chain = if args.client_cert.is_empty() { &conf.tls_client_cert_chain } else { &args.client_cert };
    let tls = uses_tls(args, conf).then(|| TlsOptions {
        ca: args.ca.clone().or_else(|| conf.tls_rootca_cert.clone()),
        client_key: args.client_key.clone().or_else(|| conf.tls_client_key.clone()),
        client_chain: chain.clone(),
        insecure: args.insecure,
    });
    ConnectionOptions {
        version: version(args, conf),
        user_name: args.user.clone().or_else(|| conf.user_name.clone()),
        password: args.password.clone().or_else(|| conf.password.clone()),
        tls,
        websocket: args.websocket.clone(),
        unix: args.unix.clone(),
        keep_alive: args.keep_alive.unwrap_or(0),
        // A client that reconnects should find its session.
        session_expiry: args.session_expiry.or(args.reconnect.map(|_| SESSION_EXPIRY)),
        client_id_prefix: args.client_id.clone().unwrap_or_else(|| format!("tenbin-{tag:04x}")),
        will: args.will.clone().map(|topic| WillOptions { topic, qos: args.will_qos.unwrap_or(0) }),
    }
}

fn publishers(args: &LoadArgs, conf: &Conf) -> Result<Publishers, LoadgenError> {
    let count = args.publishers.or(conf.num_publishers).unwrap_or(1);
    // A given time or rate replaces MQTTLoader's default of a hundred messages.
    let is_timed = args.time.is_some() || args.publish_rate.is_some() || args.closed.is_some();
    let messages = args.messages.or(conf.num_messages);
    Ok(Publishers {
        count,
        qos: args.publisher_qos.or(args.qos).or(conf.qos_publisher).unwrap_or(0),
        retain: args.retain.or(conf.retain).unwrap_or(false),
        topic: topic(args, conf),
        topics: args.topics.unwrap_or(1),
        payload: args.payload.or(conf.payload).unwrap_or(20),
        messages: messages.or((conf.is_given || !is_timed).then_some(100)),
        pace: pace(args, conf, count)?,
        in_flight: args.in_flight.unwrap_or(if conf.is_given { 1 } else { 100 }),
        spread: Spread::InTurns,
        keep_alive: None,
    })
}

fn pace(args: &LoadArgs, conf: &Conf, publishers: u32) -> Result<Pace, LoadgenError> {
    if let Some(window) = args.closed {
        return Ok(Pace::Closed { window });
    }
    if let Some(rate) = args.publish_rate {
        return Ok(Pace::Open { interval: interval(rate, publishers)? });
    }
    Ok(match args.interval.or(conf.interval).unwrap_or_default() {
        Duration::ZERO => Pace::Unlimited,
        interval => Pace::Open { interval },
    })
}

/// Interval between two messages of a publisher if all together publish `rate` messages a second.
///
/// # Errors
/// The interval is less than a nanosecond, or too large for a duration.
pub(crate) fn interval(rate: f64, publishers: u32) -> Result<Duration, LoadgenError> {
    let seconds = f64::from(publishers.max(1)) / rate;
    let interval = Duration::try_from_secs_f64(seconds).ok().filter(|interval| !interval.is_zero());
    interval
        .ok_or_else(|| LoadgenError::Arguments(format!("{rate} messages a second are too many or too few to be timed")))
}

fn audiences(args: &LoadArgs, conf: &Conf) -> Result<Vec<Audience>, LoadgenError> {
    let count = args.subscribers.or(conf.num_subscribers).unwrap_or(1);
    if count == 0 {
        return Ok(Vec::new());
    }
    let qos = args.subscriber_qos.or(args.qos).or(conf.qos_subscriber).unwrap_or(0);
    let work = work(args, qos)?;
    let filters = match args.filter.as_slice() {
        [] => vec![filter_of(&topic(args, conf))],
        filters => filters.to_vec(),
    };
    let groups: Vec<Option<String>> = match &args.shared {
        Some(groups) => groups.iter().cloned().map(Some).collect(),
        // MQTTLoader supports share groups only with MQTT 5.
        None if conf.shared_subscription == Some(true) && version(args, conf) == Version::V5 => {
            vec![Some(GROUP.to_owned())]
        }
        None => vec![None],
    };
    let mut audiences = Vec::new();
    for filter in &filters {
        for share in &groups {
            let name = share.as_deref().unwrap_or("subscribers");
            let name = if filters.len() > 1 { format!("{name} {filter}") } else { name.to_owned() };
            let (filter, share, work, slow) =
                (filter.clone(), share.clone(), work.clone(), args.slow.map(Slow::last_member));
            audiences.push(Audience {
                name,
                count,
                filter,
                share,
                qos,
                spread: Spread::InTurns,
                work,
                slow,
                keep_alive: None,
            });
        }
    }
    Ok(audiences)
}

fn work(args: &LoadArgs, qos: u8) -> Result<Option<Work>, LoadgenError> {
    if args.service.is_empty() {
        return Ok(None);
    }
    let carrier = args.reports.and_then(Carrier::of);
    if carrier == Some(Carrier::Ack) && qos == 0 {
        return Err(LoadgenError::Arguments("--reports ack: nothing is acknowledged at QoS 0".to_owned()));
    }
    let interval = args.report_interval.unwrap_or(Duration::from_secs(1));
    let reports = carrier.map(|carrier| Reports { carrier: Some(carrier), interval, eager: true });
    let threads = args.parallelism.map_or(NonZeroU32::MIN, NonZeroU32::from);
    let workers = args.service.iter().map(|kind| WorkerKind { threads, ..kind.clone() });
    Ok(Some(Work { reports, ..Work::new(workers.collect()) }))
}

fn schedule(args: &LoadArgs, conf: &Conf) -> Schedule {
    Schedule {
        lead: Duration::ZERO,
        time_limit: args.time.or(conf.exec_time).unwrap_or(Duration::from_secs(60)),
        ramp_up: args.ramp_up.or(conf.ramp_up).unwrap_or(0),
        ramp_down: args.ramp_down.or(conf.ramp_down).unwrap_or(0),
        subscriber_timeout: args.subscriber_timeout.or(conf.subscriber_timeout).unwrap_or(Duration::from_secs(5)),
    }
}

fn version(args: &LoadArgs, conf: &Conf) -> Version {
    match args.protocol {
        Some(Protocol::Mqtt(version)) => version,
        Some(Protocol::MqttSn | Protocol::Http) => Version::V5,
        None => conf.mqtt_version.unwrap_or(Version::V5),
    }
}

fn topic(args: &LoadArgs, conf: &Conf) -> String {
    args.topic.clone().or_else(|| conf.topic.clone()).unwrap_or_else(|| TOPIC.to_owned())
}

/// A Topic Filter that matches all topics of the template `topic`.
fn filter_of(topic: &str) -> String {
    let level = |level| if PLACES.iter().any(|place| str::contains(level, place)) { "+" } else { level };
    topic.split('/').map(level).collect::<Vec<_>>().join("/")
}

/// A random tag.
pub(crate) fn random() -> u16 {
    RandomState::new().build_hasher().finish() as u16
}

/// Session expiry of clients that reconnect.
const SESSION_EXPIRY: Duration = Duration::from_secs(3600);

/// MQTTLoader's default topic.
const TOPIC: &str = "mqttloader-test-topic";

/// MQTTLoader's default share group.
pub(crate) const GROUP: &str = "mqttload";

/// Placeholders for numbers in a topic.
const PLACES: [&str; 2] = ["{publisher}", "{topic}"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::OnLost;
    use crate::values::parsed;

    fn plan_with(conf: &Conf, line: &str) -> Result<Plan, LoadgenError> {
        let load = parsed(&format!("run {line}")).expect("arguments are well-formed");
        plan(&load, conf, vec![Broker::new("b", "h", 1883)])
    }

    fn plan_of(line: &str) -> Plan {
        plan_with(&Conf::default(), line).unwrap()
    }

    #[test]
    fn without_arguments_it_is_what_mqttloader_does_by_default() {
        let plan = plan_of("");
        assert_eq!((plan.connection.version, &plan.connection.tls), (Version::V5, &None));
        let publishers = &plan.publishers;
        assert_eq!((publishers.count, publishers.qos, publishers.retain, publishers.payload), (1, 0, false, 20));
        assert_eq!((publishers.topic.as_str(), publishers.messages), (TOPIC, Some(100)));
        assert_eq!(publishers.pace, Pace::Unlimited);
        let [audience] = plan.audiences.as_slice() else { panic!("one audience") };
        assert_eq!((audience.count, audience.filter.as_str(), &audience.share), (1, TOPIC, &None));
        let schedule = plan.schedule;
        assert_eq!((schedule.time_limit.as_secs(), schedule.subscriber_timeout.as_secs()), (60, 5));
        assert_eq!((schedule.ramp_up, schedule.ramp_down), (0, 0));
    }

    #[test]
    fn arguments_win_over_the_file_and_the_file_over_defaults() {
        let conf = Conf {
            is_given: true,
            num_publishers: Some(8),
            qos_publisher: Some(1),
            qos_subscriber: Some(1),
            retain: Some(true),
            interval: Some(Duration::from_micros(500)),
            shared_subscription: Some(true),
            ..Conf::default()
        };
        let plan = plan_with(&conf, "").unwrap();
        assert_eq!((plan.publishers.count, plan.publishers.qos, plan.publishers.retain), (8, 1, true));
        assert_eq!((plan.publishers.messages, plan.publishers.in_flight), (Some(100), 1));
        assert_eq!(plan.publishers.pace, Pace::Open { interval: Duration::from_micros(500) });
        assert_eq!(plan.audiences[0].share.as_deref(), Some(GROUP));

        let line = "--publishers 2 --subscriber-qos 2 --retain=false --interval 0 --shared=a,b --in-flight 7 --time 3";
        let plan = plan_with(&conf, line).unwrap();
        assert_eq!((plan.publishers.count, plan.publishers.qos, plan.publishers.retain), (2, 1, false));
        assert_eq!((plan.publishers.pace, plan.publishers.in_flight), (Pace::Unlimited, 7));
        // The default of a hundred messages applies, as there is a file.
        assert_eq!((plan.publishers.messages, plan.schedule.time_limit.as_secs()), (Some(100), 3));
        let groups: Vec<_> = plan.audiences.iter().map(|audience| (audience.name.as_str(), audience.qos)).collect();
        assert_eq!(groups, [("a", 2), ("b", 2)]);
    }

    #[test]
    fn at_3_1_1_only_arguments_make_a_share_group() {
        let conf = Conf {
            is_given: true,
            mqtt_version: Some(Version::V311),
            shared_subscription: Some(true),
            ..Conf::default()
        };
        assert_eq!(plan_with(&conf, "").unwrap().audiences[0].share, None);
        assert_eq!(plan_with(&conf, "--shared").unwrap().audiences[0].share.as_deref(), Some(GROUP));
    }

    #[test]
    fn the_names_of_the_file_are_arguments_too() {
        let line = "--mqtt-version 3 --num-publishers 3 --num-subscribers 0 --qos-publisher 1 --num-messages 5 \
                    --exec-time 7 --ramp-up 1 --ramp-down 2s --subscriber-timeout 300ms --user-name u --password p";
        let plan = plan_of(line);
        assert_eq!((plan.connection.version, plan.publishers.count), (Version::V311, 3));
        assert_eq!((plan.publishers.qos, plan.publishers.messages), (1, Some(5)));
        assert!(plan.audiences.is_empty());
        assert_eq!((plan.schedule.time_limit.as_secs(), plan.schedule.ramp_down), (7, 2));
        assert_eq!(plan.connection.user_name.as_deref(), Some("u"));
    }

    #[test]
    fn rate_is_shared_by_publishers_and_has_no_message_limit() {
        let plan = plan_of("--publishers 4 --publish-rate 1e3");
        assert_eq!(plan.publishers.pace, Pace::Open { interval: Duration::from_millis(4) });
        assert_eq!(plan.publishers.messages, None);
        assert_eq!(plan_of("--closed").publishers.pace, Pace::Closed { window: 20_000 });
        assert_eq!(plan_of("--closed=5 --messages 9").publishers.messages, Some(9));
        assert!(plan_with(&Conf::default(), "--publish-rate 1e300").is_err());
    }

    #[test]
    fn a_filter_matches_all_topics_unless_it_is_given() {
        let filter =
            |line: &str| plan_of(line).audiences.into_iter().map(|audience| audience.filter).collect::<Vec<_>>();
        assert_eq!(filter("--topic a/{publisher}/b{topic}/c --topics 3"), ["a/+/+/c"]);
        assert_eq!(filter("--topic a/b --filter a/# --filter +/b"), ["a/#", "+/b"]);
        let names: Vec<_> = plan_of("--filter a --filter b --shared=g").audiences.into_iter().map(|a| a.name).collect();
        assert_eq!(names, ["g a", "g b"]);
    }

    #[test]
    fn workers_have_times_and_may_report() {
        let work = |line: &str| plan_of(line).audiences.remove(0).work;
        assert_eq!(work(""), None);
        let work = work("--service 25ms,50ms --parallelism 2 --reports pingreq").unwrap();
        assert_eq!((work.workers.len(), work.workers[1].threads.get()), (2, 2));
        let expected = Reports { carrier: Some(Carrier::PingReq), interval: Duration::from_secs(1), eager: true };
        assert_eq!(work.reports, Some(expected));
        assert!(plan_with(&Conf::default(), "--service 25ms --reports ack").is_err());
        assert!(plan_with(&Conf::default(), "--service 25ms --reports ack --qos 1").is_ok());
    }

    #[test]
    fn clients_that_reconnect_keep_their_sessions() {
        let plan = plan_of("");
        assert_eq!((plan.on_lost, plan.connection.session_expiry), (OnLost::Fail, None));
        let plan = plan_of("--reconnect 100ms,2s");
        let (first, most) = (Duration::from_millis(100), Duration::from_secs(2));
        assert_eq!(plan.on_lost, OnLost::Reconnect { first, most });
        assert_eq!(plan.connection.session_expiry, Some(SESSION_EXPIRY));
        let plan = plan_of("--reconnect 1s --session-expiry 5s");
        let once = Duration::from_secs(1);
        assert_eq!(plan.on_lost, OnLost::Reconnect { first: once, most: once });
        assert_eq!(plan.connection.session_expiry, Some(Duration::from_secs(5)));
    }

    #[test]
    fn certificates_mean_tls() {
        assert!(plan_of("--ca ca.pem").connection.tls.is_some());
        assert!(plan_of("--tls=false --ca ca.pem").connection.tls.is_none());
        let tls = plan_of("--tls --client-key k --client-cert a;b").connection.tls.unwrap();
        assert_eq!(tls.client_chain, ["a", "b"].map(std::path::PathBuf::from));
    }

    #[test]
    fn two_runs_have_client_ids_of_their_own_unless_they_are_given() {
        let prefixes: std::collections::BTreeSet<_> =
            (0..20).map(|_| plan_of("").connection.client_id_prefix).collect();
        assert!(prefixes.len() > 1);
        assert_eq!(plan_of("--client-id a").connection.client_id_prefix, "a");
    }
}
