use std::sync::Arc;

use super::{MessageChecks, Storage};
use crate::Config;
use crate::auth::Access;
use crate::durable;
use crate::memory::Owner;
use crate::registry::{RememberedSpeeds, SlowReceivers};
use crate::router::{DeadLetters, DecisionBudget, DueGroups, GroupQueues, KeyHasher, RetainedLimits, Router};

/// The way of messages: checks, subscriptions, share groups, retained messages, and receivers that are slow.
///
/// All publishers go through it, and the tasks that watch share groups and slow receivers.
#[derive(Debug)]
pub(crate) struct Routing {
    pub(crate) checks: MessageChecks,
    pub(crate) router: Router,
    pub(crate) speeds: RememberedSpeeds,
    pub(crate) slow_receivers: SlowReceivers,
}

impl Routing {
    pub(super) fn new(
        config: &Config,
        access: Arc<Access>,
        Storage { durable, memory, queues, .. }: &Storage,
        slow_receivers: SlowReceivers,
    ) -> Self {
        let groups = GroupQueues {
            keys: KeyHasher::new(&durable.as_ref().map_or_else(durable::new_secret, |durable| durable.hash_key())),
            limits: queues.limits,
            budget: Arc::clone(&queues.budget),
            metrics: Arc::clone(&queues.metrics),
            concerns: Arc::clone(&queues.concerns),
            durable: durable.clone(),
            hooks: Arc::clone(&queues.hooks),
            decisions: Arc::new(DecisionBudget::new(config.decisions())),
            clock: queues.clock,
            due: DueGroups::default(),
            dead_letters: DeadLetters::default(),
            standing: memory.account(Owner::StandingGroups),
            groups_per_topic: config.groups_per_topic_maximum(),
        };
        let retained =
            RetainedLimits { messages: config.retained.messages_maximum, bytes: config.retained.bytes_maximum };
        let concerns = Arc::clone(&queues.concerns);
        let (rules, clock) = (config.share_rules(), queues.clock);
        Self {
            checks: MessageChecks::new(config),
            router: Router::new(rules, retained, groups, access, durable.clone(), clock, concerns),
            speeds: RememberedSpeeds::new(
                config.remembered_speeds(),
                durable.as_ref().map_or_else(durable::new_secret, |durable| durable.speed_key()),
            ),
            slow_receivers,
        }
    }
}
