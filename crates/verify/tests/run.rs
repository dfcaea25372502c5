//! Whole runs on loopback: a broker with known faults in known seconds, and the files of the results.
#![allow(clippy::print_stdout)]

#[path = "../../loadgen/tests/fake_broker/mod.rs"]
#[allow(dead_code, clippy::disallowed_methods)]
mod fake_broker;

use std::fs;
use std::ops::Range;
use std::path::Path;

use fake_broker::{Faults, Often};
use tenbin_verify::args::{Command, FileArgs, ReportArgs, RunArgs};
use tenbin_verify::judge::figure::Figure;
use tenbin_verify::results::{Event, Happening, Verdict};
use tenbin_verify::{Plan, Setup};

/// 100 messages a second from one second ahead of the measurement on: message n is due n/100 - 1 s after the warm-up.
/// The faults are a second away from the edges of their windows.
const FAULTY: Faults = Faults {
    lose: None,
    duplicate: None,
    stall: None,
    die: None,
    swallow: None,
    refuse: false,
    often: NONE,
    script: &[
        (400..500, Often { lose: Some(10), ..NONE }),
        (800..850, Often { duplicate: Some(10), ..NONE }),
        (850..900, Often { hold_back: Some(10), ..NONE }),
    ],
};

const NONE: Often = Often {
    lose: None,
    duplicate: None,
    redeliver: None,
    hold_back: None,
    give_to_all: None,
    damage: None,
    refuse: None,
    swallow: None,
    keep_ack: None,
};

fn template(broker: &str) -> String {
    format!(
        "title: Known faults\n\
         base: {{ runtime: processes }}\n\
         systems:\n  \
           b: {{ kind: mqtt, external: '{broker}' }}\n  \
           pub: {{ publishes_to: b, rate: 100, size: 100B, qos: 1 }}\n  \
           sub: {{ subscribes_to: b, qos: 1 }}\n\
         actions:\n  \
           - {{ name: losing, fault: command, command: 'true', undo: 'true', target: b, start: 2, duration: 3 }}\n  \
           - {{ name: twisting, fault: command, command: 'true', undo: 'true', target: b, start: 6, duration: 3 }}\n\
         measure: {{ time: 10, warm_up: 1s, before: 2, drain: 5 }}\n\
         assert: [ lost = 0, lost before = 0 ]\n\
         variants:\n  faulty: {{ expect: fail }}\n"
    )
}

fn setup() -> Setup {
    Setup { drivers: tenbin_loadgen::drivers::all(), program: None }
}

fn run(file: &Path, out: &Path) -> (u8, String) {
    run_and(file, out, false)
}

fn run_and(file: &Path, out: &Path, record: bool) -> (u8, String) {
    let file = FileArgs { files: vec![file.to_owned()], variant: Vec::new(), seed: Some(5), set: Vec::new() };
    let args = RunArgs { file, out: Some(out.to_owned()), repeat: None, record, allow_hosts: Vec::new() };
    let mut printed = Vec::new();
    let code = tenbin_verify::run(&Command::Run(args), &setup(), &mut printed).expect("files");
    (code, String::from_utf8(printed).expect("text"))
}

#[test]
fn each_fault_is_found_in_its_window_and_nothing_else() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, out) = (directory.path().join("known.yaml"), directory.path().join("out"));
    fs::write(&file, template(&fake_broker::start(FAULTY).to_string())).expect("a file");
    let expected = directory.path().join("expected.toml");
    fs::write(&expected, "[known]\nfaulty = []\n").expect("a file");
    let (code, printed) = run_and(&file, &out, true);
    assert_eq!(code, 0, "a failure is expected: {printed}");
    assert!(printed.contains("lost is 10, wanted = 0, as expected"), "{printed}");
    let difference = "faulty: \"lost = 0\" fails; recorded: all assertions hold";
    assert!(printed.contains(&format!("differs from expected.toml: {difference}")), "{printed}");
    assert_eq!(fs::read_to_string(&expected).expect("a file"), "[known]\nfaulty = [\"lost = 0\"]\n", "it is recorded");

    let read = |name: &str| fs::read_to_string(out.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let verdict: Verdict = serde_json::from_str(&read("verdict.json")).expect("a verdict");
    let run = &verdict.variants[0].runs[0];
    let counts = |phase: &str| {
        let figures = [Figure::Lost, Figure::Duplicated, Figure::OutOfOrder, Figure::Unconfirmed];
        figures.map(|figure| run.figures.get(&phase.parse().expect("a phase"), figure).expect("a count"))
    };
    assert_eq!(verdict.variants[0].as_recorded, Some(false));
    assert_eq!(counts(""), [10.0, 5.0, 5.0, 0.0]);
    assert_eq!(counts("before"), [0.0; 4]);
    assert_eq!(counts("during losing"), [10.0, 0.0, 0.0, 0.0]);
    assert_eq!(counts("after losing"), [0.0; 4]);
    assert_eq!(counts("during twisting"), [0.0, 5.0, 5.0, 0.0]);
    assert_eq!(counts("after twisting"), [0.0; 4]);

    let events = Event::read(read("faulty/events.jsonl").as_bytes()).expect("events");
    for step in [Happening::Begun, Happening::Ended, Happening::Undone] {
        assert_eq!(events.iter().filter(|event| event.happening == step).count(), 2, "{step:?}");
    }
    let rows = read("faulty/seconds.csv").lines().count();
    assert!(rows > 10, "{rows} rows");
    let junit = read("junit.xml");
    roxmltree::Document::parse(&junit).expect("well-formed");
    assert!(junit.contains(r#"failures="0""#) && junit.contains("an assertion fails, as expected"), "{junit}");
    let plan: Plan = serde_json::from_str(&read("faulty/plan.json")).expect("a plan");
    assert_eq!((plan.seed, plan.json()), (5, read("faulty/plan.json")));

    let page = read("report.html");
    is_self_contained(&page);
    for text in [
        "fails, as expected, not as recorded",
        "Differs from expected.toml",
        "lost is 10, wanted = 0",
        "during losing",
        "Throughput",
        "How to repeat it",
    ] {
        assert!(page.contains(text), "{text} is missing");
    }
    // The page is built from the files alone; two directories make a comparison.
    let both = directory.path().join("both.html");
    let report = ReportArgs { directories: vec![out.clone(), out], out: Some(both.clone()) };
    tenbin_verify::run(&Command::Report(report), &setup(), &mut Vec::new()).expect("a page");
    let both = fs::read_to_string(both).expect("a page");
    is_self_contained(&both);
    assert!(both.contains("comparison of known"), "{both}");
}

/// 1000 messages a second: message n is due n ms after the start, and n ms - 1 s after the warm-up. The broker loses
/// every message that is due around the begin and the end of the fault.
const AROUND_EDGES: Faults = Faults {
    script: &[(2_500..4_000, Often { lose: Some(1), ..NONE }), (4_000..6_000, Often { duplicate: Some(1), ..NONE })],
    ..FAULTY
};

#[test]
fn a_millisecond_decides_on_the_window_of_a_loss() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, out) = (directory.path().join("edges.yaml"), directory.path().join("out"));
    let broker = fake_broker::start(AROUND_EDGES);
    let text = format!(
        "base: {{ runtime: processes }}\n\
         systems:\n  \
           b: {{ kind: mqtt, external: '{broker}' }}\n  \
           pub: {{ publishes_to: b, rate: 1000, size: 100B, qos: 1 }}\n  \
           sub: {{ subscribes_to: b, qos: 1 }}\n\
         actions:\n  \
           - {{ name: edge, fault: command, command: 'true', undo: 'true', target: b, start: 2, duration: 1.5 }}\n\
         measure: {{ time: 6, warm_up: 1s, before: 1.8, drain: 5 }}\n\
         assert: [ lost = 1500, duplicated = 2000, out_of_order = 0, unconfirmed = 0 ]\n"
    );
    fs::write(&file, text).expect("a file");
    let (code, printed) = run(&file, &out);
    assert_eq!(code, 0, "{printed}");
    let read = |name: &str| fs::read_to_string(out.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let verdict: Verdict = serde_json::from_str(&read("verdict.json")).expect("a verdict");
    let run = &verdict.variants[0].runs[0];
    let events = Event::read(read("default/events.jsonl").as_bytes()).expect("events");
    let at_ns = |step: &Happening| {
        let at = events.iter().find(|event| event.happening == *step).and_then(|event| event.at);
        at.unwrap_or_else(|| panic!("{step:?}")).ns()
    };
    // Wherever in its milliseconds the fault began and ended, each message is on its side of the edge.
    let (begun, undone) = (at_ns(&Happening::Begun), at_ns(&Happening::Undone));
    let due_ns = |message: u64| message * 1_000_000 - 1_000_000_000;
    for (figure, messages) in [(Figure::Lost, 2_500..4_000), (Figure::Duplicated, 4_000..6_000)] {
        let due =
            |window: Range<u64>| messages.clone().filter(|message| window.contains(&due_ns(*message))).count() as f64;
        let found = ["before", "during edge", "after edge"]
            .map(|phase| run.figures.get(&phase.parse().expect("a phase"), figure).expect("a count"));
        let wanted = [due(begun - 1_800_000_000..begun), due(begun..undone), due(undone..u64::MAX)];
        assert_eq!(found, wanted, "{figure}: {begun} to {undone}");
        // The begin of the fault is among the losses, its end among the copies: else this test shows nothing.
        assert!(wanted.iter().filter(|count| **count > 0.0).count() > 1, "{figure}: {begun} to {undone}");
    }
}

/// Nothing outside of the file, no script, and figures that are well-formed.
fn is_self_contained(page: &str) {
    for wrong in ["http://", "https://", "<script", "src=", "url(", "@import"] {
        // The name of SVG's language is no reference.
        let page = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!page.contains(wrong), "{wrong} in the page");
    }
    for link in page.split("href=\"").skip(1) {
        assert!(link.starts_with('#'), "{}", &link[..link.len().min(60)]);
    }
    for svg in page.split("<svg").skip(1) {
        let (svg, _) = svg.split_once("</svg>").expect("an end of the figure");
        roxmltree::Document::parse(&format!("<svg{svg}</svg>")).expect("a well-formed figure");
    }
}

#[test]
fn instances_get_files_and_secrets_and_leave_results() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, out) = (directory.path().join("files.yaml"), directory.path().join("out"));
    // Cargo sets this variable for its tests.
    let secret = env!("CARGO_MANIFEST_DIR");
    let command = "cp {config}/keys/a.pem {results}/; cat {config}/settings > $TENBIN_RESULTS/seen; echo $TENBIN_CONFIGS $OWN $SECRET >> {results}/seen; exit 3";
    let text = format!(
        "base: {{ runtime: processes }}\nsystems:\n  b:\n    kind: mqtt\n    command: {command:?}\n    config: {{ password: \"${{CARGO_MANIFEST_DIR}}\" }}\n    environment: {{ OWN: \"{{config}}\", SECRET: \"${{CARGO_MANIFEST_DIR}}\" }}\n  idle: {{ kind: mqtt, command: sleep 98761, ready: {{ command: 'true' }} }}\n  p: {{ publishes_to: b, rate: 10 }}\n  s: {{ subscribes_to: b }}\nassert: [ lost = 0 ]\n"
    );
    fs::write(&file, &text).expect("a file");
    let configs = directory.path().join("configs/b/keys");
    fs::create_dir_all(&configs).expect("a directory");
    fs::write(configs.join("a.pem"), "a key").expect("a file");
    let (code, printed) = run(&file, &out);
    assert!(code == 1 && printed.contains("b ended before it was ready, by exit status: 3"), "{printed}");

    let read = |name: &str| fs::read_to_string(out.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(read("default/files/b/a.pem"), "a key");
    let seen = read("default/files/b/seen");
    let (first, second) = seen.split_once('\n').expect("two lines");
    assert_eq!(first, format!("password={secret}"));
    let words: Vec<_> = second.split_whitespace().collect();
    assert!(words.len() == 3 && words[0] == words[1] && words[2] == secret, "{seen}");
    assert!(!Path::new(words[0]).exists(), "the copies are gone");
    assert!(!out.join("default/files/idle").exists(), "it left no files");
    for name in ["template.yaml", "default/plan.json", "verdict.json", "report.html", "junit.xml"] {
        assert!(!read(name).contains(secret), "{name} has the secret");
    }
    assert!(read("default/plan.json").contains("configs/b/keys/a.pem"));
}

#[test]
fn a_run_that_cannot_start_fails_with_its_reason() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, out) = (directory.path().join("bad.yaml"), directory.path().join("out"));
    let text = "base: { runtime: processes }\nsystems:\n  b: { kind: mqtt, command: 'echo no luck; exit 3' }\n  p: { publishes_to: b, rate: 10 }\n  s: { subscribes_to: b }\nassert: [ lost = 0 ]\n";
    fs::write(&file, text).expect("a file");
    let (code, printed) = run(&file, &out);
    assert_eq!(code, 1, "{printed}");
    assert!(printed.contains("b ended before it was ready, by exit status: 3: no luck"), "{printed}");
    let page = fs::read_to_string(out.join("report.html")).expect("a page");
    assert!(page.contains("did not run") && page.contains("no luck"), "{page}");
}

#[test]
fn a_load_that_ends_before_its_time_fails() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, out) = (directory.path().join("early.yaml"), directory.path().join("out"));
    let client = directory.path().join("client");
    let lines = "echo ready\nread -r word start\necho \"P 0 0 $start $start $start\"\necho done\ncat > /dev/null\n";
    fs::write(&client, format!("[ $1 = publisher ] || {{ echo ready; exec cat > /dev/null; }}\n{lines}"))
        .expect("a file");
    let broker = fake_broker::start(FAULTY);
    // The only message never arrives: the load ends by itself after the drain, or is waited for to the end.
    for (time, drain) in [("60", "1"), ("2", "30")] {
        let text = format!(
            "base: {{ runtime: processes }}\n\
             systems:\n  \
               b: {{ kind: mqtt, external: '{broker}' }}\n  \
               pub: {{ publishes_to: b, rate: 100, qos: 1, command: sh {client} }}\n  \
               sub: {{ subscribes_to: b, qos: 1, command: sh {client} }}\n\
             actions: [ {{ fault: command, command: 'true', undo: 'true', target: b, start: 1, duration: 0.5 }} ]\n\
             measure: {{ time: {time}, warm_up: 0s, before: 0.5, drain: {drain} }}\n\
             assert: [ refused = 0 ]\n",
            client = client.display(),
        );
        fs::write(&file, text).expect("a file");
        let (code, printed) = run(&file, &out);
        assert!(code == 1 && printed.contains("pub ended "), "{code}: {printed}");
        assert!(printed.contains(" s before the end of the measurement"), "{printed}");
    }
}
