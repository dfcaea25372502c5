//! What document 002 publishes (tables 6 and 7): latency of the normal receiver, relative to its mean before.

/// Figures of one size of message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Published {
    /// Mean once the slow receiver is spooled for on the server of the normal one, and on another server.
    pub(crate) mean_after: (f64, f64),
    /// The worst of all, of the same two.
    pub(crate) worst: (f64, f64),
}

/// For messages of so many bytes.
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
