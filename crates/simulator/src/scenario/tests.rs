use super::*;
use crate::Distribution;

const LEAST: &str = "messages = 3\n[arrivals]\nfixed = \"10ms\"\n[[workers]]\nservice = \"25ms\"\n";

#[test]
fn absent_keys_have_their_defaults() {
    let scenario = Scenario::parse("least", LEAST).unwrap();
    assert_eq!((scenario.name.as_str(), scenario.qos.as_slice(), scenario.worker_count()), ("least", &[0][..], 1));
    assert_eq!(scenario.pings, Pings::default());
    let worker = &scenario.workers[0];
    assert_eq!((worker.threads.get(), worker.delay, worker.reports), (1, Span::from_ms(0.2), Reports::Honest));
}

#[test]
fn every_key_can_be_parsed() {
    let text = r#"
        messages = 3
        arrivals = { bursts = { messages = 100, every = "2s" } }
        churn = { every = "2s", dies = true }
        pings = { every = "500ms", eager = true }
        [[workers]]
        service = "25ms"
        distribution = { pareto = 1.5 }
        reports = { lie = { queue = 0, processing = "1us" } }
        acknowledges = "on_arrival"
        pauses = [{ at = "1s", for = "2s" }, { at = "3s", for = "1s" }]
        steps = [{ at = "5s", service = "200ms" }]
        joins = "1s"
        dies = "9s"
    "#;
    let scenario = Scenario::parse("all", text).unwrap();
    assert_eq!(scenario.workers[0].distribution, Distribution::Pareto(1.5));
    let lie = Reports::Lie { queue: 0, processing: Span::from_ns(1000) };
    assert_eq!((scenario.workers[0].reports, scenario.workers[0].pauses.len()), (lie, 2));
}

#[test]
fn every_habit_of_acknowledging_can_be_parsed() {
    let [messages, one] = [10, 1].map(|number| NonZeroU32::new(number).unwrap());
    let within = Some(Span::from_ms(100.0));
    let cases = [
        ("\"after_next_read\"", Acknowledges::AfterNextRead),
        ("\"completion_order\"", Acknowledges::CompletionOrder),
        ("{ batched = { messages = 10, within = \"100ms\" } }", Acknowledges::Batched { messages, within }),
        ("{ batched = { messages = 1 } }", Acknowledges::Batched { messages: one, within: None }),
    ];
    for (text, habit) in cases {
        let scenario = Scenario::parse("x", &format!("{LEAST}acknowledges = {text}\n")).unwrap();
        assert_eq!(scenario.workers[0].acknowledges, habit);
    }
}

#[test]
fn faults_name_line_and_key() {
    let cases = [
        ("colour = 1\n", "line 1: ", "colour"),
        ("qos = [2]\n", "line 1: ", "qos: is a list of 0 and 1"),
        ("seeds = 0\n", "line 1: ", "seeds"),
        ("idle = \"3 days\"\n", "line 1: ", "idle: \"3 days\" is no time"),
    ];
    for (before, line, rest) in cases {
        let error = Scenario::parse("x", &format!("{before}{LEAST}")).unwrap_err().to_string();
        assert!(error.contains(line) && error.contains(rest), "{error}");
    }
    let cases = [
        ("thread = 4\n", "line 6: ", "thread"),
        ("threads = 0\n", "line 6: ", "threads"),
        ("distribution = \"normal\"\n", "line 6: ", "normal"),
        ("distribution = { jitter = 1.5 }\n", "line 6: ", "jitter is a fraction"),
        ("jitter = 1.5\n", "line 6: ", "jitter: from 0 to 1"),
        ("threads = 2\nacknowledges = \"after_next_read\"\n", "line 7: ", "needs one thread"),
        ("acknowledges = { batched = { messages = 0 } }\n", "line 6: ", "acknowledges"),
        ("batch = 2\nthread_steps = [{ at = \"1s\", threads = 2 }]\n", "line 7: ", "has one thread"),
        ("thread_steps = [{ at = \"1s\", threads = 2 }, { at = \"1s\", threads = 1 }]\n", "line 6: ", "order of time"),
        ("leaves = \"0s\"\njoins = \"1s\"\n", "line 7: ", "joins: it has to"),
    ];
    for (after, line, rest) in cases {
        let error = Scenario::parse("x", &format!("{LEAST}{after}")).unwrap_err().to_string();
        assert!(error.contains(line) && error.contains(rest), "{error}");
    }
}
