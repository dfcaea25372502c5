//! The page of one or several verifications, from the files of their results.

mod origin;
mod page;
mod plots;

use std::fs;
use std::path::{Path, PathBuf};

use tenbin_loadgen::report::page_alone;

pub(crate) use origin::remember as remember_origin;

use crate::command::Error;
use crate::plan::Plan;
use crate::results::{Event, Row, RunVerdict, VariantVerdict, Verdict, read_seconds};
use crate::run::directory_of;

/// Results of a verification, as read from its directory.
pub(crate) struct Results {
    verdict: Verdict,
    origin: tenbin_loadgen::report::Origin,
    variants: Vec<Variant>,
}

/// Results of a variant.
struct Variant {
    verdict: VariantVerdict,
    runs: Vec<Run>,
}

/// Results of a run. A run that could not start has none beside its verdict.
struct Run {
    verdict: RunVerdict,
    plan: Option<Plan>,
    events: Vec<Event>,
    seconds: Vec<Row>,
    links: Vec<LinkSum>,
}

/// Traffic of a link in a run.
#[derive(Debug, Clone, Default, PartialEq)]
struct LinkSum {
    from: String,
    to: String,
    bytes: f64,
    packets: f64,
    dropped: f64,
}

/// Writes the page of these directories of results to `page`.
///
/// # Errors
/// A directory has no results, or the page cannot be written.
pub(crate) fn write(directories: &[PathBuf], page: &Path) -> Result<(), Error> {
    let results = directories.iter().map(|directory| Results::read(directory)).collect::<Result<Vec<_>, _>>()?;
    let report = page::report(&results);
    crate::run::write(page, page_alone(&report).as_bytes())
}

impl Results {
    fn read(directory: &Path) -> Result<Self, Error> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| Error::Results { path, error }
        };
        let path = directory.join("verdict.json");
        let text = fs::read_to_string(&path).map_err(failed(&path))?;
        let verdict: Verdict = serde_json::from_str(&text).map_err(|error| failed(&path)(error.into()))?;
        let variant = |verdict: &VariantVerdict| {
            let run = |run: &RunVerdict| Run::read(&directory_of(directory, &verdict.name, run.number), run.clone());
            Variant { runs: verdict.runs.iter().map(run).collect(), verdict: verdict.clone() }
        };
        let variants = verdict.variants.iter().map(variant).collect();
        Ok(Self { variants, verdict, origin: origin::read(directory) })
    }
}

impl Run {
    /// Reads the files of a run as far as they exist: one that ended early has few.
    fn read(directory: &Path, verdict: RunVerdict) -> Self {
        let file = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
        Self {
            verdict,
            plan: serde_json::from_str(&file("plan.json")).ok(),
            events: Event::read(file("events.jsonl").as_bytes()).unwrap_or_default(),
            seconds: read_seconds(&directory.join("seconds.csv")).unwrap_or_default(),
            links: links(&file("links.csv")),
        }
    }
}

/// Sums of `links.csv`, by link.
fn links(text: &str) -> Vec<LinkSum> {
    let mut sums: Vec<LinkSum> = Vec::new();
    for line in text.lines().skip(1) {
        let cells = line.split(',').collect::<Vec<_>>();
        let [_, from, to, bytes, packets, dropped, ..] = cells[..] else { continue };
        let number = |text: &str| text.parse::<f64>().unwrap_or_default();
        let place = sums.iter().position(|sum| sum.from == from && sum.to == to).unwrap_or_else(|| {
            sums.push(LinkSum { from: from.to_owned(), to: to.to_owned(), ..LinkSum::default() });
            sums.len() - 1
        });
        let sum = &mut sums[place];
        sum.bytes += number(bytes);
        sum.packets += number(packets);
        sum.dropped += number(dropped);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_summed() {
        let sums = links("second,from,to,bytes,packets,dropped,queued\n0,a,b,10,1,0,0\n1,a,b,5,1,2,0\n1,b,a,7,1,0,0\n");
        let texts: Vec<_> =
            sums.iter().map(|sum| format!("{}>{} {} {}", sum.from, sum.to, sum.bytes, sum.dropped)).collect();
        assert_eq!(texts, ["a>b 15 2", "b>a 7 0"]);
    }
}
