use tenbin_codec::QoS;

use crate::share_rules::Ruled;
use crate::support::{BrokerProcess, ConfigFile, at_qos, share};

#[test]
fn first_rule_matching_name_and_filter_sets_the_policy() {
    let ruled = Ruled::start(
        r#"
        policy = "random"
        [[share]]
        group = "turns-*"
        filter = "turns/#"
        policy = "round_robin"
        [[share]]
        group = "turns-*"
        policy = "random"
        [[share]]
        filter = "+/strictly"
        policy = "round_robin"
        "#,
    );
    for (group, filter, expected) in [
        ("turns-1", "turns/+/x", true),
        ("turns-1", "turns", true),
        ("turns-2", "elsewhere/strictly", false),
        ("group", "elsewhere/strictly", true),
        ("group", "turns/+/x", false),
        ("group", "elsewhere/+", false),
    ] {
        assert_eq!(takes_turns(&ruled.broker, group, filter), expected, "{group} {filter}");
    }
}

/// True if two members alternate. With a random policy that happens once in 2^39 times.
pub(crate) fn takes_turns(broker: &BrokerProcess, group: &str, filter: &str) -> bool {
    let mut members = ["one", "two"].map(|id| broker.v5(id));
    for member in &mut members {
        member.subscribe(&share(group, filter), QoS::AtLeastOnce);
    }
    let mut publisher = broker.v5("publisher");
    let topic = filter.replace(['+', '#'], "level");
    for number in 0..40 {
        publisher.publish_with(at_qos(&topic, &number.to_string(), QoS::AtLeastOnce));
    }
    let numbers = members.each_mut().map(|member| {
        member.drain_payloads().iter().map(|payload| payload.parse().expect("a number")).collect::<Vec<u32>>()
    });
    members.into_iter().for_each(|member| member.disconnect());
    assert_eq!(numbers[0].len() + numbers[1].len(), 40);
    numbers.iter().all(|numbers| numbers.windows(2).all(|pair| pair[1] == pair[0] + 2))
}

#[test]
fn invalid_share_rule_is_reported_with_key_and_line() {
    let file = ConfigFile::new("[[share]]\ngroup = \"a\"\nkey = \"topic_level:x\"\n");
    let (status, log) = BrokerProcess::fail_to_start(&["--config", file.path()]);
    assert!(!status.success());
    assert!(log.iter().any(|line| line.contains("line 3: key: \"topic_level:x\"")), "{log:?}");
}
