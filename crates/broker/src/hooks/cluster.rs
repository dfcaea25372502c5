use std::time::Duration;

/// A new leader of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderChange<'a> {
    /// Number of the record that names the leader.
    pub epoch: u64,
    /// Name of the new leader's node.
    pub leader: &'a str,
    /// Name of the leader before; `None` = there was none.
    pub previous: Option<&'a str>,
    /// Time without a leader: from the last sign of the leader before, or else from the begin of the takeover.
    pub duration: Duration,
}

/// Another number of copies of a cluster's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopiesChange<'a> {
    /// Number of the record.
    pub epoch: u64,
    /// Nodes that have everything acknowledged.
    pub copies: u8,
    /// Name of the node that has got or lost its copy.
    pub node: &'a str,
}
