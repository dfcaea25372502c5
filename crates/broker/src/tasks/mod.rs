//! Background tasks of a broker. Each has a `run` that lasts as long as the broker; their data lives below.

pub(crate) mod dead_letters;
pub(crate) mod drops;
pub(crate) mod due_groups;
pub(crate) mod expiry;
pub(crate) mod group_backlogs;
pub(crate) mod long_ends;
pub(crate) mod slow_consumers;
mod slow_moves;
pub(crate) mod speeds;
pub(crate) mod standing_groups;
pub(crate) mod store_health;
pub(crate) mod sys_share;
pub(crate) mod sys_topics;
pub(crate) mod thread_scaler;
pub(crate) mod wills;
