//! Kinds of difficulty of random scenarios.

use std::str::FromStr;

named! {
    /// The difficulty of a scenario.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Family {
        /// Speeds that differ by up to a factor of twenty.
        MixedSpeeds = "mixed_speeds",
        /// Work that differs from message to message: exponential, lognormal, Pareto, a few very long messages.
        HeavyTails = "heavy_tails",
        /// Workers that become slower or faster for good.
        Steps = "steps",
        /// Workers that stand still for a moment.
        Pauses = "pauses",
        /// Workers that leave or die, and unknown ones that join.
        Churn = "churn",
        /// Messages in bursts.
        Bursts = "bursts",
        /// Workers that are slow for a few seconds, again and again.
        NoisyNeighbours = "noisy_neighbours",
        /// Workers at network delays of up to 50 ms.
        FarWorkers = "far_workers",
        /// Rare reports, of which some are missing.
        IrregularReports = "irregular_reports",
        /// Workers with one to eight threads.
        Threads = "threads",
        /// Workers that finish several messages in the time of one.
        Batchers = "batchers",
        /// Two classes of messages, one of them long.
        WorkClasses = "work_classes",
        /// Hundreds of workers.
        Hundreds = "hundreds",
        /// Stock clients, which tell the broker nothing, with one thread each. One is slower.
        Stock = "stock",
        /// Short work behind a proxy, whose delay the broker cannot measure.
        Proxied = "proxied",
        /// Workers at about the distance of their work, with jitter. The distance is known or hidden.
        Jitter = "jitter",
        /// Workers that acknowledge in different ways after their work.
        Habits = "habits",
        /// Workers that acknowledge before their work, among others.
        EarlyAcks = "early_acks",
        /// Workers with one to sixteen threads, which the broker does not know.
        UnknownThreads = "unknown_threads",
        /// A work queue in which every worker rejects 1 % of the messages.
        Poison = "poison",
        /// A work queue with a worker that rejects everything at once.
        FastFailer = "fast_failer",
        /// A work queue with a worker that acknowledges nothing, or nothing from some moment on.
        StuckWorker = "stuck_worker",
    }
}

impl Family {
    /// Whether its workers tell the broker their concurrency. The others tell nothing, and send no reports.
    pub const fn is_told(self) -> bool {
        !matches!(
            self,
            Self::Stock | Self::Proxied | Self::Jitter | Self::Habits | Self::EarlyAcks | Self::UnknownThreads
        ) && !self.is_queue()
    }

    /// Whether it is about work queues: rejections, retries and time-outs.
    pub const fn is_queue(self) -> bool {
        matches!(self, Self::Poison | Self::FastFailer | Self::StuckWorker)
    }
}

impl FromStr for Family {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|family| family.name() == name).ok_or_else(|| format!("want one of {}", known()))
    }
}
