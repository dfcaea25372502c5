//! What is no report changes nothing, whatever brings it.

use crate::group::{Carrier, Group};
use crate::support::PATIENCE;

#[test]
fn what_is_no_report_is_counted_and_changes_nothing() {
    let mut group = Group::new();
    group.report_busy(0, Carrier::PingReq);
    let mut rejected = 0;
    for carrier in Carrier::ALL {
        for json in NO_REPORTS {
            (0..5).for_each(|_| group.report(0, carrier, json.as_bytes()));
            rejected += 5;
        }
        group.assert_all_go_to(1, &format!("{carrier:?}"));
    }
    group.assert_rejections(rejected);
    group.broker.log().wait_for(&["DEBUG", "load report rejected", "worker 0"], PATIENCE);
}

#[test]
fn a_report_of_a_megabyte_is_taken_and_changes_nothing() {
    let mut group = Group::new();
    group.report_busy(0, Carrier::PingReq);
    let report = r#"{"msgsInQueue":0,"processingTimePerMsg":0}"#;
    let padded = |bytes: usize| format!("{}{report}", " ".repeat(bytes - report.len())).into_bytes();
    for carrier in Carrier::ALL {
        let largest = match carrier {
            Carrier::PubAck | Carrier::PubRec | Carrier::PubComp => 65_535, // of a string
            Carrier::PingReq | Carrier::Publish(_) => 1 << 20,
        };
        (0..5).for_each(|_| group.report(0, carrier, &padded(largest)));
        (0..5).for_each(|_| group.report(0, carrier, &padded(4097)));
        group.assert_all_go_to(1, &format!("{carrier:?}"));
    }
    group.assert_rejections(10 * Carrier::ALL.len());
}

const NO_REPORTS: [&str; 12] = [
    "idle",
    "[0,0]",
    "{}",
    r#"{"msgsInQueue":0}"#,
    r#"{"msgsInQueue":-1,"processingTimePerMsg":0}"#,
    r#"{"msgsInQueue":0,"processingTimePerMsg":-0.1}"#,
    r#"{"msgsInQueue":0,"processingTimePerMsg":NaN}"#,
    r#"{"msgsInQueue":0,"processingTimePerMsg":1e300}"#,
    r#"{"msgsInQueue":1e300,"processingTimePerMsg":0}"#,
    r#"{"msgsInQueue":"0","processingTimePerMsg":0}"#,
    r#"{"msgsInQueue":0,"processingTimePerMsg":0"#,
    "\u{FEFF}{\"msgsInQueue\":0,\"processingTimePerMsg\":0}",
];
