//! The ready verifications, which need no path.

/// A ready verification.
pub(crate) struct Ready {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

macro_rules! ready {
    ($($name:literal),* $(,)?) => {
        [$(Ready { name: $name, text: include_str!(concat!("../../../verifications/", $name, ".yaml")) }),*]
    };
}

/// Their observed outcomes.
pub(crate) const EXPECTED: &str = include_str!("../../../verifications/expected.toml");

/// All of them, in the order of `tenbin-verify list`.
pub(crate) const ALL: [Ready; 25] = ready![
    "kill-qos1",
    "kill-qos1-others",
    "kill-qos2",
    "power-cut",
    "leader-kill",
    "leader-pause",
    "stale-leader",
    "witness-lost",
    "failovers",
    "slow-receiver",
    "partition-minority",
    "partition-one-way",
    "flapping-link",
    "lossy-link",
    "noisy-neighbour",
    "disk-broken-leader",
    "disk-full",
    "clock-skew",
    "rolling-restart",
    "join-under-load",
    "reconnect-storm",
    "paper-standalone",
    "paper-replication",
    "paper-delay",
    "ledger-speed",
];

pub(crate) fn find(name: &str) -> Option<&'static Ready> {
    ALL.iter().find(|ready| ready.name == name)
}

/// The ready verification that `path` names, unless there is a file of this name.
pub(crate) fn at(path: &std::path::Path) -> Option<&'static Ready> {
    find(path.to_str()?).filter(|_| !path.exists())
}
