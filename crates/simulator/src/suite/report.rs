//! Output of the suite.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::Judged;
use crate::{figures::Figures, runs::Case, table::number};

/// A line for each case: mean and p99 of the waiting time under each policy.
pub(super) fn write_overview(out: &mut dyn Write, cases: &[Case<'_>], figures: &[Vec<Figures>]) -> io::Result<()> {
    let Some(first) = cases.first() else { return Ok(()) };
    writeln!(out, "waiting time, ms: mean / p99")?;
    write!(out, "  {:<30} {:>3}", "", "QoS")?;
    for chooser in &first.choosers {
        write!(out, "{:>21}", chooser.name())?;
    }
    writeln!(out)?;
    for (case, figures) in cases.iter().zip(figures) {
        write!(out, "  {:<30} {:>3}", case.scenario.name, case.qos)?;
        for figures in figures {
            let (mean, p99) = (figures.waiting.mean_ms(), figures.waiting.quantile_ms(0.99));
            write!(out, "{:>21}", format!("{} / {}", number(mean), number(p99)))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// A line for each goal.
pub(super) fn write_goals(out: &mut dyn Write, judged: &[Judged]) -> io::Result<()> {
    let met = judged.iter().filter(|judged| judged.is_met()).count();
    writeln!(out, "\ngoals of {}: {met} of {} met", super::ADAPTIVE, judged.len())?;
    for judged in judged {
        let goal = judged.goal;
        let verdict = if judged.is_met() {
            "met".to_owned()
        } else {
            format!("missed by {:.0} %", 100.0 * (judged.value / goal.at_most - 1.0))
        };
        writeln!(
            out,
            "  {:<30} {:>3}  {:<26}{:>9} <= {:<7} {verdict}",
            goal.scenario,
            goal.qos,
            goal.figure.name(),
            number(judged.value),
            goal.at_most,
        )?;
    }
    Ok(())
}

/// The goals as JSON.
pub(super) fn goals_json(judged: &[Judged]) -> Value {
    let goal = |judged: &Judged| {
        json!({
            "scenario": judged.goal.scenario,
            "qos": judged.goal.qos,
            "figure": judged.goal.figure.name(),
            "at_most": judged.goal.at_most,
            "value": judged.value,
            "is_met": judged.is_met(),
        })
    };
    judged.iter().map(goal).collect()
}

/// Comparison of `adaptive` with the thesis' score in random scenarios, and where it is worse.
pub(super) fn write_random(out: &mut dyn Write, cases: &[Case<'_>], figures: &[Vec<Figures>]) -> io::Result<()> {
    if cases.is_empty() {
        return Ok(());
    }
    let ratios: Vec<_> = figures.iter().map(|of| of[0].waiting.mean_ms() / of[1].waiting.mean_ms()).collect();
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let wins = ratios.iter().filter(|&&ratio| ratio < 1.0 - MARGIN).count();
    let mut losses: Vec<_> = (0..cases.len()).filter(|&index| ratios[index] > 1.0 + MARGIN).collect();
    losses.sort_by(|&a, &b| ratios[b].total_cmp(&ratios[a]));
    writeln!(
        out,
        "\n{} random scenarios, QoS 0: mean waiting {mean:.3} of thesis_score's (geometric mean); better by more than \
         5 % in {wins}, worse in {}",
        cases.len(),
        losses.len(),
    )?;
    for index in losses {
        let (case, of) = (&cases[index], &figures[index]);
        let (mine, thesis) = (of[0].waiting.mean_ms(), of[1].waiting.mean_ms());
        let (name, about) = (&case.scenario.name, &case.scenario.about);
        writeln!(out, "  {:.2}: {name}: {} against {} ms; {about}", ratios[index], number(mine), number(thesis))?;
    }
    Ok(())
}

/// Relative difference that counts as better or worse.
pub(super) const MARGIN: f64 = 0.05;
