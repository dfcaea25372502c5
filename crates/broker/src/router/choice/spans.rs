//! Choices for messages of which a collector of OpenTelemetry gets spans.

use std::time::{Duration, SystemTime};

use super::*;
use crate::telemetry::{GroupChoice, Telemetry};

impl Question<'_, '_> {
    /// Whether the message has a span, so that the choice has to be explained.
    #[inline]
    pub(super) fn has_span(self) -> bool {
        self.template.is_some() && self.group.queues.hooks.telemetry().is_some() && self.span().is_some()
    }

    /// Telemetry, and the message's span.
    #[cold]
    fn span(&self) -> Option<(&Telemetry, u64)> {
        let telemetry = self.group.queues.hooks.telemetry()?;
        Some((telemetry, telemetry.span_of(self.template?)?))
    }

    /// Notes the choice for the spans of the message, if it has some.
    #[cold]
    pub(super) fn note_choice(self, picked: &Member<GroupMember>, explanation: &Explanation, choice: &Choice<'_>) {
        let (chosen, reason) = self.outcome(picked, explanation, choice);
        let weighed = explanation.candidates.iter().find(|weighed| chosen.is_some_and(|m| m.id() == weighed.member));
        self.note(chosen, reason, weighed.map(|weighed| weighed.predicted_wait));
    }

    /// Notes that the message waits with the group.
    #[cold]
    pub(in super::super) fn note_waiting(self) {
        self.note(None, "nobody", None);
    }

    fn note(self, chosen: Option<&Member<GroupMember>>, reason: &'static str, predicted_wait: Option<Duration>) {
        let Some((telemetry, span)) = self.span() else { return };
        let (group, name) = (self.group.number(), self.group.full_name());
        let member = chosen.map(|member| member.value().client_id.clone());
        telemetry.chosen(span, GroupChoice { group, name, member, reason, predicted_wait, at: SystemTime::now() });
    }
}
