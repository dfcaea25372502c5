//! The page of one or several verifications, from the files of their results.

mod causes;
mod origin;
mod page;
mod plots;
mod resources;

use std::fs;
use std::path::{Path, PathBuf};

use tenbin_loadgen::report::page_alone;

pub(crate) use origin::remember as remember_origin;

use crate::error::Error;
use crate::plan::Plan;
use crate::results::{
    Event, InstanceSample, LinkSample, Row, RunVerdict, SocketSample, VariantVerdict, Verdict, directory_of,
    read_samples, read_seconds,
};

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
    links: Vec<LinkSample>,
    sockets: Vec<SocketSample>,
    instances: Vec<InstanceSample>,
}

/// Writes the page of these directories of results to `page`.
///
/// # Errors
/// A directory has no results, or the page cannot be written.
pub(crate) fn write(directories: &[PathBuf], page: &Path) -> Result<(), Error> {
    let results = directories.iter().map(|directory| Results::read(directory)).collect::<Result<Vec<_>, _>>()?;
    let report = page::report(&results);
    crate::results::write(page, page_alone(&report).as_bytes())
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
            links: read_samples(&file("links.csv")),
            sockets: read_samples(&file("sockets.csv")),
            instances: read_samples(&file("instances.csv")),
        }
    }
}

#[cfg(test)]
mod tests;
