//! Output of `tenbin-simulate families`.

use std::io::{self, Write};

use super::CLAIRVOYANT;
use crate::{chooser::Chooser, family::Family, figures::Figures, rules::Rival, runs::Case, table::number};

/// Writes geometric means of each rule's figures divided by the clairvoyant rule's, in all families and in each. Then the
/// scenarios that `adaptive` loses. `figures` has the columns of each case: the clairvoyant rule, `adaptive`, others.
pub(super) fn write(
    out: &mut dyn Write,
    families: &[Family],
    each: usize,
    cases: &[Case<'_>],
    figures: &[Vec<Figures>],
) -> io::Result<()> {
    let Some(first) = cases.first() else { return Ok(()) };
    let (qos, count) = (first.qos, cases.len());
    writeln!(out, "{count} fresh scenarios, QoS {qos}: geometric mean of (figure + 1 ms) ÷ (clairvoyant's + 1 ms)")?;
    writeln!(out, "  {:<26}{:>8}{:>8}{:>13}{:>8}", "", "waiting", "p99", "sojourn p99", "undone")?;
    for (column, chooser) in first.choosers.iter().enumerate() {
        let mean = |of: Figure| geometric_mean(figures.iter().map(|case| ratio(of, &case[column], &case[0])));
        let undone: u64 = figures.iter().map(|case| case[column].unfinished).sum();
        write!(out, "  {:<26}", chooser.name())?;
        writeln!(out, "{:>8.2}{:>8.2}{:>13.2}{undone:>8}", mean(waiting), mean(waiting_p99), mean(sojourn_p99))?;
    }
    writeln!(out, "\nby family: waiting, and p99 of it")?;
    for (family, figures) in families.iter().zip(figures.chunks(each)) {
        write!(out, "  {:<18}", family.name())?;
        for (column, chooser) in first.choosers.iter().enumerate().skip(1) {
            let mean = |of: Figure| geometric_mean(figures.iter().map(|case| ratio(of, &case[column], &case[0])));
            write!(out, " {} {:.2}/{:.1}", short(*chooser), mean(waiting), mean(waiting_p99))?;
        }
        writeln!(out)?;
    }
    write_losses(out, cases, figures)
}

/// Lists the scenarios in which a rival waits less than `adaptive` by more than 5 %.
fn write_losses(out: &mut dyn Write, cases: &[Case<'_>], figures: &[Vec<Figures>]) -> io::Result<()> {
    let mut losses = Vec::new();
    for (case, figures) in cases.iter().zip(figures) {
        let rivals = case.choosers.iter().zip(figures).skip(2).filter(|(chooser, _)| is_rival(**chooser));
        let best = rivals.min_by(|a, b| waiting(a.1).total_cmp(&waiting(b.1)));
        let Some((best, of_best)) = best else { return Ok(()) };
        let ratio = ratio(waiting, &figures[1], of_best);
        if ratio > 1.0 + super::super::report::MARGIN {
            losses.push((ratio, case, best, waiting(&figures[1]), waiting(of_best)));
        }
    }
    losses.sort_by(|a, b| b.0.total_cmp(&a.0));
    writeln!(
        out,
        "\nadaptive loses to the best of its rivals by more than 5 % in {} of {}",
        losses.len(),
        cases.len()
    )?;
    for (ratio, case, best, mine, its) in losses {
        let (name, about) = (&case.scenario.name, &case.scenario.about);
        writeln!(out, "  {ratio:.2}: {name}: {} against {} ms of {best}; {about}", number(mine), number(its))?;
    }
    Ok(())
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

/// The first four letters of the name.
fn short(chooser: Chooser) -> &'static str {
    let name = chooser.name();
    name.get(..4).unwrap_or(name)
}
