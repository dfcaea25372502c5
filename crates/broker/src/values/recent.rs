use std::time::{Duration, Instant};

/// Events since there was none for [`QUIET`].
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Recent {
    /// Time of the first and the last one.
    times: Option<(Instant, Instant)>,
    count: u64,
}

impl Recent {
    pub(crate) fn add(&mut self, count: u64, now: Instant) {
        let going_on = self.times.filter(|&(_, last)| now.saturating_duration_since(last) <= QUIET);
        let before = if going_on.is_some() { self.count } else { 0 };
        (self.times, self.count) = (Some((going_on.map_or(now, |(first, _)| first), now)), before + count);
    }

    /// Number of the events, and the time since the first of them; `None` = none for five minutes.
    pub(crate) fn at(&self, now: Instant) -> Option<(u64, Duration)> {
        let (first, last) = self.times?;
        let is_recent = now.saturating_duration_since(last) <= QUIET;
        is_recent.then(|| (self.count, now.saturating_duration_since(first)))
    }
}

/// Time without events after which the next one is the first.
const QUIET: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_events_end_after_a_quiet_time() {
        let (mut recent, begin) = (Recent::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(recent.at(begin), None);
        recent.add(1, at(0));
        recent.add(1, at(200));
        recent.add(1, at(400));
        assert_eq!(recent.at(at(450)), Some((3, Duration::from_secs(450))));
        assert_eq!(recent.at(at(701)), None);
        recent.add(2, at(800));
        assert_eq!(recent.at(at(801)), Some((2, Duration::from_secs(1))));
    }
}
