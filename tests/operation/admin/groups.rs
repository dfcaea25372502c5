//! Lists of many share groups.

use tenbin_codec::QoS;

use crate::admin::stage::Stage;
use crate::support::{ConfigFile, share};

#[test]
fn pages_have_each_group_once_and_metrics_the_busiest() {
    const GROUPS: usize = 140;
    let file = ConfigFile::new("[sessions]\nwildcard_patterns_maximum = 1000");
    let stage = Stage::start(&["--config", file.path()]);
    let mut member = stage.broker.v5("member");
    for number in 0..GROUPS {
        member.subscribe(&share(&format!("g{number:03}"), "jobs"), QoS::AtLeastOnce);
    }
    // The newest group alone is busy: its member does not read.
    let mut sleeper = stage.broker.v5("sleeper");
    sleeper.subscribe(&share("busy", "work"), QoS::AtLeastOnce);
    let mut publisher = stage.broker.v5("publisher");
    for _ in 0..5 {
        publisher.publish("work", "x", QoS::AtLeastOnce);
    }
    let (mut names, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = stage.get_json(&format!("/api/v1/groups?limit=47{cursor}"));
        let items = page["items"].as_array().expect("a list");
        names.extend(items.iter().filter_map(|group| group["group"].as_str().map(str::to_owned)));
        pages += 1;
        let Some(next) = page["cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    let mut expected: Vec<_> = (0..GROUPS).map(|number| format!("g{number:03}")).collect();
    expected.push("busy".to_owned());
    assert_eq!((names, pages), (expected, 3), "141 groups, 47 a page");
    let metrics = stage.get("/metrics").body;
    let backlogs: Vec<_> = metrics.lines().filter(|line| line.starts_with("tenbin_group_backlog{")).collect();
    assert_eq!(backlogs.len(), 128);
    assert_eq!(backlogs[0], "tenbin_group_backlog{group=\"busy\",filter=\"work\"} 5");
    assert_eq!(backlogs[127], "tenbin_group_backlog{group=\"#others\",filter=\"#\"} 0");
    assert!(metrics.contains("\ntenbin_groups 141\n"), "{metrics}");
    // Half of the places are for the oldest.
    assert!((0..64).all(|number| metrics.contains(&format!("tenbin_group_waiting{{group=\"g{number:03}\""))));
}

/// A client fills all places with busy groups. Configured groups keep theirs, and so does the oldest other one.
#[test]
fn names_of_clients_displace_no_group_of_the_configuration() {
    let rules = "[sessions]\nwildcard_patterns_maximum = 1000\n[limits]\ngroups_per_topic_maximum = 0\n[[share]]\ngroup = \"named\"\nfilter = \"jobs/#\"\n[[share]]\ngroup = \"workers\"\n\
                 [[share]]\ngroup = \"standing\"\nfilter = \"mail\"\nkeep_seconds = 600\n[[share]]\ngroup = \"team-*\"\n\
                 [[share]]\ngroup = \"orders-*\"\nfilter = \"shop/#\"\n";
    let file = ConfigFile::new(rules);
    let stage = Stage::start(&["--config", file.path()]);
    let mut oldest = stage.broker.v5("oldest");
    oldest.subscribe(&share("team-a", "jobs/1"), QoS::AtLeastOnce);
    let mut worker = stage.broker.v5("worker");
    let mut loud = stage.broker.v5("loud");
    for number in 0..300 {
        loud.subscribe(&share(&format!("loud-{number}"), "noise"), QoS::AtLeastOnce);
        if number < 100 {
            loud.subscribe(&share(&format!("team-{number}"), "noise"), QoS::AtLeastOnce);
        }
    }
    // Younger than all, and idle.
    worker.subscribe(&share("named", "jobs/#"), QoS::AtLeastOnce);
    worker.subscribe(&share("workers", "other"), QoS::AtLeastOnce);
    worker.subscribe(&share("orders-eu", "shop/1"), QoS::AtLeastOnce);
    for _ in 0..5 {
        loud.publish("noise", "x", QoS::AtLeastOnce);
    }
    let metrics = stage.get("/metrics").body;
    let configured = [("named", "jobs/#"), ("standing", "mail"), ("workers", "other"), ("orders-eu", "shop/1")];
    for (group, filter) in configured.into_iter().chain([("team-a", "jobs/1")]) {
        let series = format!("tenbin_group_backlog{{group=\"{group}\",filter=\"{filter}\"}} 0");
        assert!(metrics.contains(&series), "{series}");
    }
    let listed = metrics.lines().filter(|line| line.starts_with("tenbin_group_backlog{"));
    assert_eq!(listed.clone().count(), 127 + (1 + 100 + 1) + 3 + 1, "the others are one sum");
    let others = listed.filter(|line| line.contains("group=\"#others\""));
    assert!(others.clone().count() == 1 && others.clone().all(|line| !line.ends_with(" 0")), "{metrics}");
    let page = stage.get_json("/api/v1/groups/named/jobs%2F%23/scale");
    assert_eq!(page["backlog"], 0);
}
