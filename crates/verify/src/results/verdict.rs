//! `verdict.json`: the judgement of all variants and runs.

use serde::{Deserialize, Serialize};

use crate::judge::assertion::{Assertion, Check};
use crate::judge::measured::Figures;
use crate::judge::windows::{Phase, Window};
use crate::template::Expect;
use crate::units::Time;

/// Judgement of a verification; the content of `verdict.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// Version of this format; 1.
    pub format: u32,
    /// Name of the verification.
    pub name: String,
    /// One line about it.
    pub title: Option<String>,
    /// True if each variant ended as it should.
    pub as_expected: bool,
    /// Exit code of the command: 0, 1 or 3.
    pub exit_code: u8,
    /// Variants, in the order of the file.
    pub variants: Vec<VariantVerdict>,
}

/// Judgement of a variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct VariantVerdict {
    /// Name of the variant.
    pub name: String,
    /// Wanted outcome.
    pub expect: Expect,
    /// True if every assertion holds in every run, and each run took place.
    pub holds: bool,
    /// True if the outcome is the wanted one.
    pub as_expected: bool,
    /// Runs, in their order.
    pub runs: Vec<RunVerdict>,
    /// Medians of the runs' figures. Units: numbers, seconds, messages a second, bytes a second.
    pub medians: Figures,
    /// Assertions that fail by `expected.toml`; null if it has no outcome of this variant.
    #[cfg_attr(test, schemars(with = "Option<Vec<String>>"))]
    pub recorded: Option<Vec<Assertion>>,
    /// True if the same assertions fail as recorded; null without a record, or if a run did not take place.
    pub as_recorded: Option<bool>,
    /// Values that others published, as text: `received_bytes before = 10.217 MB/s`.
    #[cfg_attr(test, schemars(with = "Vec<String>"))]
    pub published: Vec<Assertion>,
}

/// Judgement of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RunVerdict {
    /// Number of the run, from 1.
    pub number: u32,
    /// Seed of its choices.
    pub seed: u64,
    /// Reason why it did not take place, or why it ended early.
    pub error: Option<String>,
    /// Changes that could not be undone.
    pub not_undone: Vec<String>,
    /// Processor time of all clients, and of this program while it ran them.
    pub load_cpu_seconds: Option<f64>,
    /// Notes, such as a system that never became steady.
    pub notes: Vec<String>,
    /// Phases by the actual times of the faults.
    pub phases: Vec<PhaseTime>,
    /// Figures by phase. Units: numbers, seconds, messages a second, bytes a second.
    pub figures: Figures,
    /// Assertions and their results, in the order of the file.
    pub checks: Vec<Check>,
}

/// One stretch of a phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PhaseTime {
    /// The phase: `whole run`, `before`, `during NAME` or `after NAME`.
    #[cfg_attr(test, schemars(with = "String"))]
    pub phase: Phase,
    /// Begin, in seconds after the warm-up.
    #[cfg_attr(test, schemars(with = "f64"))]
    pub from: Time,
    /// End, in seconds after the warm-up.
    #[cfg_attr(test, schemars(with = "f64"))]
    pub to: Time,
}

impl Verdict {
    /// The verdict of `variants`.
    pub fn new(name: &str, title: Option<String>, variants: Vec<VariantVerdict>) -> Self {
        let as_expected = variants.iter().all(|variant| variant.as_expected);
        let is_left = variants.iter().flat_map(|variant| &variant.runs).any(|run| !run.not_undone.is_empty());
        let exit_code = if is_left { 3 } else { u8::from(!as_expected) };
        Self { format: 1, name: name.to_owned(), title, as_expected, exit_code, variants }
    }

    /// Content of `verdict.json`.
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a verdict has no maps with other keys than text");
        text.push('\n');
        text
    }
}

impl VariantVerdict {
    /// The verdict of `runs`. A run that did not take place is never an expected failure.
    pub fn new(name: &str, expect: Expect, runs: Vec<RunVerdict>, published: Vec<Assertion>) -> Self {
        let took_place = all_took_place(&runs);
        let holds = took_place && runs.iter().all(RunVerdict::holds);
        let as_expected = match expect {
            Expect::Pass => holds,
            Expect::Fail => took_place && !holds,
        };
        let figures: Vec<_> = runs.iter().map(|run| run.figures.clone()).collect();
        let medians = Figures::medians(&figures);
        let (name, recorded, as_recorded) = (name.to_owned(), None, None);
        Self { name, expect, holds, as_expected, runs, medians, recorded, as_recorded, published }
    }

    /// The same verdict, compared with the failing assertions of a record.
    #[must_use]
    pub fn compared(mut self, recorded: Option<&[Assertion]>) -> Self {
        let failing = self.failing();
        let is_same = |recorded: &[Assertion]| {
            recorded.len() == failing.len() && recorded.iter().all(|assertion| failing.contains(assertion))
        };
        self.as_recorded = recorded.map(is_same).filter(|_| self.took_place());
        self.recorded = recorded.map(<[Assertion]>::to_vec);
        self
    }

    /// True if there are runs, and each took place.
    pub fn took_place(&self) -> bool {
        all_took_place(&self.runs)
    }

    /// Assertions that fail in a run, each once.
    pub fn failing(&self) -> Vec<Assertion> {
        let mut failing: Vec<Assertion> = Vec::new();
        for check in self.runs.iter().flat_map(|run| &run.checks).filter(|check| !check.holds) {
            if !failing.contains(&check.assertion) {
                failing.push(check.assertion.clone());
            }
        }
        failing
    }

    /// Difference to the record in words, if there is one.
    pub fn difference(&self) -> Option<String> {
        let recorded = self.recorded.as_ref().filter(|_| self.as_recorded == Some(false))?;
        let text = |failing: &[Assertion]| match failing {
            [] => "all assertions hold".to_owned(),
            failing => {
                let texts: Vec<_> = failing.iter().map(|assertion| format!("{:?}", assertion.to_string())).collect();
                format!("{} fails", texts.join(", "))
            }
        };
        Some(format!("{}: {}; recorded: {}", self.name, text(&self.failing()), text(recorded)))
    }
}

fn all_took_place(runs: &[RunVerdict]) -> bool {
    !runs.is_empty() && runs.iter().all(|run| run.error.is_none())
}

impl RunVerdict {
    /// The verdict of a run with these figures.
    pub fn new(number: u32, seed: u64, windows: &[Window], figures: Figures, assertions: &[Assertion]) -> Self {
        let checks = assertions.iter().map(|assertion| assertion.check(&figures)).collect();
        let phases = windows.iter().flat_map(|window| {
            let time = |time: &std::ops::Range<Time>| PhaseTime {
                phase: window.phase.clone(),
                from: time.start,
                to: time.end,
            };
            window.times.iter().map(time)
        });
        let phases = phases.collect();
        Self {
            number,
            seed,
            error: None,
            not_undone: Vec::new(),
            load_cpu_seconds: None,
            notes: Vec::new(),
            phases,
            figures,
            checks,
        }
    }

    /// The verdict of a run that did not take place: every assertion fails.
    pub fn failed(number: u32, seed: u64, error: String, assertions: &[Assertion]) -> Self {
        Self { error: Some(error), ..Self::new(number, seed, &[], Figures::default(), assertions) }
    }

    /// True if it took place and every assertion holds.
    pub fn holds(&self) -> bool {
        self.error.is_none() && self.checks.iter().all(|check| check.holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::figure::Figure;
    use crate::judge::windows::{Effect, windows};

    fn run(number: u32, lost: f64) -> RunVerdict {
        let effect = Effect { action: "kill".to_owned(), begin: Time::from_secs(20), end: Time::from_secs(25) };
        let windows = windows(&[effect], Time::from_secs(10), Time::from_secs(40));
        let mut figures = Figures::default();
        figures.set(Phase::Whole, Figure::Lost, lost);
        figures.set(Phase::After("kill".to_owned()), Figure::P99, 0.25);
        RunVerdict::new(number, 1, &windows, figures, &["lost = 0".parse().unwrap()])
    }

    fn variant(expect: Expect, runs: Vec<RunVerdict>) -> VariantVerdict {
        VariantVerdict::new("plain", expect, runs, vec!["received_bytes before = 10 MB/s".parse().unwrap()])
    }

    #[test]
    fn every_assertion_must_hold_in_every_run() {
        let good = variant(Expect::Pass, vec![run(1, 0.0), run(2, 0.0)]);
        assert!(good.holds && good.as_expected);
        let one_bad = variant(Expect::Pass, vec![run(1, 0.0), run(2, 4.0), run(3, 8.0)]);
        assert!(!one_bad.holds && !one_bad.as_expected);
        assert_eq!(one_bad.medians.get(&Phase::Whole, Figure::Lost), Some(4.0));
        assert_eq!(Verdict::new("x", None, vec![good, one_bad]).exit_code, 1);
    }

    #[test]
    fn an_expected_failure_must_fail_and_take_place() {
        assert!(variant(Expect::Fail, vec![run(1, 9.0)]).as_expected);
        assert!(!variant(Expect::Fail, vec![run(1, 0.0)]).as_expected, "nothing was lost");
        let failed = RunVerdict::failed(1, 1, "mosquitto is not installed".to_owned(), &["lost = 0".parse().unwrap()]);
        assert!(!failed.checks[0].holds);
        assert!(!variant(Expect::Fail, vec![failed.clone()]).as_expected, "it did not run");
        assert!(!variant(Expect::Pass, vec![failed]).as_expected);
        assert!(!variant(Expect::Pass, vec![]).as_expected, "no run at all");
    }

    #[test]
    fn a_record_is_compared_by_the_failing_assertions() {
        let lost: [Assertion; 1] = ["lost = 0".parse().unwrap()];
        let bad = || variant(Expect::Fail, vec![run(1, 0.0), run(2, 4.0)]);
        let good = || variant(Expect::Pass, vec![run(1, 0.0)]);
        let same = |verdict: VariantVerdict, recorded: &[Assertion]| verdict.compared(Some(recorded)).as_recorded;
        assert_eq!((same(bad(), &lost), same(good(), &[])), (Some(true), Some(true)));
        assert_eq!((same(bad(), &[]), same(good(), &lost)), (Some(false), Some(false)));
        let other = bad().compared(Some(&[]));
        assert_eq!(other.difference().unwrap(), "plain: \"lost = 0\" fails; recorded: all assertions hold");
        assert_eq!(bad().compared(None).as_recorded, None);
        let failed = RunVerdict::failed(1, 1, "mosquitto is not installed".to_owned(), &lost);
        let failed = variant(Expect::Pass, vec![failed]).compared(Some(&lost));
        assert_eq!((failed.as_recorded, failed.difference()), (None, None), "it did not run");
    }

    #[test]
    fn a_change_that_is_left_behind_has_its_own_exit_code() {
        let left = RunVerdict { not_undone: vec!["container x".to_owned()], ..run(1, 0.0) };
        assert_eq!(Verdict::new("x", None, vec![variant(Expect::Pass, vec![left])]).exit_code, 3);
        assert_eq!(Verdict::new("x", None, vec![variant(Expect::Pass, vec![run(1, 0.0)])]).exit_code, 0);
    }

    #[test]
    fn verdicts_survive_json() {
        let failed = RunVerdict::failed(2, 1, "no".to_owned(), &[]);
        let verdict = Verdict::new("x", Some("t".to_owned()), vec![variant(Expect::Pass, vec![run(1, 3.0), failed])]);
        assert_eq!(serde_json::from_str::<Verdict>(&verdict.json()).unwrap(), verdict);
    }

    /// Writes the schema anew with `TENBIN_WRITE_SCHEMA=1`.
    #[test]
    fn the_documented_schema_is_that_of_the_types() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/verify-verdict.schema.json");
        let schema = schemars::schema_for!(Verdict);
        let mut text = serde_json::to_string_pretty(&schema).unwrap();
        text.push('\n');
        if std::env::var_os("TENBIN_WRITE_SCHEMA").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        let documented = std::fs::read_to_string(path).unwrap_or_default();
        assert!(documented == text, "docs/verify-verdict.schema.json differs; TENBIN_WRITE_SCHEMA=1 writes it");
    }
}
