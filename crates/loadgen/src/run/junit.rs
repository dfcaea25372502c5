//! JUnit report, for CI servers.

use std::io::{self, Write};

use super::Outcome;
use super::assertion::{Assertion, Check};
use super::figure::Figure;
use crate::LoadgenError;
use crate::report::escape;

/// Writes a test case for each of `checks`; without any, one for each kind of fault that the run can detect.
pub(crate) fn write(out: &mut dyn Write, outcome: &Outcome, checks: &[Check]) -> io::Result<()> {
    let of_verdict;
    let checks = match checks {
        [] => {
            of_verdict = faults(outcome)
                .map(|assertion| assertion.check(outcome))
                .filter(|check| check.value.is_some())
                .collect::<Vec<_>>();
            of_verdict.as_slice()
        }
        checks => checks,
    };
    let class = class_name(outcome);
    let case = |check: &Check| TestCase {
        class: class.clone(),
        name: check.assertion.to_string(),
        seconds: outcome.seconds,
        fault: (!check.holds).then(|| Fault::Failure(check.found())),
    };
    let suite = TestSuite {
        name: SUITE.to_owned(),
        cases: checks.iter().map(case).collect(),
        seconds: outcome.seconds,
        output: outcome.notes.join("\n"),
    };
    suite.write(out)
}

/// Results of checks, for a JUnit report.
#[derive(Debug, Clone, Default)]
pub struct TestSuite {
    /// Its name.
    pub name: String,
    /// A test case for each check.
    pub cases: Vec<TestCase>,
    /// How long all checks took together, in seconds.
    pub seconds: f64,
    /// Text for readers, as the notes of a run.
    pub output: String,
}

/// Result of one check.
#[derive(Debug, Clone, Default)]
pub struct TestCase {
    /// Its group: names with dots between them.
    pub class: String,
    /// Its name.
    pub name: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// `None` if the check holds.
    pub fault: Option<Fault>,
}

/// Why a check does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It failed; the text has the found and the wanted value.
    Failure(String),
    /// It could not be made.
    Error(String),
}

impl TestSuite {
    /// Writes the suite as a JUnit report.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let count = |is_so: fn(&Fault) -> bool| {
            self.cases.iter().filter_map(|case| case.fault.as_ref()).filter(|fault| is_so(fault)).count()
        };
        let failures = count(|fault| matches!(fault, Fault::Failure(_)));
        let errors = count(|fault| matches!(fault, Fault::Error(_)));
        let (name, tests, seconds) = (escape(&self.name), self.cases.len(), self.seconds);
        let in_total = if errors > 0 { format!(r#" errors="{errors}""#) } else { String::new() };
        writeln!(out, r#"<?xml version="1.0" encoding="UTF-8"?>"#)?;
        writeln!(out, r#"<testsuites tests="{tests}" failures="{failures}"{in_total} time="{seconds:.3}">"#)?;
        writeln!(
            out,
            r#"  <testsuite name="{name}" tests="{tests}" failures="{failures}" errors="{errors}" skipped="0" time="{seconds:.3}">"#
        )?;
        for case in &self.cases {
            case.write(out)?;
        }
        writeln!(out, "    <system-out>{}</system-out>", escape(&self.output))?;
        writeln!(out, "  </testsuite>\n</testsuites>")
    }
}

impl TestCase {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let (class, name, seconds) = (escape(&self.class), escape(&self.name), self.seconds);
        write!(out, r#"    <testcase classname="{class}" name="{name}" time="{seconds:.3}""#)?;
        let (element, kind, text) = match &self.fault {
            None => return writeln!(out, "/>"),
            Some(Fault::Failure(text)) => ("failure", "assertion", escape(text)),
            Some(Fault::Error(text)) => ("error", "run", escape(text)),
        };
        writeln!(out, ">\n      <{element} type=\"{kind}\" message=\"{text}\">{text}</{element}>\n    </testcase>")
    }
}

/// Writes a single test case for a run that ended with `error`.
pub(crate) fn write_error(out: &mut dyn Write, error: &LoadgenError) -> io::Result<()> {
    let (class, name) = ("loadgen.run".to_owned(), "the run".to_owned());
    let case = TestCase { class, name, fault: Some(Fault::Error(error.to_string())), ..TestCase::default() };
    TestSuite { name: SUITE.to_owned(), cases: vec![case], ..TestSuite::default() }.write(out)
}

/// Assertions that a broker made no fault. At QoS 1 and 2 it may deliver a message again, but with the DUP flag.
fn faults(outcome: &Outcome) -> impl Iterator<Item = Assertion> {
    let ours = if outcome.gives_messages_up() { None } else { Some("unacknowledged") };
    FAULTS
        .into_iter()
        .chain(ours)
        .map(|name| Assertion::equal(Figure::find(name).expect("a figure that there is"), 0.0))
}

const SUITE: &str = "tenbin-loadgen run";

const FAULTS: [&str; 8] =
    ["lost", "duplicated_unmarked", "to_another_member", "out_of_order", "foreign", "wrong", "not_taken", "unsent"];

/// `loadgen.run.BROKER`, without dots in the broker's name, which would begin another package.
fn class_name(outcome: &Outcome) -> String {
    let names: Vec<_> = outcome.plan.brokers.iter().map(|broker| broker.name.replace('.', "_")).collect();
    format!("loadgen.run.{}", names.join("+"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::run::assertion::Assertions;
    use crate::run::{CutWhose, Cuts, sample};

    fn report(outcome: &Outcome, assertions: &str) -> String {
        let checks = assertions.parse::<Assertions>().map(|assertions| assertions.check(outcome)).unwrap_or_default();
        let mut out = Vec::new();
        write(&mut out, outcome, &checks).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn suite_of_another_program_counts_failures_and_errors() {
        let case = |name: &str, fault| TestCase { class: "verify.kill".into(), name: name.into(), seconds: 1.5, fault };
        let cases = vec![
            case("lost = 0", None),
            case("p99 < 1 s", Some(Fault::Failure("2 s".into()))),
            case("the run", Some(Fault::Error("a < b".into()))),
        ];
        let suite = TestSuite { name: "verify".into(), cases, seconds: 3.0, output: String::new() };
        let mut out = Vec::new();
        suite.write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let document = roxmltree::Document::parse(&text).unwrap();
        let suite = document.root_element().first_element_child().unwrap();
        assert_eq!(
            ["tests", "failures", "errors"].map(|name| suite.attribute(name)),
            [Some("3"), Some("1"), Some("1")]
        );
        let error = suite.descendants().find(|node| node.has_tag_name("error")).unwrap();
        assert_eq!(error.attribute("message"), Some("a < b"));
    }

    #[test]
    fn each_assertion_is_a_test_case_and_a_failure_says_why() {
        let text = report(&sample::outcome(), "lost=0,p50<1s");
        let document = roxmltree::Document::parse(&text).unwrap();
        let suite = document.root_element().first_element_child().unwrap();
        assert_eq!((suite.attribute("tests"), suite.attribute("failures")), (Some("2"), Some("1")));
        let cases: Vec<_> = suite.children().filter(|node| node.has_tag_name("testcase")).collect();
        let names: Vec<_> = cases.iter().filter_map(|case| case.attribute("name")).collect();
        assert_eq!(names, ["lost = 0", "p50 < 1000 ms"]);
        let failures: Vec<_> = document.descendants().filter(|node| node.has_tag_name("failure")).collect();
        let [failure] = failures.as_slice() else { panic!("one failure: {text}") };
        assert_eq!(failure.attribute("message"), Some("lost = 3, wanted = 0"));
        assert_eq!(failure.parent().and_then(|case| case.attribute("name")), Some("lost = 0"));
    }

    #[test]
    fn each_fault_kind_is_a_test_case_without_assertions() {
        let text = report(&sample::outcome(), "");
        let document = roxmltree::Document::parse(&text).unwrap();
        let cases: Vec<_> = document.descendants().filter(|node| node.has_tag_name("testcase")).collect();
        assert_eq!(cases.len(), 9);
        let failed: Vec<_> =
            cases.iter().filter(|case| case.has_children()).filter_map(|case| case.attribute("name")).collect();
        assert_eq!(failed, ["lost = 0", "out_of_order = 0"]);
    }

    #[test]
    fn undetectable_fault_kinds_have_no_test_case() {
        let names = |outcome: &Outcome| {
            let text = report(outcome, "");
            let document = roxmltree::Document::parse(&text).unwrap();
            let cases = document.descendants().filter_map(|node| node.attribute("name")?.strip_suffix(" = 0"));
            cases.map(str::to_owned).collect::<Vec<_>>()
        };
        let mut outcome = sample::outcome();
        outcome.verdict.exact = false;
        assert_eq!(
            names(&outcome),
            ["lost", "duplicated_unmarked", "foreign", "not_taken", "unsent", "unacknowledged"]
        );
        outcome.plan.publishers.count = 0;
        assert_eq!(names(&outcome), ["foreign", "not_taken", "unsent", "unacknowledged"]);
    }

    #[test]
    fn unacknowledged_is_a_fault_unless_the_run_cut_it() {
        let mut outcome = Outcome { unacknowledged: 1, not_taken: 2, ..sample::outcome() };
        let text = report(&outcome, "");
        assert!(
            text.contains("unacknowledged = 1, wanted = 0") && text.contains("not_taken = 2, wanted = 0"),
            "{text}"
        );

        let (every, away) = (Duration::from_secs(1), Duration::ZERO);
        outcome.plan.cuts = Some(Cuts { whose: CutWhose::Publishers, every, away });
        assert!(!report(&outcome, "").contains("unacknowledged"), "they went with their sessions");
        outcome.plan.publishers.qos = 1;
        outcome.plan.connection.session_expiry = Some(Duration::from_secs(60));
        assert!(report(&outcome, "").contains("unacknowledged = 1"), "they were to be sent again");
    }

    #[test]
    fn names_and_notes_may_hold_anything() {
        let mut outcome = sample::outcome();
        let strange = "a\"<&>'\u{1}\u{ffff}\n\té";
        outcome.plan.brokers[0].name = strange.to_owned();
        outcome.notes = vec![strange.to_owned()];
        let text = report(&outcome, "lost=0");
        let document = roxmltree::Document::parse(&text).unwrap();
        let expected = "a\"<&>'\u{fffd}\u{fffd}\n\té";
        let note = document.descendants().find(|node| node.has_tag_name("system-out")).unwrap();
        assert_eq!(note.text(), Some(expected));
        let case = document.descendants().find(|node| node.has_tag_name("testcase")).unwrap();
        assert_eq!(case.attribute("classname"), Some(format!("loadgen.run.{expected}").as_str()));
    }
}
