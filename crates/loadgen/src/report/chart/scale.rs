//! Axis scales and ticks.

use crate::number;

/// Mapping from values to positions on an axis, from 0 at its start to 1 at its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// Equal steps.
    Linear {
        /// Value at the start.
        from: f64,
        /// Value at the end.
        to: f64,
    },
    /// Equal ratios.
    Log {
        /// Value at the start, above 0.
        from: f64,
        /// Value at the end.
        to: f64,
    },
    /// Shares of a whole, stretched towards 100 %: 0, 90 %, 99 % and 99.9 % are `nines` equal steps.
    Tail {
        /// Number of steps.
        nines: f64,
    },
}

/// A tick with a grid line, and a label if there is room.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tick {
    /// From 0 to 1.
    pub(super) position: f64,
    pub(super) label: String,
}

impl Scale {
    /// Linear from 0 to a round number not below `max`.
    pub fn from_zero(max: f64) -> Self {
        let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
        let step = round_step(max / 5.0);
        Self::Linear { from: 0.0, to: (max / step).ceil() * step }
    }

    /// Scale for values from `min` to `max`: logarithmic if `max` is far above `typical`, else linear from 0.
    ///
    /// Values below `least` are drawn as `least`.
    pub fn for_latencies(min: f64, typical: f64, max: f64, least: f64) -> Self {
        let (min, typical, max) = (min.max(least), typical.max(least), max.max(least));
        if max / typical < FAR { Self::from_zero(max) } else { Self::log(min, max) }
    }

    /// Logarithmic from a round number not above `min` to one not below `max`, both above 0.
    pub fn log(min: f64, max: f64) -> Self {
        let min = if min.is_finite() && min > 0.0 { min } else { 1e-3 };
        let max = max.max(min * 10.0);
        let down = |value: f64| {
            let decade = 10f64.powf((value * (1.0 + 1e-9)).log10().floor());
            [5.0, 2.0].into_iter().map(|m| m * decade).find(|round| *round <= value * (1.0 + 1e-9)).unwrap_or(decade)
        };
        // The next step of 1, 2, 5 above the round number below `max`, unless that equals `max`.
        let below = down(max);
        let leading = (below / 10f64.powf((below * (1.0 + 1e-9)).log10().floor())).round();
        let to = if below * (1.0 + 1e-9) >= max { below } else { below * if leading == 2.0 { 2.5 } else { 2.0 } };
        Self::Log { from: down(min), to }
    }

    /// Scale for shares of `count` items.
    pub fn tail(count: u64) -> Self {
        Self::Tail { nines: (count.max(10) as f64).log10().ceil().clamp(2.0, 9.0) }
    }

    /// Position from 0 to 1; values beyond an end lie at that end.
    pub(super) fn position(&self, value: f64) -> f64 {
        let position = match *self {
            Self::Linear { from, to } => (value - from) / (to - from),
            Self::Log { from, to } => (value.max(f64::MIN_POSITIVE) / from).ln() / (to / from).ln(),
            Self::Tail { nines } => -(1.0 - value).max(f64::MIN_POSITIVE).log10() / nines,
        };
        if position.is_nan() { 0.0 } else { position.clamp(0.0, 1.0) }
    }

    /// About `about` ticks, at round values.
    pub(super) fn ticks(&self, about: usize) -> Vec<Tick> {
        let about = about.max(2);
        let values: Vec<(f64, String)> = match *self {
            Self::Linear { from, to } => linear_ticks(from, to, about),
            Self::Log { from, to } => log_ticks(from, to, about),
            Self::Tail { nines } => tail_ticks(nines, about),
        };
        values.into_iter().map(|(value, label)| Tick { position: self.position(value), label }).collect()
    }
}

fn linear_ticks(from: f64, to: f64, about: usize) -> Vec<(f64, String)> {
    let step = round_step((to - from) / about as f64);
    let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
    let first = (from / step - 1e-9).ceil() as i64;
    let last = (to / step + 1e-9).floor() as i64;
    let label = |k: i64| if k == 0 { "0".to_owned() } else { number::fixed(k as f64 * step, decimals) };
    (first..=last).map(|k| (k as f64 * step, label(k))).collect()
}

fn log_ticks(from: f64, to: f64, about: usize) -> Vec<(f64, String)> {
    let decades = (from * (1.0 + 1e-9)).log10().floor() as i32..=(to * (1.0 + 1e-9)).log10().floor() as i32;
    let within = |value: &f64| *value >= from * (1.0 - 1e-9) && *value <= to * (1.0 + 1e-9);
    let of = |multiples: &[f64], every: usize| -> Vec<f64> {
        let values = decades.clone().step_by(every).flat_map(|decade| {
            let ten = 10f64.powi(decade);
            multiples.iter().map(move |multiple| multiple * ten).collect::<Vec<_>>()
        });
        values.filter(within).collect()
    };
    let finest = [of(&[1.0, 2.0, 5.0], 1), of(&[1.0], 1)].into_iter().find(|values| values.len() <= about + 1);
    let values = finest.unwrap_or_else(|| of(&[1.0], decades.clone().count().div_ceil(about)));
    let decimals = |value: f64| (-(value * (1.0 + 1e-9)).log10().floor()).clamp(0.0, 9.0) as usize;
    values.into_iter().map(|value| (value, number::fixed(value, decimals(value)))).collect()
}

fn tail_ticks(nines: f64, about: usize) -> Vec<(f64, String)> {
    let mut ticks = vec![(0.0, "0 %".to_owned())];
    if about as f64 > nines + 2.0 {
        ticks.push((0.5, "50 %".to_owned()));
    }
    for nine in 1..=nines as i32 {
        let decimals = (nine - 2).max(0) as usize;
        ticks.push((1.0 - 10f64.powi(-nine), format!("{:.decimals$} %", 100.0 - 10f64.powi(2 - nine))));
    }
    ticks
}

/// 1, 2 or 5 times a power of ten, not below `step`.
fn round_step(step: f64) -> f64 {
    let ten = 10f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|m| m * ten).find(|round| *round >= step * (1.0 - 1e-9)).unwrap_or(10.0 * ten)
}

/// Ratio of two values from which on one axis from 0 would hide the smaller one.
pub(super) const FAR: f64 = 20.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, about: usize) -> Vec<String> {
        scale.ticks(about).into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn linear_axes_end_at_round_numbers() {
        assert_eq!(Scale::from_zero(93.0), Scale::Linear { from: 0.0, to: 100.0 });
        assert_eq!(labels(Scale::from_zero(93.0), 5), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(labels(Scale::from_zero(0.09), 5), ["0", "0.02", "0.04", "0.06", "0.08", "0.10"]);
        assert_eq!(Scale::from_zero(0.0), Scale::from_zero(1.0));
        assert_eq!(Scale::from_zero(f64::NAN), Scale::from_zero(1.0));
        assert_eq!(labels(Scale::Linear { from: 0.0, to: 12_300.0 }, 4), ["0", "5,000", "10,000"]);
    }

    #[test]
    fn log_axes_have_decades_or_finer_where_there_is_room() {
        assert_eq!(Scale::log(0.13, 2011.0), Scale::Log { from: 0.1, to: 5000.0 });
        assert_eq!(Scale::log(1.0, 1000.0), Scale::Log { from: 1.0, to: 1000.0 });
        assert_eq!(labels(Scale::log(0.13, 2011.0), 7), ["0.1", "1", "10", "100", "1,000"]);
        assert_eq!(labels(Scale::log(1.0, 90.0), 9), ["1", "2", "5", "10", "20", "50", "100"]);
        assert_eq!(labels(Scale::log(0.001, 10_000.0), 4), ["0.001", "0.1", "10", "1,000"]);
        let scale = Scale::log(0.1, 1000.0);
        assert_eq!((scale.position(0.0), scale.position(0.1), scale.position(1e9)), (0.0, 0.0, 1.0));
        assert!((scale.position(10.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn latencies_that_lie_close_together_start_at_zero() {
        assert!(matches!(Scale::for_latencies(0.5, 1.0, 9.0, 0.01), Scale::Linear { .. }));
        assert!(matches!(Scale::for_latencies(0.5, 1.0, 900.0, 0.01), Scale::Log { .. }));
        // Values below the resolution are drawn as the resolution.
        assert_eq!(Scale::for_latencies(0.0, 0.0, 900.0, 0.01), Scale::Log { from: 0.01, to: 1000.0 });
    }

    #[test]
    fn the_tail_of_shares_is_stretched() {
        let scale = Scale::tail(10_000);
        assert_eq!(labels(scale, 8), ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
        assert!((scale.position(0.99) - 0.5).abs() < 1e-9);
        assert_eq!((scale.position(0.0), scale.position(1.0)), (0.0, 1.0));
    }
}
