//! The workers of a scenario.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};
use tenbin_kit::Span;

use super::one;
use crate::distribution::Distribution;

/// Workers of one kind.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerKind {
    /// Number of these workers.
    #[serde(default = "one")]
    pub count: NonZeroU32,
    /// Mean service time of a message.
    pub service: Span,
    /// Distribution of service times around the mean.
    #[serde(default)]
    pub distribution: Distribution,
    /// Messages that a worker processes at a time, from one queue.
    #[serde(default = "one")]
    pub threads: NonZeroU32,
    /// Messages that a worker takes together, and finishes in the time of one. Needs one thread.
    #[serde(default = "one")]
    pub batch: NonZeroU32,
    /// Concurrency that it tells the broker when it joins: messages that it works on at a time.
    pub concurrency: Option<NonZeroU32>,
    /// Network delay from the broker to the worker, and back.
    #[serde(default = "near")]
    pub delay: Span,
    /// Share of the path's time by which a crossing is shorter or longer at random, 0 to 1.
    #[serde(default)]
    pub jitter: f64,
    /// Further delay in each direction that the broker cannot measure, as of a proxy.
    #[serde(default)]
    pub hidden: Span,
    /// Whether the broker knows the round trip to it. It is the shortest one, without the hidden delay.
    #[serde(default = "yes")]
    pub round_trip_known: bool,
    /// Its weight under weighted policies.
    #[serde(default = "one")]
    pub weight: NonZeroU32,
    /// Content of its pings.
    #[serde(default)]
    pub reports: Reports,
    /// When it acknowledges at QoS 1.
    #[serde(default)]
    pub acknowledges: Acknowledges,
    /// Time after which it rejects each message, instead of processing it. Not with `on_arrival`.
    pub rejects: Option<Span>,
    /// Its Receive Maximum, which the policy heeds that lets messages wait.
    pub receive_maximum: Option<NonZeroU32>,
    /// Whether its socket is without `TCP_NODELAY`: an acknowledgement waits until the last one is confirmed.
    #[serde(default)]
    pub nagle: bool,
    /// Whether the broker remembers its speed from an earlier connection.
    #[serde(default)]
    pub remembered: bool,
    /// Time of joining, counted from the first message. Without it the worker is there from the start.
    pub joins: Option<Span>,
    /// Time of leaving. The worker finishes its messages.
    pub leaves: Option<Span>,
    /// Time of death. Its messages are lost at QoS 0, and redelivered at QoS 1.
    pub dies: Option<Span>,
    /// Pauses, in which it neither processes nor sends anything.
    #[serde(default)]
    pub pauses: Vec<Pause>,
    /// Changes of its mean service time, for messages taken from then on.
    #[serde(default)]
    pub steps: Vec<ServiceStep>,
    /// Changes of its number of threads. A thread that is removed finishes its message.
    #[serde(default)]
    pub thread_steps: Vec<ThreadStep>,
}

/// A time in which a worker processes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// Begin, counted from the first message.
    pub at: Span,
    /// Length of the pause.
    #[serde(rename = "for")]
    pub length: Span,
}

/// A change of the mean service time.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceStep {
    /// Begin, counted from the first message.
    pub at: Span,
    /// Mean service time from then on.
    pub service: Span,
}

/// A change of the number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadStep {
    /// Begin, counted from the first message.
    pub at: Span,
    /// Number of threads from then on.
    pub threads: NonZeroU32,
}

/// Content of a worker's pings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reports {
    /// Queue length, and mean processing time since the previous ping (0 if no message was processed).
    #[default]
    Honest,
    /// No report: plain pings.
    Never,
    /// Always the same values, true or not.
    Lie {
        /// Messages in the queue.
        queue: u64,
        /// Mean processing time.
        processing: Span,
    },
}

/// When a worker acknowledges a message of QoS 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Acknowledges {
    /// After processing it, in the order of receipt `[MQTT-4.6.0-2]`.
    #[default]
    AfterProcessing,
    /// On arrival, the default of many client libraries.
    OnArrival,
    /// After processing it, unless another message has arrived. Then it works on that message first, and acknowledges
    /// both together. The loop of paho for Python does this: it reads one packet before it writes.
    AfterNextRead,
    /// After processing it and others: several messages are acknowledged together, in the order of receipt.
    Batched {
        /// Processed messages that are acknowledged together.
        messages: NonZeroU32,
        /// Longest time from the first of them until fewer are acknowledged.
        within: Option<Span>,
    },
    /// After processing it, before messages that arrived earlier and take longer.
    CompletionOrder,
}

impl WorkerKind {
    /// One worker with this mean service time, and the defaults of a file for everything else.
    pub fn of(service: Span) -> Self {
        Self {
            count: one(),
            service,
            distribution: Distribution::Fixed,
            threads: one(),
            batch: one(),
            concurrency: None,
            delay: near(),
            jitter: 0.0,
            hidden: Span::ZERO,
            round_trip_known: true,
            weight: one(),
            reports: Reports::Honest,
            acknowledges: Acknowledges::AfterProcessing,
            rejects: None,
            receive_maximum: None,
            nagle: false,
            remembered: false,
            joins: None,
            leaves: None,
            dies: None,
            pauses: Vec::new(),
            steps: Vec::new(),
            thread_steps: Vec::new(),
        }
    }

    /// Key and error of the first value out of range.
    pub fn fault(&self) -> Option<(&'static str, String)> {
        if self.service == Span::ZERO {
            return Some(("service", "has to be more than 0".to_owned()));
        }
        if let Some(fault) = self.distribution.fault() {
            return Some(("distribution", fault));
        }
        if self.batch.get() > 1 && self.threads.get() > 1 {
            return Some(("batch", "needs one thread".to_owned()));
        }
        if !(0.0..=1.0).contains(&self.jitter) {
            return Some(("jitter", "from 0 to 1".to_owned()));
        }
        if self.batch.get() > 1 && !self.thread_steps.is_empty() {
            return Some(("thread_steps", "a worker that takes batches has one thread".to_owned()));
        }
        if self.thread_steps.windows(2).any(|pair| pair[0].at >= pair[1].at) {
            return Some(("thread_steps", "in the order of time".to_owned()));
        }
        let has_one_thread = self.threads.get() == 1 && self.batch.get() == 1 && self.thread_steps.is_empty();
        if self.acknowledges == Acknowledges::AfterNextRead && !has_one_thread {
            return Some(("acknowledges", "after_next_read needs one thread and no batch".to_owned()));
        }
        if self.rejects.is_some() && self.acknowledges == Acknowledges::OnArrival {
            return Some(("rejects", "on_arrival accepts all".to_owned()));
        }
        let end = |pause: &Pause| pause.at.ns() + pause.length.ns();
        if self.pauses.windows(2).any(|pair| end(&pair[0]) > pair[1].at.ns()) {
            return Some(("pauses", "in the order of time, and none within another".to_owned()));
        }
        if self.steps.iter().any(|step| step.service == Span::ZERO) {
            return Some(("steps", "service: has to be more than 0".to_owned()));
        }
        if self.steps.windows(2).any(|pair| pair[0].at >= pair[1].at) {
            return Some(("steps", "in the order of time".to_owned()));
        }
        if self.leaves.is_some() && self.dies.is_some() {
            return Some(("dies", "it leaves or dies, not both".to_owned()));
        }
        let leaves_first = self.leaves.or(self.dies).is_some_and(|leaves| Some(leaves) <= self.joins);
        leaves_first.then(|| ("joins", "it has to join before it leaves".to_owned()))
    }
}

fn yes() -> bool {
    true
}

/// Network delay of a worker in the same building.
fn near() -> Span {
    Span::from_ns(200_000)
}
