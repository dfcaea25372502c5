//! Messages from publisher to subscriber.

mod bridges;
mod filters;
mod flow_control;
mod message_properties;
mod options;
mod order;
mod qos;
mod segments;
mod suback_first;
mod topic_aliases;
