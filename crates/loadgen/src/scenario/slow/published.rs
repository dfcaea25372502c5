//! Published figures of document 002 (tables 6 and 7): latency of the normal receiver, relative to its mean before.

/// Figures of one message size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Published {
    /// Mean while the broker spools for the slow receiver, which is on the normal one's server, and on another server.
    pub(crate) mean_after: (f64, f64),
    /// Maximum, for the same two cases.
    pub(crate) worst: (f64, f64),
}

/// Least and longest time of a published switch to the other server, in ms.
pub(crate) const PUBLISHED_SWITCH_MS: (f64, f64) = (62.0, 184.0);

/// Figures for messages of `bytes` bytes.
pub(crate) fn published(bytes: usize) -> Option<Published> {
    let row = PUBLISHED.iter().find(|(kib, ..)| kib * 1024 == bytes)?;
    Some(Published { mean_after: row.1, worst: row.2 })
}

type Row = (usize, (f64, f64), (f64, f64));

const PUBLISHED: [Row; 4] = [
    (4, (55.30, 0.81), (342.0, 125.0)),
    (16, (25.20, 0.80), (161.0, 47.0)),
    (64, (30.44, 0.79), (93.0, 12.0)),
    (256, (15.37, 0.83), (33.0, 9.0)),
];
