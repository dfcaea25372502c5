//! Notes on sending: the verdict covers only published messages.

use super::{CutWhose, Outcome};

impl Outcome {
    /// One line for each problem that the verdict does not show.
    pub(super) fn notes_of_sending(&self) -> Vec<String> {
        let is_blind = self.verdict.expected == 0 && self.published.messages > 0 && !self.audiences.is_empty();
        let lines = [
            (self.not_taken > 0, format!("{} messages were not taken by the broker", self.not_taken)),
            (
                self.unacknowledged > 0,
                format!("{} messages were sent and never acknowledged; they are not expected", self.unacknowledged),
            ),
            (
                self.unsent > 0,
                format!(
                    "{} messages were due and never sent: latency includes their waiting up to the end, and is longer",
                    self.unsent
                ),
            ),
            (is_blind, "nothing is expected: no subscriber's filter matches the published topics".to_owned()),
        ];
        lines.into_iter().filter_map(|(is_so, line)| is_so.then_some(line)).collect()
    }

    /// Numbers of messages that are missing but not in the verdict, as the broker never accepted them, with reasons.
    pub(crate) fn untaken(&self) -> impl Iterator<Item = (u64, &'static str)> {
        let all = [(self.unacknowledged, "never acknowledged"), (self.not_taken, "refused by the broker")];
        all.into_iter().filter(|(count, _)| *count > 0)
    }

    /// Whether missing acknowledgements may be the run's own doing.
    ///
    /// That is so if it cuts publishers' connections or lets them be lost, and no publisher sends the messages under way again: at QoS 0, or
    /// if sessions end with their connections.
    pub(crate) fn gives_messages_up(&self) -> bool {
        self.plan.reconnects(CutWhose::Publishers)
            && (self.plan.publishers.qos == 0 || self.plan.connection.session_expiry.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Verdict, sample};

    #[test]
    fn notes_report_faults_outside_the_verdict() {
        assert!(sample::outcome().notes_of_sending().is_empty());
        let mut outcome = Outcome { not_taken: 2, unacknowledged: 1, ..sample::outcome() };
        let notes = outcome.notes_of_sending();
        assert!(notes[0].starts_with("2 messages were not taken") && notes[1].starts_with("1 messages were sent"));
        let overloaded = Outcome { unsent: 3, ..sample::outcome() };
        assert!(overloaded.notes_of_sending()[0].starts_with("3 messages were due and never sent"));

        outcome.verdict = Verdict::default();
        assert!(outcome.notes_of_sending()[2].starts_with("nothing is expected"));
        outcome.published.messages = 0;
        assert_eq!(outcome.notes_of_sending().len(), 2, "nothing was published to be expected");
        assert_eq!(outcome.untaken().collect::<Vec<_>>(), [(1, "never acknowledged"), (2, "refused by the broker")]);
        assert_eq!(sample::outcome().untaken().count(), 0);
    }
}
