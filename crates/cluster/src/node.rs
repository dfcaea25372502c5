//! Nodes as small numbers, and the table of their names.

use std::fmt;

/// A node of the cluster, by its place in [`Names`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u8);

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// A set of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeSet(u64);

impl NodeSet {
    /// Adds a node.
    pub fn insert(&mut self, node: Node) {
        self.0 |= bit(node);
    }

    /// Removes a node.
    pub fn remove(&mut self, node: Node) {
        self.0 &= !bit(node);
    }

    /// Removes all nodes.
    pub fn clear(&mut self) {
        self.0 = 0;
    }

    /// True if the set has the node.
    pub fn contains(self, node: Node) -> bool {
        self.0 & bit(node) != 0
    }

    /// The node with the lowest number.
    pub fn first(self) -> Option<Node> {
        u8::try_from(self.0.trailing_zeros()).ok().filter(|number| usize::from(*number) < NODES).map(Node)
    }

    /// True if there is no node in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The set without one node.
    #[must_use]
    pub fn without(mut self, node: Node) -> Self {
        self.remove(node);
        self
    }

    /// The set without the nodes of another one.
    #[must_use]
    pub fn without_all(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }
}

impl FromIterator<Node> for NodeSet {
    fn from_iter<T: IntoIterator<Item = Node>>(nodes: T) -> Self {
        let mut set = Self::default();
        nodes.into_iter().for_each(|node| set.insert(node));
        set
    }
}

/// Largest number of different names in one process.
pub const NODES: usize = 64;

fn bit(node: Node) -> u64 {
    1_u64.checked_shl(node.0.into()).unwrap_or(0)
}

/// Names of the nodes. A process keeps one table for its lifetime.
///
/// The numbers mean nothing outside the process: records and marks are stored with names.
#[derive(Clone, Debug, Default)]
pub struct Names(Vec<String>);

impl Names {
    /// The names of the configuration, in its order.
    ///
    /// # Errors
    ///
    /// More than [`NODES`] names.
    pub fn new<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Result<Self, TooManyNames> {
        let mut table = Self::default();
        for name in names {
            table.number(name.as_ref())?;
        }
        Ok(table)
    }

    /// The node with this name. A name that is not in the table yet is added: a record may name nodes that this
    /// configuration lacks.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub fn number(&mut self, name: &str) -> Result<Node, TooManyNames> {
        let known = self.0.iter().position(|known| known == name);
        let place = known.unwrap_or(self.0.len());
        let node = u8::try_from(place).ok().filter(|_| place < NODES).map(Node).ok_or(TooManyNames)?;
        if known.is_none() {
            self.0.push(name.to_owned());
        }
        Ok(node)
    }

    /// Name of a node of this table.
    pub fn name(&self, node: Node) -> &str {
        self.0.get(usize::from(node.0)).map_or("?", String::as_str)
    }

    /// All nodes of the table.
    pub fn nodes(&self) -> impl Iterator<Item = Node> + '_ {
        (0..).take(self.0.len()).map(Node)
    }
}

/// The cluster has more names than [`NODES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyNames;

impl fmt::Display for TooManyNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than {NODES} names of nodes: remove some from `nodes`")
    }
}

impl std::error::Error for TooManyNames {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number() {
        let mut names = Names::new(["a", "b"]).unwrap();
        assert_eq!(names.number("b"), Ok(Node(1)));
        assert_eq!(names.number("c"), Ok(Node(2)));
        assert_eq!(names.name(Node(2)), "c");
    }

    #[test]
    fn a_set_finds_its_first_node() {
        let set: NodeSet = [Node(5), Node(3)].into_iter().collect();
        assert_eq!(set.first(), Some(Node(3)));
        assert_eq!(set.without(Node(3)).without(Node(5)).first(), None);
    }

    #[test]
    fn more_names_than_bits_are_refused() {
        assert!(Names::new((0..64).map(|n| n.to_string())).is_ok());
        assert_eq!(Names::new((0..65).map(|n| n.to_string())).err(), Some(TooManyNames));
    }
}
