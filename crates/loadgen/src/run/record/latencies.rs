use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::run::{CurvePoint, Latency};

/// A histogram that is being recorded: counts by microsecond bucket; minimum, maximum and sum in nanoseconds.
///
/// The buckets equal the buckets of an HDR histogram, which computes the figures at the end. Recording into an HDR
/// histogram would update more than is needed before the end: an arrival, which is counted in three histograms, would take
/// a third longer (`benches/record.rs`).
#[derive(Debug)]
pub(super) struct Latencies {
    /// Times below 2^`bits` have a bucket each; each higher power of two has half as many buckets.
    bits: u32,
    /// Counts by bucket, up to the bucket of the longest time.
    counts: Vec<u32>,
    len: u64,
    range: Range,
}

/// Minimum, maximum and sum, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Range {
    min_ns: u64,
    max_ns: u64,
    sum_ns: u64,
}

impl Latencies {
    /// An empty histogram with a resolution of `digits` significant decimal digits, 1 to 3.
    pub(super) fn new(digits: u8) -> Self {
        // 2·10^digits, rounded up to a power of two.
        let bits = (2 * 10_u32.pow(digits.into())).next_power_of_two().ilog2();
        Self { bits, counts: Vec::new(), len: 0, range: Range::default() }
    }

    #[inline]
    pub(super) fn record(&mut self, ns: u64) {
        self.count(self.bucket(ns / 1_000));
        self.range.add(&Range { min_ns: ns, max_ns: ns, sum_ns: ns });
    }

    #[inline]
    fn count(&mut self, bucket: usize) {
        if bucket >= self.counts.len() {
            self.grow(bucket);
        }
        self.counts[bucket] = self.counts[bucket].saturating_add(1);
        self.len += 1;
    }

    /// Records the same time `times` times.
    pub(super) fn record_times(&mut self, ns: u64, times: u32) {
        if times == 0 {
            return;
        }
        self.record(ns);
        let bucket = self.bucket(ns / 1_000);
        self.counts[bucket] = self.counts[bucket].saturating_add(times - 1);
        self.len += u64::from(times - 1);
        self.range.sum_ns = self.range.sum_ns.saturating_add(ns.saturating_mul(u64::from(times - 1)));
    }

    /// Number of recorded times.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Time that 99 % of the recorded times do not exceed, in microseconds; 0 for none.
    pub(super) fn p99_us(&self) -> u64 {
        let mut left = self.len - self.len / 100;
        for (bucket, count) in self.counts.iter().enumerate() {
            left = left.saturating_sub(u64::from(*count));
            if left == 0 {
                return self.value(bucket);
            }
        }
        0
    }

    /// Returns the recorded times and starts again, empty, in the same memory.
    pub(super) fn take(&mut self) -> PackedLatencies {
        let packed = self.pack();
        self.counts.fill(0);
        self.len = 0;
        self.range = Range::default();
        packed
    }

    pub(super) fn pack(&self) -> PackedLatencies {
        let used = self.counts.iter().enumerate().filter(|&(_, &count)| count > 0);
        let buckets = write_buckets(used.map(|(bucket, &count)| (self.value(bucket), u64::from(count))));
        PackedLatencies { range: self.range, buckets }
    }

    /// Number of the bucket for a time in microseconds.
    #[inline]
    fn bucket(&self, us: u64) -> usize {
        bucket(self.bits, us)
    }

    /// Lowest time of a bucket, in microseconds.
    fn value(&self, bucket: usize) -> u64 {
        let scale = (bucket >> (self.bits - 1)).saturating_sub(1);
        ((bucket - (scale << (self.bits - 1))) as u64) << scale
    }

    #[cold]
    fn grow(&mut self, bucket: usize) {
        // Grow to the end of the scale, so that growing is rare.
        let end = ((bucket >> (self.bits - 1)) + 1) << (self.bits - 1);
        self.counts.resize(end, 0);
    }
}

/// Number of the bucket for a time in microseconds, where times below 2^`bits` have a bucket each.
#[inline]
fn bucket(bits: u32, us: u64) -> usize {
    let scale = (u64::BITS - us.leading_zeros()).saturating_sub(bits);
    ((scale as usize) << (bits - 1)) + (us >> scale) as usize
}

/// A histogram of few times with three significant digits: two bytes for each time, until [`RecentLatencies::pack`].
#[derive(Debug, Default)]
pub(super) struct RecentLatencies {
    /// Buckets of the times since the last packing.
    buckets: Vec<u16>,
    range: Range,
    packed: PackedLatencies,
}

/// Bits of a [`RecentLatencies`]; no time has a bucket above `u16::MAX`.
const RECENT_BITS: u32 = 11;

impl RecentLatencies {
    #[inline]
    pub(super) fn record(&mut self, ns: u64) {
        self.buckets.push(bucket(RECENT_BITS, ns / 1_000) as u16);
        self.range.add(&Range { min_ns: ns, max_ns: ns, sum_ns: ns });
    }

    /// True if all times are packed.
    pub(super) fn is_packed(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Packs all times, by way of an empty histogram of three digits.
    pub(super) fn pack(&mut self, empty: &mut Latencies) {
        if self.buckets.is_empty() {
            return;
        }
        std::mem::take(&mut self.buckets).into_iter().for_each(|bucket| empty.count(bucket.into()));
        self.packed.merge(PackedLatencies { range: std::mem::take(&mut self.range), ..empty.take() });
    }

    /// The packed times; `None` for none.
    pub(super) fn into_packed(self) -> Option<PackedLatencies> {
        debug_assert!(self.is_packed(), "{} times are not packed", self.buckets.len());
        (!self.packed.buckets.is_empty()).then_some(self.packed)
    }
}

/// Recorded times, packed into a few bytes for each non-empty bucket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct PackedLatencies {
    range: Range,
    /// Buckets in ascending order: distance from the previous value, and count, in as few bytes as they need.
    buckets: Vec<u8>,
}

impl PackedLatencies {
    /// Bytes on the heap.
    #[cfg(test)]
    pub(super) fn heap_size(&self) -> usize {
        self.buckets.capacity()
    }

    /// Adds another histogram of the same resolution.
    pub(super) fn merge(&mut self, other: Self) {
        if self.buckets.is_empty() {
            *self = other;
        } else if !other.buckets.is_empty() {
            let mut both: Vec<(u64, u64)> = read_buckets(&self.buckets).chain(read_buckets(&other.buckets)).collect();
            both.sort_unstable();
            both.dedup_by(|(value, count), (kept, sum)| {
                let is_same = value == kept;
                if is_same {
                    *sum = sum.saturating_add(*count);
                }
                is_same
            });
            self.buckets = write_buckets(both.into_iter());
            self.range.add(&other.range);
        }
    }
}

/// Sum of several histograms of the same resolution.
#[derive(Debug)]
pub(super) struct LatencySum {
    counts: Histogram<u64>,
    range: Range,
}

impl LatencySum {
    pub(super) fn new(digits: u8) -> Self {
        Self { counts: Histogram::new(digits).expect("1 to 3 digits are legal"), range: Range::default() }
    }

    pub(super) fn add(&mut self, part: &PackedLatencies) {
        for (us, count) in read_buckets(&part.buckets) {
            self.counts.record_n(us.min(LONGEST_US), count).expect("it grows to what comes");
        }
        self.range.add(&part.range);
    }

    /// The figures; `None` if nothing was recorded.
    pub(super) fn latency(&self) -> Option<Latency> {
        let count = self.counts.len();
        if count == 0 {
            return None;
        }
        let Range { min_ns, max_ns, sum_ns } = self.range;
        // A bucket reports its highest value, which may exceed the highest recorded time.
        let quantile =
            |quantile| ms(self.counts.value_at_quantile(quantile).saturating_mul(1_000).clamp(min_ns, max_ns));
        Some(Latency {
            count,
            mean: sum_ns as f64 / count as f64 / 1e6,
            min: ms(min_ns),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: ms(max_ns),
        })
    }
}

/// Distribution of several histograms of `digits` resolution.
pub(super) fn curve<'a>(digits: u8, parts: impl IntoIterator<Item = &'a PackedLatencies>) -> Vec<CurvePoint> {
    let mut sum = LatencySum::new(digits);
    parts.into_iter().for_each(|part| sum.add(part));
    let Range { min_ns, max_ns, .. } = sum.range;
    let within = |point: CurvePoint| CurvePoint { ms: point.ms.max(ms(min_ns)).min(ms(max_ns)), ..point };
    CurvePoint::curve(&sum.counts, 1e-3).into_iter().map(within).collect()
}

/// Figures of several histograms of `digits` resolution.
pub(super) fn latency<'a>(digits: u8, parts: impl IntoIterator<Item = &'a PackedLatencies>) -> Option<Latency> {
    let mut sum = LatencySum::new(digits);
    parts.into_iter().for_each(|part| sum.add(part));
    sum.latency()
}

impl Default for Range {
    /// The range of no times.
    fn default() -> Self {
        Self { min_ns: u64::MAX, max_ns: 0, sum_ns: 0 }
    }
}

impl Range {
    #[inline]
    fn add(&mut self, other: &Self) {
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn write_buckets(buckets: impl Iterator<Item = (u64, u64)>) -> Vec<u8> {
    let mut before = 0;
    let mut bytes = buckets.fold(Vec::new(), |bytes, (value, count)| {
        let distance = value - std::mem::replace(&mut before, value);
        postcard::to_extend(&(distance, count), bytes).expect("numbers can be written")
    });
    bytes.shrink_to_fit();
    bytes
}

/// Values and counts. Damaged bytes yield wrong ones, or end early.
fn read_buckets(mut bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let mut value: u64 = 0;
    std::iter::from_fn(move || {
        let ((distance, count), rest) = postcard::take_from_bytes::<(u64, u64)>(bytes).ok()?;
        (value, bytes) = (value.saturating_add(distance), rest);
        Some((value, count))
    })
}

/// More than a recorder can measure, and less than the end of a histogram's range.
const LONGEST_US: u64 = u64::MAX / 1_000;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn recorded(times_ns: &[u64]) -> Latencies {
        let mut latencies = Latencies::new(3);
        times_ns.iter().for_each(|&ns| latencies.record(ns));
        latencies
    }

    #[test]
    fn the_figures_of_a_thousand_times() {
        // 1, 2, … 1000 ms
        let times: Vec<u64> = (1..=1000).rev().map(|ms| ms * 1_000_000).collect();
        let latency = latency(3, [&recorded(&times).pack()]).unwrap();
        assert_eq!((latency.count, latency.min, latency.max), (1000, 1.0, 1000.0));
        assert!((latency.mean - 500.5).abs() < 1e-9, "{latency:?}");
        for (figure, ms) in [(latency.p50, 500.0), (latency.p90, 900.0), (latency.p99, 990.0), (latency.p999, 999.0)] {
            assert!((ms..ms * 1.001).contains(&figure), "{latency:?}");
        }
    }

    #[test]
    fn p99_of_open_histogram_is_within_its_resolution() {
        let times: Vec<u64> = (1..=1000).map(|ms| ms * 1_000_000).collect();
        assert!((990_000 * 999 / 1000..=990_000).contains(&recorded(&times).p99_us()));
        assert_eq!((recorded(&[]).p99_us(), recorded(&[5_000]).p99_us()), (0, 5));
    }

    #[test]
    fn buckets_are_those_of_an_hdr_histogram() {
        for digits in 1..=3 {
            let latencies = Latencies::new(digits);
            let hdr = Histogram::<u64>::new_with_bounds(1, u64::MAX >> 8, digits).unwrap();
            let powers = (0..54).flat_map(|power| [0, 1, 2, 3, 5, 77].map(|more| (1_u64 << power) + more));
            for us in powers.chain(0..5_000).chain([LONGEST_US]) {
                let bucket = latencies.bucket(us);
                assert_eq!(latencies.value(bucket), hdr.lowest_equivalent(us), "{us}");
                assert_eq!(latencies.value(bucket + 1), hdr.next_non_equivalent(us), "{us}");
            }
        }
    }

    #[test]
    fn curve_of_several_parts_stays_within_extremes() {
        let (fast, slow) = (recorded(&[70_300; 50]).pack(), recorded(&[2_000_400_000; 50]).pack());
        let curve = curve(3, [&fast, &slow]);
        let (first, last) = (curve[0], curve[curve.len() - 1]);
        assert_eq!((first, last), (CurvePoint { share: 0.0, ms: 0.0703 }, CurvePoint { share: 1.0, ms: 2000.4 }));
        assert!(super::curve(3, []).is_empty());
    }

    #[test]
    fn figures_of_no_time_and_of_one_time() {
        assert_eq!(latency(2, [&Latencies::new(2).pack()]), None);
        let one = latency(3, [&recorded(&[1_234_567]).pack()]).unwrap();
        assert_eq!([one.mean, one.min, one.p50, one.p99, one.max], [1.234567; 5]);
    }

    #[test]
    fn take_empties_the_histogram() {
        let mut latencies = recorded(&[5_000, 7_000]);
        assert_eq!(latency(3, [&latencies.take()]).unwrap().count, 2);
        assert!(latencies.is_empty());
        latencies.record(9_000_000);
        assert_eq!(latency(3, [&latencies.take()]).unwrap().min, 9.0);
    }

    #[test]
    fn damaged_buckets_do_not_panic() {
        let range = Range { min_ns: 1, max_ns: 2, sum_ns: 3 };
        let damaged = PackedLatencies { range, buckets: vec![0xFF; 16] };
        assert_eq!(latency(3, [&damaged]), None);
        let huge = PackedLatencies { buckets: write_buckets([(u64::MAX, 1)].into_iter()), ..damaged };
        assert_eq!(latency(3, [&huge]).unwrap().count, 1);
    }

    #[test]
    fn times_packed_in_several_steps_equal_one_recording() {
        let times = [1_500, 7_000_000, 7_000_100, 90_000_000_000, 2_047_999, 2_048_000, u64::MAX];
        let (mut recent, mut empty) = (RecentLatencies::default(), Latencies::new(3));
        for step in times.chunks(3) {
            step.iter().for_each(|&ns| recent.record(ns));
            recent.pack(&mut empty);
            assert!(recent.is_packed() && empty.is_empty());
        }
        let packed = recent.into_packed().unwrap();
        assert_eq!(latency(3, [&packed]), latency(3, [&recorded(&times).pack()]));
        assert!(RecentLatencies::default().into_packed().is_none());
    }

    #[test]
    fn a_time_may_be_recorded_several_times_at_once() {
        let mut at_once = recorded(&[5_000_000]);
        [(7_000_000, 3), (9_000_000, 0), (1_000, 1)]
            .into_iter()
            .for_each(|(ns, times)| at_once.record_times(ns, times));
        let one_by_one = recorded(&[5_000_000, 7_000_000, 7_000_000, 7_000_000, 1_000]);
        assert_eq!(latency(3, [&at_once.pack()]), latency(3, [&one_by_one.pack()]));
        assert_eq!(at_once.len(), 5);
    }

    proptest! {
        #[test]
        fn merged_latencies_equal_one_recording(
            one in vec(0..u64::MAX >> 8, 0..50),
            other in vec(0..3_000_000_u64, 0..50),
        ) {
            let whole = latency(3, [&recorded(&[&one[..], &other[..]].concat()).pack()]);
            let (a, b) = (recorded(&one).pack(), recorded(&other).pack());
            prop_assert_eq!(latency(3, [&a, &b]), whole);
            let mut merged: PackedLatencies = postcard::from_bytes(&postcard::to_allocvec(&a).unwrap()).unwrap();
            merged.merge(b);
            prop_assert_eq!(latency(3, [&merged]), whole);
        }
    }
}
