//! Programs in shell that report known messages, or illegal lines.

use std::time::Duration;

use crate::LoadgenError;
use crate::run::{Audience, Broker, Finished, LedgerCounts, Pace, Plan, Publishers, RunningLoad, Schedule};

use super::super::{COMMAND, all};
use super::changes;

/// Time between two messages.
const INTERVAL: Duration = Duration::from_millis(1);

/// One publisher of 600 messages, and one subscriber, by `program`.
fn plan(program: &str, publishers: u32) -> Plan {
    let publishers = Publishers {
        qos: 1,
        messages: Some(600),
        payload: 100,
        pace: Pace::Open { interval: INTERVAL },
        ..Publishers::new(publishers, "verify/{publisher}")
    };
    let schedule = Schedule { subscriber_timeout: Duration::from_millis(300), ..Schedule::default() };
    let broker = Broker::new("b", "192.0.2.1", 1883);
    let mut plan = Plan::new(7, vec![broker], publishers, vec![Audience::new("sub", 1, "verify/+")]);
    plan.protocol = "command".to_owned();
    plan.settings.insert(COMMAND.to_owned(), format!("f() {{\n{program}\n}}\nf"));
    plan.schedule = schedule;
    plan
}

async fn run(plan: &Plan) -> Result<Finished, LoadgenError> {
    let mut load = RunningLoad::prepare(plan, &all(), Vec::new()).await?;
    load.start().await?;
    while load.tick().await?.is_some() {}
    load.finish().await
}

/// Loses messages 100 to 109, repeats 200 to 204, swaps 300 and 301; refuses 400 and 401, and does not confirm 500 to 502,
/// of which 500 arrives.
const FAULTY: &str = r#"
echo ready
read -r word start
# All messages are due, so that their times have come.
sleep 0.7
n=0
while [ $n -lt 600 ]; do
    due=$((start + n * TENBIN_INTERVAL_NS))
    later=$((due + 1000))
    if [ "$1" = publisher ]; then
        case $n in
        40[01]) end=refused ;;
        50[012]) end=- ;;
        *) end=$later ;;
        esac
        echo "P 0 $n $due $due $end"
    else
        case $n in
        10? | 40[01] | 50[12]) ;;
        20[0-4]) echo "S 0 0 $n $due $later 0"; echo "S 0 0 $n $due $later 0" ;;
        300) ;;
        301) echo "S 0 0 301 $due $later 0"; echo "S 0 0 300 $((due - TENBIN_INTERVAL_NS)) $later 0" ;;
        *) echo "S 0 0 $n $due $later 0" ;;
        esac
    fi
    n=$((n + 1))
done
[ "$1" = subscriber ] || echo done
cat > /dev/null
"#;

#[tokio::test]
async fn known_faults_of_a_program_are_found_in_their_windows() {
    let finished = run(&plan(FAULTY, 1)).await.unwrap();
    let ledger = finished.ledger.unwrap();
    let whole = LedgerCounts {
        published: 600,
        acknowledged: 595,
        refused: 2,
        unconfirmed: 3,
        expected: 595,
        received: 585,
        lost: 10,
        duplicated: 5,
        out_of_order: 1,
        unconfirmed_arrived: 1,
        unconfirmed_missing: 2,
        refused_arrived: 0,
    };
    assert_eq!(ledger.whole(), whole);
    let window = |from: u64, to: u64| {
        let at = |number: u64| ledger.start_ns() + number * INTERVAL.as_nanos() as u64;
        let counts = ledger.window(at(from)..at(to));
        [counts.lost, counts.duplicated, counts.out_of_order, counts.refused, counts.unconfirmed]
    };
    assert_eq!(window(0, 100), [0; 5]);
    assert_eq!(window(100, 110), [10, 0, 0, 0, 0]);
    assert_eq!(window(200, 205), [0, 5, 0, 0, 0]);
    assert_eq!(window(205, 300), [0; 5]);
    assert_eq!(window(300, 302), [0, 0, 1, 0, 0]);
    assert_eq!(window(400, 402), [0, 0, 0, 2, 0]);
    assert_eq!(window(500, 503), [0, 0, 0, 0, 3]);
    assert_eq!(window(503, 600), [0; 5]);
    let outcome = finished.outcome;
    assert_eq!((outcome.connections.accepted, outcome.unsent, outcome.latest_send_ms), (2, 0, 0.0));
    let latency = outcome.latency.unwrap();
    // Messages 300 and 1 ms later arrive in the same microsecond.
    assert!(latency.p50 < 0.01 && (latency.max - 1.001).abs() < 0.01, "{latency:?}");
}

#[tokio::test]
async fn programs_are_told_the_run() {
    let told = r#"
echo "$* $TENBIN_COUNT $TENBIN_FIRST $TENBIN_PUBLISHERS $TENBIN_INTERVAL_NS $TENBIN_QOS $TENBIN_ACKS $TENBIN_MESSAGES"
"#;
    let mut plan = plan(told, 4);
    plan.settings.insert("acks".to_owned(), "all".to_owned());
    plan.audiences.insert(0, Audience { share: Some("g".to_owned()), ..Audience::new("group", 3, "verify/+") });
    let error = run(&plan).await.map(|_| ()).unwrap_err().to_string();
    let line = "subscriber 192.0.2.1:1883 verify 100 4000 g 7 3 0 4 1000000 1 all 600";
    assert!(error.starts_with(&format!("group: line 1 of its program, {line:?}: want ready")), "{error}");
    plan.audiences.clear();
    let error = run(&plan).await.map(|_| ()).unwrap_err().to_string();
    let line = "publisher 192.0.2.1:1883 verify 100 4000 - 7 4 0 4 1000000 1 all 600";
    assert!(error.starts_with(&format!("publishers: line 1 of its program, {line:?}: want ready")), "{error}");
}

#[test]
fn only_the_entry_itself_changes_variables_of_the_plan() {
    let inherited = ["PATH", "TENBIN_QOS", "TENBIN_SLOW", "TENBIN_SEED", "TENBIN_RESULTS"].map(String::from);
    let plan = [("TENBIN_QOS", "1"), ("TENBIN_SEED", "7")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let changes = changes("TENBIN_SEED,TENBIN_RESULTS", inherited.into_iter(), plan.into_iter());
    let changes: Vec<_> = changes.iter().map(|(name, value)| (name.as_str(), value.as_deref())).collect();
    assert_eq!(changes, [("TENBIN_QOS", Some("1")), ("TENBIN_SLOW", None)]);
}

#[tokio::test]
async fn errors_of_programs_name_the_client_and_the_line() {
    let started = |rest: &str| {
        format!(
            "[ $1 = publisher ] || {{ echo ready; cat > /dev/null; exit; }}\necho ready\nread -r word start\n{rest}"
        )
    };
    let p = |line: &str| started(&format!("due=$((start + 1000000)); sleep 0.01; echo \"{line}\"; cat > /dev/null"));
    let cases = [
        ("exit 3".to_owned(), "sub: its program failed before it was ready, by exit status: 3"),
        ("echo no luck >&2".to_owned(), "sub: its program ended before it was ready: no luck"),
        ("no-such-program".to_owned(), "sub: its program failed before it was ready, by exit status: 127: client: "),
        ("printf read".to_owned(), "sub: line 1 of its program, \"read\": want the end of the line"),
        ("echo S 0 0 0 0 0 0".to_owned(), "sub: line 1 of its program, \"S 0 0 0 0 0 0\": want ready first"),
        ("echo ready; echo ready; cat".to_owned(), "sub: line 2 of its program, \"ready\": it is ready already"),
        ("yes ready | tr -d '\\n'".to_owned(), "the line is too long"),
        (started("exit 5"), "publishers: its program failed during the run, by exit status: 5"),
        (started("exit 0"), "publishers: its program ended during the run"),
        (p("P 0 1 $due $due"), "want: P stream number"),
        (p("P 1 1 $due $due $due"), "its streams are 0 to 0"),
        (p("P 0 3 $due $due $due"), "message 3 of stream 0 was due at "),
        (p("P 0 1 $due $due 5"), " is no time of the run"),
        (p("P 0 1 $due 5 $due"), " is no time of the run"),
        (p("P 0 1 $due $((start - 900000)) $due"), "it was sent before it was due"),
        (p("P 0 1 $due $due $start"), "it was acknowledged before it was sent"),
        (p("S 0 0 1 $due $due 0"), "publishers have no S lines"),
        (p("P 0 1 $due $due $due\nP 0 1 $due $due $due"), "the message has its line already"),
        (p("P 0 1 $due $due $due\ndone\nP 0 2 $due $due $due"), "it is done already"),
    ];
    for (program, wanted) in cases {
        let error = run(&plan(&program, 1)).await.map(|_| ()).expect_err(wanted).to_string();
        assert!(error.contains(wanted), "{program}\ngives {error}\nand not {wanted}");
    }
}

#[tokio::test]
async fn due_times_of_a_closed_loop_are_those_of_the_run() {
    let said = |role: &str, line: &str| {
        format!(
            "echo ready\nread -r word start\n[ $1 != {role} ] || {{ sleep 0.01; echo \"{line}\"; }}\ncat > /dev/null"
        )
    };
    // The system's clock in place of the run's, or none.
    let early = "before the start of the run at ";
    let cases = [
        ("publisher", "P 0 0 0 $start $start", "it was due at 0, before the start of the run at "),
        ("publisher", "P 0 0 $((start - 2000000)) $start $start", early),
        ("publisher", "P 0 0 $((start + 9000000)) $start $start", "it was sent before it was due"),
        ("subscriber", "S 0 0 0 0 $start 0", "it was due at 0, before the start of the run at "),
        ("subscriber", "S 0 0 0 $((start - 2000000000)) $start 0", early),
        ("subscriber", "S 0 0 0 $((start + 2000000000)) $start 0", "it was received before it was due"),
    ];
    for (role, line, wanted) in cases {
        let mut plan = plan(&said(role, line), 1);
        plan.publishers.pace = Pace::Unlimited;
        let error = run(&plan).await.map(|_| ()).expect_err(wanted).to_string();
        let name = if role == "publisher" { "publishers" } else { "sub" };
        assert!(error.contains(wanted), "{line}\ngives {error}\nand not {wanted}");
        assert!(error.starts_with(&format!("{name}: line 2 of its program, \"{}", &line[..5])), "{error}");
    }
}

#[tokio::test]
async fn messages_that_a_program_does_not_send_are_unsent() {
    let lazy = r#"
echo ready
read -r word start
[ "$1" = subscriber ] || { sleep 0.1; echo "P 0 0 $start $start $start"; echo done; }
[ "$1" = publisher ] || { sleep 0.1; echo "S 0 0 0 $start $start 0"; }
cat > /dev/null
"#;
    let mut plan = plan(lazy, 1);
    plan.schedule.time_limit = Duration::from_millis(400);
    plan.publishers.messages = None;
    let finished = run(&plan).await.unwrap();
    assert_eq!(finished.ledger.unwrap().whole().acknowledged, 1);
    assert!(finished.outcome.unsent > 50, "{}", finished.outcome.unsent);
}

#[tokio::test]
async fn plans_that_programs_cannot_run_are_refused() {
    let refused = |change: fn(&mut Plan)| async move {
        let mut plan = plan("cat", 1);
        change(&mut plan);
        run(&plan).await.map(|_| ()).unwrap_err().to_string()
    };
    let window = refused(|plan| plan.publishers.pace = Pace::Closed { window: 5 }).await;
    assert_eq!(window, "no window of deliveries with protocol command");
    let retained = refused(|plan| plan.publishers.retain = true).await;
    assert_eq!(retained, "no retained messages with protocol command, only with MQTT");
    let nothing = refused(|plan| plan.settings.clear()).await;
    assert_eq!(nothing, "protocol command needs the setting command");
}
