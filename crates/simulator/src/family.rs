//! Kinds of difficulty of random scenarios.

use std::str::FromStr;

/// The difficulty of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Speeds that differ by up to a factor of twenty.
    MixedSpeeds,
    /// Work that differs from message to message: exponential, lognormal, Pareto, a few very long messages.
    HeavyTails,
    /// Workers that become slower or faster for good.
    Steps,
    /// Workers that stand still for a moment.
    Pauses,
    /// Workers that leave or die, and unknown ones that join.
    Churn,
    /// Messages in bursts.
    Bursts,
    /// Workers that are slow for a few seconds, again and again.
    NoisyNeighbours,
    /// Workers at network delays of up to 50 ms.
    FarWorkers,
    /// Rare reports, of which some are missing.
    IrregularReports,
    /// Workers with one to eight threads.
    Threads,
    /// Workers that finish several messages in the time of one.
    Batchers,
    /// Two classes of messages, one of them long.
    WorkClasses,
    /// Hundreds of workers.
    Hundreds,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::MixedSpeeds,
        Self::HeavyTails,
        Self::Steps,
        Self::Pauses,
        Self::Churn,
        Self::Bursts,
        Self::NoisyNeighbours,
        Self::FarWorkers,
        Self::IrregularReports,
        Self::Threads,
        Self::Batchers,
        Self::WorkClasses,
        Self::Hundreds,
    ];

    /// The name in arguments and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MixedSpeeds => "mixed_speeds",
            Self::HeavyTails => "heavy_tails",
            Self::Steps => "steps",
            Self::Pauses => "pauses",
            Self::Churn => "churn",
            Self::Bursts => "bursts",
            Self::NoisyNeighbours => "noisy_neighbours",
            Self::FarWorkers => "far_workers",
            Self::IrregularReports => "irregular_reports",
            Self::Threads => "threads",
            Self::Batchers => "batchers",
            Self::WorkClasses => "work_classes",
            Self::Hundreds => "hundreds",
        }
    }
}

impl FromStr for Family {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|family| family.name() == name).ok_or_else(|| format!("want one of {}", known()))
    }
}
