/// The last five reported means, in ns, zeros included.
#[derive(Debug, Default)]
pub(super) struct RecentMeans {
    means: [u64; RECENT],
    pushed: usize,
}

impl RecentMeans {
    /// Adds a mean, dropping the oldest beyond five.
    pub(super) fn push(&mut self, mean_ns: u64) {
        self.means[self.pushed % RECENT] = mean_ns;
        self.pushed += 1;
    }

    /// The mean of the list, rounded down; 0 if it is empty. The slots not yet used are 0 and add nothing.
    pub(super) fn mean(&self) -> u64 {
        let sum: u64 = self.means.iter().sum();
        sum / self.pushed.clamp(1, RECENT) as u64
    }
}

/// Length of the list (thesis §4.1.2, Table 3).
const RECENT: usize = 5;
