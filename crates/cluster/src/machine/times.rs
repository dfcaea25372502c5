//! Shifts of a machine's times, so that the search knows equal states at different times.

use std::time::Duration;

use super::{Machine, State};

impl Machine {
    /// The same machine, with all of its times earlier by `by` and none before zero.
    pub(crate) fn shift(&mut self, by: Duration) {
        let earlier = |time: &mut Duration| *time = time.saturating_sub(by);
        earlier(&mut self.read_at);
        earlier(&mut self.promised);
        earlier(&mut self.link.heard);
        match &mut self.state {
            State::Starting { until } => earlier(until),
            State::Leader(leader) => leader.times().into_iter().for_each(earlier),
            _ => {}
        }
    }
}
