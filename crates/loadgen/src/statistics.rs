//! Statistics of samples.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Size, extremes, mean, quantiles and standard deviation of a sample, in the sample's unit.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Summary {
    /// Number of values, at least 1.
    pub n: usize,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The arithmetic mean.
    pub mean: f64,
    /// The median. Like [`Summary::p99`] it is a value of the sample: the smallest that half of the values do not
    /// exceed.
    pub p50: f64,
    /// The smallest value that 99 % of the values do not exceed.
    pub p99: f64,
    /// The standard deviation with n − 1 in the denominator; 0 for a single value.
    pub sd: f64,
}

impl Summary {
    /// Summary of `values`; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let n = values.len();
        let mean = values.iter().sum::<f64>() / n as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let sd = if n > 1 { (squares / (n - 1) as f64).sqrt() } else { 0.0 };
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let quantile = |percent: usize| sorted[(n * percent).div_ceil(100) - 1];
        Some(Self { n, min: sorted[0], max: sorted[n - 1], mean, p50: quantile(50), p99: quantile(99), sd })
    }
}

/// The middle of `values`, or the mean of the two in the middle; `None` if there are none.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// A point of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Share of all messages, from 0 to 1.
    pub share: f64,
    /// Latency that this share does not exceed, in milliseconds.
    pub ms: f64,
}

impl CurvePoint {
    /// Distribution of `histogram`, whose values are multiples of `unit_ms`.
    ///
    /// It goes from the shortest to the longest value, with five points for each halving of the remaining share.
    pub fn curve(histogram: &Histogram<u64>, unit_ms: f64) -> Vec<Self> {
        if histogram.is_empty() {
            return Vec::new();
        }
        let shortest = Self { share: 0.0, ms: histogram.min() as f64 * unit_ms };
        let longest_ms = histogram.max() as f64 * unit_ms;
        let points = histogram.iter_quantiles(5).map(|step| Self {
            share: step.quantile_iterated_to(),
            ms: (step.value_iterated_to() as f64 * unit_ms).min(longest_ms),
        });
        std::iter::once(shortest).chain(points).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_as_worked_out_by_hand() {
        // mean 40 / 8 = 5; squares 9+1+1+1+0+0+4+16 = 32; sd = sqrt(32 / 7)
        let summary = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!((summary.n, summary.min, summary.max, summary.mean), (8, 2.0, 9.0, 5.0));
        assert!((summary.sd - 2.138_089_935).abs() < 1e-9, "{}", summary.sd);
        assert_eq!((summary.p50, summary.p99), (4.0, 9.0));
    }

    #[test]
    fn quantiles_are_values_of_the_sample() {
        let values: Vec<f64> = (1..=1000).rev().map(f64::from).collect();
        let summary = Summary::of(&values).unwrap();
        assert_eq!((summary.p50, summary.p99, summary.max), (500.0, 990.0, 1000.0));
    }

    #[test]
    fn one_value_does_not_spread_and_none_have_no_summary() {
        assert_eq!(
            Summary::of(&[3.5]),
            Some(Summary { n: 1, min: 3.5, max: 3.5, mean: 3.5, p50: 3.5, p99: 3.5, sd: 0.0 })
        );
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn the_median_is_in_the_middle_whatever_the_order() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }

    #[test]
    fn a_curve_goes_from_the_shortest_to_the_longest() {
        let mut histogram = Histogram::new(3).unwrap();
        assert!(CurvePoint::curve(&histogram, 1.0).is_empty());
        (1..=100_000_u64).for_each(|value| histogram.record(value).unwrap());
        let curve = CurvePoint::curve(&histogram, 0.001);
        let (first, last) = (curve[0], curve[curve.len() - 1]);
        assert_eq!((first.share, first.ms, last.share), (0.0, 0.001, 1.0));
        assert!((last.ms - 100.0).abs() < 0.1 && curve.len() < 200, "{last:?}");
        assert!(curve.is_sorted_by_key(|point| point.share) && curve.is_sorted_by_key(|point| point.ms));
        let median = curve.iter().find(|point| point.share >= 0.5).unwrap();
        assert!((median.ms - 50.0).abs() < 0.1, "{median:?}");
    }
}
