//! Published figures of scenario 2 (document 000, §5.1.2.2, tables 7 and 8), at a nominal interval of 10 ms.
//!
//! The thesis prints no values with its figures 43 to 47; these are from its text and its tables.

/// Mean latency of all messages in ms; `None` for an unpublished policy.
pub(crate) fn overall_ms(scenario: &str, policy: &str) -> Option<f64> {
    match (scenario, policy) {
        ("2", "random") => Some(1400.7),
        ("2", "round_robin") => Some(1492.3),
        ("2", "thesis_score") => Some(27.4),
        _ => None,
    }
}

/// Figures of one subscriber in the stable phase; latencies in ms.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(crate) struct PublishedPhase {
    pub(crate) n: u32,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) mean: f64,
    pub(crate) sd: f64,
}

/// The three subscribers in the stable phase; `None` for an unpublished policy.
pub(crate) fn stable_phase(scenario: &str, policy: &str) -> Option<[PublishedPhase; 3]> {
    let rows = match (scenario, policy) {
        ("2", "round_robin") => {
            [(167, 0.0, 6.0, 0.9, 0.7), (166, 0.0, 8.0, 1.0, 0.8), (167, 3075.0, 6250.0, 4664.1, 923.4)]
        }
        ("2", "thesis_score") => {
            [(199, 1.0, 10.0, 3.4, 2.4), (199, 1.0, 13.0, 3.7, 2.5), (102, 13.0, 71.0, 34.8, 17.8)]
        }
        _ => return None,
    };
    Some(rows.map(|(n, min, max, mean, sd)| PublishedPhase { n, min, max, mean, sd }))
}

/// Reduction of mean latency by `thesis_score`, at most, in percent.
///
/// It is relative to `random` and `round_robin`, for all messages and for the slow worker's messages (document 000,
/// §5.1.2.2, of figure 44).
pub(crate) const REDUCTION_PERCENT: f64 = 98.0;

/// Increase of the fast workers' mean latency over `round_robin`, at most, in ms (ibid.).
pub(crate) const RISE_OF_THE_FAST_MS: f64 = 19.3;

/// Difference between sub-0 and the equally fast sub-1 with `thesis_score`, in ms (ibid.).
pub(crate) const FIRST_ABOVE_SECOND_MS: f64 = 10.0;
