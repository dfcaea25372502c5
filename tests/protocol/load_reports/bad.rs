//! Malformed reports change nothing, with every carrier.

use crate::load_reports::group::{Carrier, Group};
use crate::support::PATIENCE;

#[test]
fn malformed_reports_are_counted_and_ignored() {
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
fn oversized_reports_are_counted_and_ignored() {
    let mut group = Group::new();
    group.report_busy(0, Carrier::PingReq);
    let report = r#"{"msgsInQueue":0,"processingTimePerMsg":0}"#;
    let padded = |bytes: usize| format!("{}{report}", " ".repeat(bytes - report.len())).into_bytes();
    for carrier in Carrier::ALL {
        let largest = match carrier {
            Carrier::PubAck | Carrier::PubRec | Carrier::PubComp => 65_535, // the longest string
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
