//! Policies of the program's own choose the members of share groups.

use tenbin_broker::{Candidates, Chooser, Choosers, Config, Dispatch, Rng};
use tenbin_codec::{QoS, ReasonCode};

use crate::hooks::stage::Stage;

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
    choosers.add("newest", Newest).expect("there is room");
    let text = "[[share]]\ngroup = 'group'\npolicy = 'newest'\n[[share]]\nshadow = 'newest'";
    let share = Config::parse_for(text, &choosers).expect("the policy has a name").share;
    let stage = Stage::start_with(|config| config.share = share, |builder| builder.choosers(choosers));
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

#[test]
fn unknown_policy_error_lists_own_policies() {
    let mut choosers = Choosers::default();
    choosers.add("newest", Newest).expect("there is room");
    let error = Config::parse_for("\n[[share]]\npolicy = 'oldest'", &choosers).expect_err("there is none").to_string();
    assert!(error.contains("line 3") && error.contains("capacity, newest"), "{error}");
    let error = Config::parse("policy = 'newest'").expect_err("only one parse knows the name").to_string();
    assert!(error.ends_with("capacity"), "{error}");
}
