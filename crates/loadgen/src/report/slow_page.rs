//! Files of `scenario slow`: figures as JSON, messages as CSV, and an HTML page.

use std::io::{self, Write};
use std::path::Path;

use serde_json::Value;

use super::chart::{Figure, Ink, Plot, Scale, Stroke, Zone};
use super::html::{Cell, Page, Table, Tone};
use super::number::{count, short};
use super::series::{LEAST_MS, latency_title, line, plot};
use super::{file_name, write_file};
use crate::LoadgenError;
use crate::scenario::slow::{Arrival, PHASES, SlowFigures, published};

/// Writes all files; creates the directory if needed.
pub(crate) fn write(
    directory: &Path,
    head: &[String],
    summary: &Value,
    found: &[SlowFigures],
) -> Result<(), LoadgenError> {
    std::fs::create_dir_all(directory).map_err(|source| LoadgenError::Write { path: directory.to_owned(), source })?;
    write_file(&directory.join("summary.json"), |file| writeln!(file, "{summary:#}"))?;
    for figures in found {
        let path = directory.join(format!("{}.csv", name(figures)));
        write_file(&path, |file| write_messages(file, figures))?;
    }
    page(head, found).write(directory)
}

/// Name of a size's files: `normal-4_KiB`.
fn name(figures: &SlowFigures) -> String {
    format!("normal-{}", file_name(&figures.size.to_string()))
}

fn write_messages(file: &mut dyn Write, figures: &SlowFigures) -> io::Result<()> {
    writeln!(file, "receiver,sequence,phase,due_ns,latency_ms")?;
    for Arrival { receiver, sequence, due, latency_ms } in &figures.arrivals {
        let phase = figures.bounds.at(*due).map_or("", |phase| PHASES[phase]);
        writeln!(file, "{receiver},{sequence},{phase},{},{latency_ms:.6}", due.as_nanos())?;
    }
    Ok(())
}

fn page(head: &[String], found: &[SlowFigures]) -> Page {
    let mut page = Page::new("Slow receivers", head.first().map_or("", String::as_str));
    page.list(head.get(1..).unwrap_or_default());
    let lost: u64 = found.iter().map(|figures| figures.counts.normal.lost + figures.counts.slow.lost).sum();
    match lost {
        0 => page.banner(Tone::Good, "✓ Nothing lost."),
        _ => page.banner(Tone::Bad, &format!("✗ Lost {}.", count(lost))),
    }
    page.table(&table(found));
    page.heading("Figures");
    found.iter().filter_map(course).for_each(|figure| page.figure(figure));
    page.paragraph(
        "Each message at each normal receiver is a row of normal-SIZE.csv; all figures are in summary.json.",
    );
    page
}

fn table(found: &[SlowFigures]) -> Table {
    let head =
        ["", "", "messages", "mean, ms", "p99, ms", "worst, ms", "mean ×", "worst ×", "published: mean, worst ×"];
    let rows = found.iter().flat_map(|figures| {
        PHASES.iter().zip(&figures.phases).enumerate().map(|(number, (phase, latency))| {
            let size = if number == 0 { figures.size.to_string() } else { String::new() };
            let mut row = vec![Cell::from(size), Cell::from(*phase)];
            row.extend(match latency {
                Some(of) => [
                    count(of.latency.n as u64),
                    short(of.latency.mean),
                    short(of.latency.p99),
                    short(of.latency.max),
                    short(of.mean_ratio),
                    short(of.worst_ratio),
                ]
                .map(Cell::from),
                None => [(); 6].map(|()| Cell::from("–")),
            });
            let published = published(figures.size.bytes).filter(|_| *phase == "after");
            let text = published.map_or(String::new(), |of| format!("{:.2}, {:.0}", of.mean_after.1, of.worst.1));
            row.push(Cell::toned(text, Tone::Aside));
            row
        })
    });
    Table { head: head.map(str::to_owned).to_vec(), rows: rows.collect(), text_columns: 2 }
}

/// Mean and worst latency of the normal receivers in each tenth of a second.
fn course(figures: &SlowFigures) -> Option<Figure> {
    let mut slots: Vec<(f64, u32, f64)> = Vec::new();
    for arrival in &figures.arrivals {
        let slot = (arrival.due.as_secs_f64() / SLOT) as usize;
        slots.resize(slots.len().max(slot + 1), (0.0, 0, 0.0));
        let (sum, count, worst) = &mut slots[slot];
        (*sum, *count, *worst) = (*sum + arrival.latency_ms, *count + 1, worst.max(arrival.latency_ms));
    }
    let before = figures.phases[0]?.latency.mean;
    let at = |slot: usize| (slot as f64 + 0.5) * SLOT;
    let points = |value: fn(&(f64, u32, f64)) -> f64| {
        slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.1 > 0)
            .map(|(number, slot)| (at(number), value(slot)))
            .collect()
    };
    let (mean, worst): (Vec<_>, Vec<_>) = (points(|(sum, count, _)| sum / f64::from(*count)), points(|slot| slot.2));
    let (least, most) = (
        mean.iter().map(|point| point.1).fold(before, f64::min),
        worst.iter().map(|point| point.1).fold(0.0, f64::max),
    );
    let y = Scale::for_latencies(least, before, most, LEAST_MS);
    let from = figures.bounds.before.as_secs_f64();
    let switch = Zone { from, to: from + figures.bounds.switch.as_secs_f64(), name: "switch".to_owned() };
    Some(plot(
        &name(figures),
        &format!("{}: latency of the normal receivers", figures.size),
        "Of each tenth of a second. Where the switch begins, the slow receivers become slow; the dotted line is the mean before.",
        Plot {
            x_title: "time at which a message was due, s".to_owned(),
            x: Scale::Linear { from: 0.0, to: slots.len() as f64 * SLOT },
            y_title: latency_title("latency", y),
            y,
            marks: vec![
                line("worst", Ink::Colour(1), worst, Stroke::of(1)),
                line("mean", Ink::Colour(0), mean, Stroke::Solid),
                line(
                    "mean before",
                    Ink::Neutral,
                    vec![(0.0, before), (slots.len() as f64 * SLOT, before)],
                    Stroke::Dotted,
                ),
            ],
            zones: vec![switch],
        },
    ))
}

/// Width of a time slot, in seconds.
const SLOT: f64 = 0.1;
