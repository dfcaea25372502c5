//! Policies of the program's own choose the members of share groups.

use tenbin_broker::{Candidates, Chooser, Choosers, Dispatch, Rng};
use tenbin_codec::{QoS, ReasonCode};

use crate::stage::Stage;

/// Always the member that joined last.
struct Newest;

impl Chooser for Newest {
    fn choose(&self, _: &Dispatch, candidates: &Candidates<'_>, _: &mut Rng) -> Option<usize> {
        candidates.ready().last()
    }
}

#[test]
fn own_policy_chooses_and_is_named_in_reports() {
    let mut choosers = Choosers::default();
    let policy = choosers.add("newest", Newest).expect("there is room");
    let stage = Stage::start_with(|config| config.policy = policy, |builder| builder.choosers(choosers));
    let mut members = ["first", "second"].map(|client_id| stage.connect(client_id));
    members.iter_mut().for_each(|member| member.subscribe("$share/group/work", QoS::AtLeastOnce));
    let mut publisher = stage.connect("publisher");
    for number in 0..10 {
        assert_eq!(publisher.publish("work", &number.to_string(), QoS::AtLeastOnce), ReasonCode::Success);
    }
    let [first, second] = &mut members;
    assert_eq!(second.drain_payloads().len(), 10);
    first.expect_nothing_waiting();
    publisher.subscribe("$SYS/share/group/work/members", QoS::AtMostOnce);
    let report = publisher.receive_publish();
    let report = String::from_utf8_lossy(&report.payload).into_owned();
    assert!(report.contains(r#""policy":"newest""#), "{report}");
}
