//! A running mean that follows scattered samples slowly, and changes at once.

/// A weighted mean of times in nanoseconds, with detection of changes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunningMean {
    /// 0 = unknown.
    value: f64,
    /// Weight of the mean, in messages.
    weight: f64,
    /// Samples in a row that were far above (positive) or far below (negative).
    run: i32,
    /// Whether the value comes from an earlier session, without a sample since.
    is_recalled: bool,
}

impl RunningMean {
    pub(super) fn value(&self) -> f64 {
        self.value
    }

    /// Sets the mean, with the weight of this many messages.
    pub(super) fn assume(&mut self, value: f64, weight: f64) {
        *self = Self { value, weight, run: 0, is_recalled: false };
    }

    /// Sets the mean to a value from an earlier session, with the weight of one message.
    pub(super) fn recall(&mut self, value: f64) {
        *self = Self { value, weight: 1.0, run: 0, is_recalled: true };
    }

    pub(super) fn is_recalled(&self) -> bool {
        self.is_recalled
    }

    /// Reduces the weight to one message, because the value may be outdated.
    pub(super) fn doubt(&mut self) {
        self.weight = self.weight.min(1.0);
    }

    pub(super) fn scale(&mut self, factor: f64) {
        self.value *= factor;
        self.run = 0;
    }

    /// Adds the mean `sample` of a report over about `messages` messages.
    ///
    /// A sample is out of bounds if it differs by more than a quarter of the mean and three standard errors (of
    /// exponentially distributed times). If it is certain or repeated, the mean jumps to it. If the work is regular, a
    /// sample of four messages is certain.
    pub(super) fn sample_report(&mut self, sample: f64, messages: u64, is_regular: bool) {
        self.is_recalled = false;
        let messages = messages as f64;
        if self.value == 0.0 {
            return self.assume(sample, messages.clamp(1.0, WEIGHT_AFTER_JUMP));
        }
        let noise = 3.0 * self.value / messages.max(1.0).sqrt();
        let is_out = (sample - self.value).abs() > noise.max(self.value / 4.0);
        let is_beyond_doubt = is_regular && messages >= 4.0
            || sample > 3.0 * self.value + noise
            || sample < self.value / 3.0 && messages >= 8.0;
        self.run = match () {
            () if !is_out => 0,
            () if sample > self.value => self.run.max(0) + 1,
            () => self.run.min(0) - 1,
        };
        if is_out && (is_beyond_doubt || self.run >= 2 || self.run <= -3) {
            let run = self.run;
            self.assume(sample, messages.clamp(1.0, WEIGHT_AFTER_JUMP));
            self.run = run;
            return;
        }
        let old_weight = (self.weight * (1.0 - messages / 32.0).max(0.75)).min(WEIGHT_MAX);
        let weight = old_weight + messages;
        if weight > 0.0 {
            self.value = (self.value * old_weight + sample * messages) / weight;
            self.weight = weight.min(WEIGHT_MAX);
        }
    }

    /// Adds the time per message from acknowledgements that came together.
    ///
    /// The first sample far above the mean is capped, because another cause may have stalled the client. If the next
    /// ones are far above too, they count in full.
    pub(super) fn sample_acks(&mut self, sample: f64, messages: u64) {
        if messages == 0 {
            return;
        }
        self.is_recalled = false;
        let most = ACK_OUTLIER * self.value;
        let is_far = self.value > 0.0 && sample > most;
        let sample = if is_far && self.run == 0 { most } else { sample };
        self.run = i32::from(is_far);
        (0..messages.min(ACK_SAMPLES_MAX)).for_each(|_| self.sample_ack(sample));
    }

    /// Adds one acknowledgement, which weighs a sixteenth after sixteen of them.
    fn sample_ack(&mut self, sample: f64) {
        if self.value == 0.0 {
            return self.assume(sample, 1.0);
        }
        self.weight = (self.weight + 1.0).min(ACK_WEIGHT_MAX);
        self.value += (sample - self.value) / self.weight;
    }
}

const WEIGHT_MAX: f64 = 64.0;
const WEIGHT_AFTER_JUMP: f64 = 32.0;
const ACK_WEIGHT_MAX: f64 = 16.0;
/// Samples beyond this multiple of the mean are far above it.
const ACK_OUTLIER: f64 = 4.0;
/// Equal samples that leave less than a fiftieth of any earlier mean.
const ACK_SAMPLES_MAX: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn after_reports(samples: &[(f64, u64)]) -> f64 {
        let mut mean = RunningMean::default();
        samples.iter().for_each(|&(sample, messages)| mean.sample_report(sample, messages, true));
        mean.value()
    }

    #[test]
    fn first_sample_sets_the_mean_and_similar_ones_average() {
        assert_eq!(after_reports(&[(25.0, 40)]), 25.0);
        // 25 of weight 32 fades to weight 24, beside 8 of 27: (25 · 24 + 27 · 8) / 32
        assert_eq!(after_reports(&[(25.0, 40), (27.0, 8)]), 25.5);
        assert_eq!(after_reports(&[(25.0, 0)]), 25.0, "the dequeued messages are a guess");
    }

    #[test]
    fn a_change_beyond_doubt_is_taken_at_once() {
        assert_eq!(after_reports(&[(25.0, 40), (200.0, 4)]), 200.0);
        assert_eq!(after_reports(&[(25.0, 40), (200.0, 1)]), 200.0, "above three times and the noise of one");
        assert_eq!(after_reports(&[(25.0, 40), (4.0, 64)]), 4.0);
    }

    #[test]
    fn a_doubtful_change_needs_confirmation() {
        let once = after_reports(&[(25.0, 40), (110.0, 1)]);
        assert!((25.0..30.0).contains(&once), "{once}");
        assert_eq!(after_reports(&[(25.0, 40), (110.0, 1), (120.0, 1)]), 120.0);
        // Few messages far below are beyond three standard errors only from the fourth on.
        let low = after_reports(&[(25.0, 40), (1.0, 3), (1.0, 3)]);
        assert!(low > 15.0, "{low}");
    }

    #[test]
    fn a_change_of_varying_work_needs_confirmation() {
        let mut mean = RunningMean::default();
        mean.sample_report(25.0, 40, false);
        mean.sample_report(75.0, 4, false);
        assert_eq!(mean.value(), (25.0 * 28.0 + 75.0 * 4.0) / 32.0);
        mean.sample_report(90.0, 4, false);
        assert_eq!(mean.value(), 90.0);
    }

    fn after_acks(samples: &[f64]) -> f64 {
        let mut mean = RunningMean::default();
        samples.iter().for_each(|&sample| mean.sample_ack(sample));
        mean.value()
    }

    #[test]
    fn acknowledgements_are_averaged_over_sixteen() {
        assert_eq!(after_acks(&[20.0, 30.0]), 25.0);
        let mut samples = vec![20.0; 100];
        samples.push(36.0);
        assert_eq!(after_acks(&samples), 21.0);
    }

    #[test]
    fn one_acknowledgement_far_above_is_not_taken_in_full() {
        let after = |moments: &[f64]| {
            let mut mean = RunningMean::default();
            mean.sample_acks(20.0, 100);
            moments.iter().for_each(|&sample| mean.sample_acks(sample, 1));
            mean.value()
        };
        assert_eq!(after(&[2_000.0]), 20.0 + 60.0 / 16.0);
        let again = after(&[2_000.0, 20.0, 2_000.0]);
        assert!(again < 30.0, "{again}: each was alone");
        let lasting = after(&[2_000.0, 2_000.0]);
        assert!(lasting > 140.0, "{lasting}: it goes on");
    }

    #[test]
    fn acknowledgements_that_come_together_count_as_many() {
        let together = |messages| {
            let mut mean = RunningMean::default();
            mean.sample_acks(20.0, 100);
            mean.sample_acks(36.0, messages);
            mean.value()
        };
        assert_eq!(together(0), 20.0);
        assert_eq!(together(1), 21.0);
        assert_eq!(together(5), after_acks(&[[20.0; 100].as_slice(), &[36.0; 5]].concat()));
        assert!((35.7..36.0).contains(&together(u64::MAX)), "no more than it takes");
    }
}
