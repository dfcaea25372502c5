//! Rejections, retries and time-outs of a group that is used as a work queue.

use serde::Deserialize;
use tenbin_kit::Span;

/// Messages that every worker rejects.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Poison {
    /// Their share of the messages, 0 to 1. They are chosen at random.
    pub share: f64,
    /// Time until a worker that has taken one rejects it.
    pub after: Span,
}

/// What the group does with messages that a worker rejects, or does not acknowledge in time, as keys of `[[share]]` say.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkQueue {
    /// Pause before a rejected message is offered again. It doubles with each delivery.
    pub retry_delay: Span,
    /// The longest pause.
    pub retry_delay_maximum: Span,
    /// Deliveries after which a message is a dead letter; 0 = no limit.
    #[serde(default)]
    pub deliveries_maximum: u32,
    /// Time after which an unacknowledged message goes to another worker.
    pub acknowledge_within: Option<Span>,
}

impl Poison {
    pub(super) fn fault(self) -> Option<&'static str> {
        match self {
            Self { share, .. } if !(0.0..=1.0).contains(&share) => Some("share: from 0 to 1"),
            Self { after: Span::ZERO, .. } => Some("after: has to be more than 0"),
            _ => None,
        }
    }
}

impl WorkQueue {
    pub(super) fn fault(self) -> Option<&'static str> {
        match self {
            Self { retry_delay: Span::ZERO, .. } => Some("retry_delay: has to be more than 0"),
            Self { acknowledge_within: Some(Span::ZERO), .. } => Some("acknowledge_within: has to be more than 0"),
            _ if self.retry_delay > self.retry_delay_maximum => {
                Some("retry_delay: at most as long as retry_delay_maximum")
            }
            _ => None,
        }
    }

    /// Returns the pause before the delivery that follows this number of them; `None` if that were one too many.
    pub(crate) fn pause_ns(self, deliveries: u32) -> Option<u64> {
        if self.has_reached_limit(deliveries) {
            return None;
        }
        let doublings = deliveries.saturating_sub(1).min(u64::BITS - 1);
        let pause_ns = self.retry_delay.ns().saturating_mul(1 << doublings);
        Some(pause_ns.min(self.retry_delay_maximum.ns()))
    }

    /// Returns whether a message with this number of deliveries gets no further one.
    pub(crate) fn has_reached_limit(self, deliveries: u32) -> bool {
        self.deliveries_maximum > 0 && deliveries >= self.deliveries_maximum
    }
}
