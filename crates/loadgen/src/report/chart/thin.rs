//! Reduces the number of points of a plot, without losing extremes.

use roaring::RoaringBitmap;

use super::Scale;

/// A reduced set of points for a plot.
///
/// Of coinciding points it keeps one. If that is not enough, it keeps the highest and lowest of each column, and an
/// even selection of the others.
#[derive(Debug)]
pub struct Thinned {
    x: Scale,
    y: Scale,
    /// Cells of a fine grid that have a point.
    taken: RoaringBitmap,
    kept: Vec<(f64, f64)>,
}

impl Thinned {
    /// No points, for a plot with these axes.
    pub fn new(x: Scale, y: Scale) -> Self {
        Self { x, y, taken: RoaringBitmap::new(), kept: Vec::new() }
    }

    /// Adds a point, unless it coincides with another.
    pub fn add(&mut self, x: f64, y: f64) {
        let cell = self.column(x) * ROWS + ((ROWS - 1) as f64 * self.y.position(y)).round() as usize;
        if self.taken.insert(cell as u32) {
            self.kept.push((x, y));
        }
    }

    /// At most about `limit` points.
    pub fn into_points(self, limit: usize) -> Vec<(f64, f64)> {
        if self.kept.len() <= limit {
            return self.kept;
        }
        let mut extremes = vec![(usize::MAX, usize::MAX); COLUMNS];
        for (index, &(x, y)) in self.kept.iter().enumerate() {
            let (lowest, highest) = &mut extremes[self.column(x)];
            if *lowest == usize::MAX || y < self.kept[*lowest].1 {
                *lowest = index;
            }
            if *highest == usize::MAX || y > self.kept[*highest].1 {
                *highest = index;
            }
        }
        let mut chosen: Vec<_> = extremes.into_iter().flat_map(|(lowest, highest)| [lowest, highest]).collect();
        let every = self.kept.len().div_ceil(limit.saturating_sub(2 * COLUMNS).max(1));
        chosen.extend((0..self.kept.len()).step_by(every));
        chosen.sort_unstable();
        chosen.dedup();
        chosen.into_iter().filter_map(|index| self.kept.get(index).copied()).collect()
    }

    fn column(&self, x: f64) -> usize {
        ((COLUMNS - 1) as f64 * self.x.position(x)).round() as usize
    }
}

/// Half pixels of a wide figure.
const COLUMNS: usize = 1400;
const ROWS: usize = 600;

#[cfg(test)]
mod tests {
    use super::*;

    fn thinned() -> Thinned {
        Thinned::new(Scale::Linear { from: 0.0, to: 1.0 }, Scale::Log { from: 0.1, to: 10_000.0 })
    }

    #[test]
    fn few_points_are_all_kept() {
        let mut points = thinned();
        (0..100).for_each(|n| points.add(f64::from(n) / 100.0, f64::from(n) + 1.0));
        assert_eq!(points.into_points(20_000).len(), 100);
    }

    #[test]
    fn of_many_points_the_extremes_are_kept() {
        let mut points = thinned();
        let mut noise = 1_u64;
        for n in 0..1_000_000 {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let y = match n {
                400_000 => 9_999.0,
                600_000 => 0.11,
                _ => 1.0 + (noise >> 44) as f64 / 10_000.0,
            };
            points.add(f64::from(n) / 1e6, y);
        }
        let kept = points.into_points(5_000);
        assert!((4_000..8_000).contains(&kept.len()), "{}", kept.len());
        assert!(kept.contains(&(0.4, 9_999.0)) && kept.contains(&(0.6, 0.11)));
    }
}
