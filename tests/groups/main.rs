//! Share groups: the choice of a member, members that come, leave, stall and die, and slow receivers.

mod churn;
mod held_acknowledgement;
mod moving_connections;
mod remembered_speeds;
mod share_handover;
mod share_order;
mod share_rules;
mod slow_receivers;
mod standing_groups;
#[path = "../support/mod.rs"]
mod support;
mod taken_back;
mod unread;
mod work_queues;
