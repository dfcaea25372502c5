//! Several nodes as one broker, and `tenbin cluster`.

pub(crate) mod agreement;
mod commands;
pub(crate) mod control;
mod dev;
pub(crate) mod etcd_server;
pub(crate) mod link;
pub(crate) mod node;
pub(crate) mod relay;
pub(crate) mod status;

pub(crate) use commands::{ClusterCommand, run};
