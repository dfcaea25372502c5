//! Lists of many share groups.

use tenbin_codec::QoS;

use crate::stage::Stage;
use crate::support::share;

#[test]
fn pages_have_each_group_once_and_metrics_the_busiest() {
    const GROUPS: usize = 140;
    let stage = Stage::start(&[]);
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
}
