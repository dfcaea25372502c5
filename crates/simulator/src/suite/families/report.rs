//! Output of `tenbin-simulate families`.

use std::io::{self, Write};

use super::CLAIRVOYANT;
use crate::{
    chooser::Chooser, family::Family, figures::Figures, rules::Rival, runs::Case, scenario::Scenario,
    suite::report::MARGIN, table::number,
};

/// What `tenbin-simulate families` has run.
pub(super) struct Tables<'a> {
    /// Families, each with the same number of cases.
    pub(super) families: &'a [Family],
    /// By family: whether its workers tell their concurrency.
    pub(super) told: &'a [bool],
    /// Scenarios in the order of families.
    pub(super) cases: &'a [Case<'a>],
    /// Columns of each case: the clairvoyant rule, `adaptive`, others.
    pub(super) figures: &'a [Vec<Figures>],
    /// `adaptive` in each case with workers that tell nothing instead of their concurrency, or the reverse.
    pub(super) others: &'a [Vec<Figures>],
}

impl Tables<'_> {
    /// Writes geometric means of each rule's figures divided by the clairvoyant rule's, in all families and in each. Then
    /// what telling the concurrency changes, and the scenarios that `adaptive` loses.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(first) = self.cases.first() else { return Ok(()) };
        let (qos, count) = (first.qos, self.cases.len());
        writeln!(
            out,
            "{count} fresh scenarios, QoS {qos}: geometric mean of (figure + 1 ms) ÷ (clairvoyant's + 1 ms)"
        )?;
        writeln!(out, "  {:<32}{:>8}{:>8}{:>13}{:>8}", "", "waiting", "p99", "sojourn p99", "undone")?;
        for (column, chooser) in first.choosers.iter().enumerate() {
            let mean = |of: Figure| mean_of(of, self.figures, column);
            let undone: u64 = self.figures.iter().map(|case| case[column].unfinished).sum();
            let (name, short) = (chooser.name(), short(*chooser));
            let name = if short == name { short } else { format!("{name} ({short})") };
            write!(out, "  {name:<32}")?;
            writeln!(out, "{:>8.2}{:>8.2}{:>13.2}{undone:>8}", mean(waiting), mean(waiting_p99), mean(sojourn_p99))?;
        }
        self.write_families(out, &first.choosers)?;
        self.write_told(out)?;
        self.write_losses(out)
    }

    /// Number of cases of a family.
    fn each(&self) -> usize {
        self.cases.len() / self.families.len().max(1)
    }

    fn write_families(&self, out: &mut dyn Write, choosers: &[Chooser]) -> io::Result<()> {
        writeln!(out, "\nby family: waiting and p99 of it, and scenarios that adaptive loses")?;
        write!(out, "  {:<18}{:>5}", "", "lost")?;
        for chooser in &choosers[1..] {
            write!(out, "{:>14}", short(*chooser))?;
        }
        writeln!(out)?;
        let chunks = self.cases.chunks(self.each()).zip(self.figures.chunks(self.each()));
        for (family, (cases, figures)) in self.families.iter().zip(chunks) {
            let lost = cases.iter().zip(figures).filter_map(|(case, figures)| loss(case, figures)).count();
            write!(out, "  {:<18}{lost:>5}", family.name())?;
            for column in 1..choosers.len() {
                let [mean, p99] = [waiting, waiting_p99].map(|of| mean_of(of, figures, column));
                write!(out, "{:>14}", format!("{} / {}", precise(mean), precise(p99)))?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    /// Writes what telling the concurrency changes for `adaptive`.
    fn write_told(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\nadaptive, concurrency told ÷ not told: waiting, p99, and the worst scenario")?;
        let chunks = self.figures.chunks(self.each()).zip(self.others.chunks(self.each()));
        for ((family, is_told), (figures, others)) in self.families.iter().zip(self.told).zip(chunks) {
            let ratios = |of: Figure| {
                let pairs = figures.iter().zip(others).map(move |(figures, other)| ratio(of, &figures[1], &other[0]));
                pairs.map(|ratio| if *is_told { ratio } else { 1.0 / ratio })
            };
            let [mean, p99] = [waiting, waiting_p99].map(|of| geometric_mean(ratios(of)));
            let worst = ratios(waiting).fold(0.0, f64::max);
            let verdict = if mean > 1.0 + MARGIN { "   worse" } else { "" };
            writeln!(out, "  {:<18}{mean:>7.2}{p99:>7.2}{worst:>9.2}{verdict}", family.name())?;
        }
        Ok(())
    }

    /// Lists the scenarios in which a rival waits less than `adaptive` by more than 5 %.
    fn write_losses(&self, out: &mut dyn Write) -> io::Result<()> {
        let has_rival = self.cases.iter().any(|case| case.choosers.iter().skip(2).any(|&chooser| is_rival(chooser)));
        if !has_rival {
            return Ok(());
        }
        let pairs = self.cases.iter().zip(self.figures);
        let mut losses: Vec<_> = pairs.filter_map(|(case, figures)| loss(case, figures)).collect();
        losses.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
        writeln!(
            out,
            "\nadaptive loses to the best of its rivals by more than 5 % in {} of {}",
            losses.len(),
            self.cases.len()
        )?;
        for Loss { ratio, scenario, best, mine_ms, its_ms } in losses {
            let (name, about) = (&scenario.name, &scenario.about);
            writeln!(
                out,
                "  {ratio:.2}: {name}: {} against {} ms of {best}; {about}",
                number(mine_ms),
                number(its_ms)
            )?;
        }
        Ok(())
    }
}

/// A scenario in which a rival waits less than `adaptive`.
struct Loss<'a> {
    ratio: f64,
    scenario: &'a Scenario,
    best: Chooser,
    mine_ms: f64,
    its_ms: f64,
}

/// Whether `adaptive` waits longer than the best of its rivals, by more than 5 %.
fn loss<'a>(case: &Case<'a>, figures: &[Figures]) -> Option<Loss<'a>> {
    let rivals = case.choosers.iter().zip(figures).skip(2).filter(|(chooser, _)| is_rival(**chooser));
    let (&best, of_best) = rivals.min_by(|a, b| waiting(a.1).total_cmp(&waiting(b.1)))?;
    let ratio = ratio(waiting, &figures[1], of_best);
    let (mine_ms, its_ms) = (waiting(&figures[1]), waiting(of_best));
    (ratio > 1.0 + MARGIN).then_some(Loss { ratio, scenario: case.scenario, best, mine_ms, its_ms })
}

/// Geometric mean of a rule's figure divided by the clairvoyant rule's.
fn mean_of(of: Figure, figures: &[Vec<Figures>], column: usize) -> f64 {
    geometric_mean(figures.iter().map(|case| ratio(of, &case[column], &case[0])))
}

/// Whether a broker could choose by this rule, and it is not `adaptive` itself.
fn is_rival(chooser: Chooser) -> bool {
    ![CLAIRVOYANT, Chooser::CentralQueue, Chooser::Rival(Rival::EarlyBinding)].contains(&chooser)
}

type Figure = fn(&Figures) -> f64;

fn waiting(figures: &Figures) -> f64 {
    figures.waiting.mean_ms()
}

fn waiting_p99(figures: &Figures) -> f64 {
    figures.waiting.quantile_ms(0.99)
}

fn sojourn_p99(figures: &Figures) -> f64 {
    figures.sojourn.quantile_ms(0.99)
}

/// A millisecond is added to both, so that waits of almost nothing do not decide.
fn ratio(of: Figure, figures: &Figures, other: &Figures) -> f64 {
    (of(figures) + 1.0) / (of(other) + 1.0)
}

fn geometric_mean(ratios: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = ratios.fold((0.0, 0u32), |(sum, count), ratio| (sum + ratio.ln(), count + 1));
    (sum / f64::from(count.max(1))).exp()
}

/// Two decimal places below 10.
fn precise(ratio: f64) -> String {
    if ratio < 9.995 { format!("{ratio:.2}") } else { number(ratio) }
}

/// The name, or its initials if it is long.
fn short(chooser: Chooser) -> String {
    let name = chooser.name();
    if name.len() < 10 { name.to_owned() } else { name.split('_').filter_map(|word| word.chars().next()).collect() }
}
