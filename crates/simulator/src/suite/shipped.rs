//! The project's own scenarios, so that the suite needs no files.

use crate::scenario::Scenario;

/// All of `scenarios/`, in the order in which the suite shows them.
pub fn shipped() -> Vec<Scenario> {
    let read = |(name, text): &(&str, &str)| {
        Scenario::parse(name, text).unwrap_or_else(|error| panic!("{name} is tested to be right: {error}"))
    };
    FILES.iter().map(read).collect()
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../scenarios/", $name, ".toml")))),*]
    };
}

const FILES: &[(&str, &str)] = files![
    "scenario_1",
    "scenario_2_10.7ms",
    "scenario_2_10.7ms_eager",
    "scenario_2_10.7ms_remembered",
    "scenario_2_10.0ms",
    "scenario_2_10.0ms_eager",
    "scenario_2_10.0ms_remembered",
    "step",
    "step_eager",
    "pause",
    "burst",
    "churn",
    "threads",
    "wan",
    "mixed_16",
    "thousand",
    "early_acks",
    "silent_and_lying",
    "black_hole",
    "black_hole_24",
    "no_information",
    "deadlines",
    "loud_publisher",
    "stock_paho",
    "stock_paho_told",
    "proxied_5ms_25",
    "proxied_5ms_25_told",
    "proxied_5ms_50",
    "proxied_5ms_50_told",
    "proxied_5ms_85",
    "proxied_5ms_85_told",
    "two_of_eight_threads",
    "two_of_eight_threads_in_order",
    "convergence",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_file_is_in_the_suite_with_a_description() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<_> = entries.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
        names.sort();
        let mut shipped: Vec<_> = shipped().into_iter().inspect(|scenario| assert_ne!(scenario.about, "")).collect();
        shipped.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(names, shipped.into_iter().map(|scenario| scenario.name).collect::<Vec<_>>());
    }
}
