//! A queue in which flows take turns.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::rng::mix;

/// A fair queue: first in, first out within a flow, and flows with items take turns of one item.
///
/// A flow is a publisher, for example. Messages of any size take a worker's time each, so a turn is one message. A flow
/// without items takes no memory: an item costs a link, and at most a map entry and a turn more. Many groups have a few
/// items, so that the first ones get no more memory than they need.
#[derive(Debug)]
pub struct FairQueue<T> {
    /// Items that precede all flows.
    front: VecDeque<T>,
    /// Flows that have items.
    flows: HashMap<u64, Flow, BuildHasherDefault<FlowHasher>>,
    /// The keys of `flows`; the first one has its turn next.
    turns: VecDeque<u64>,
    /// The items of all flows, each linked to the next one of its flow, and unused nodes.
    nodes: Vec<Node<T>>,
    /// The first unused node; unused nodes are linked, too.
    unused: u32,
    /// Number of used nodes.
    used: usize,
    /// The flow of the item taken last; `None` if it was none of a flow.
    taken_of: Option<u64>,
}

/// First and last node of a flow.
#[derive(Clone, Copy, Debug)]
struct Flow {
    first: u32,
    last: u32,
}

#[derive(Debug)]
struct Node<T> {
    /// `None` if the node is unused.
    item: Option<T>,
    next: u32,
}

impl<T> FairQueue<T> {
    /// Creates an empty queue.
    pub fn new() -> Self {
        Self {
            front: VecDeque::new(),
            flows: HashMap::default(),
            turns: VecDeque::new(),
            nodes: Vec::new(),
            unused: NONE,
            used: 0,
            taken_of: None,
        }
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.front.len() + self.used
    }

    /// Whether the queue has no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory for items and flows, without memory that the items own.
    pub fn bytes(&self) -> usize {
        self.front.capacity() * size_of::<T>()
            + self.nodes.capacity() * size_of::<Node<T>>()
            + self.turns.capacity() * size_of::<u64>()
            + self.flows.capacity() * FLOW_BYTES
    }

    /// Adds an item behind the others of its flow. A flow without items gets the last turn.
    ///
    /// # Panics
    /// The queue has 2³² − 1 items.
    pub fn push(&mut self, flow: u64, item: T) {
        let node = self.store(item);
        if let Some(flow) = self.flows.get_mut(&flow) {
            self.nodes[flow.last as usize].next = node;
            flow.last = node;
        } else {
            self.flows.insert(flow, Flow { first: node, last: node });
            self.turns.push_back(flow);
        }
    }

    /// Adds an item before all others. It must be older than all of its flow.
    pub fn push_front(&mut self, item: T) {
        self.front.push_front(item);
    }

    /// Takes the item that is next.
    pub fn pop(&mut self) -> Option<T> {
        self.taken_of = None;
        let item = self.front.pop_front().or_else(|| self.take_turn())?;
        if self.is_empty() {
            self.shrink();
        }
        Some(item)
    }

    /// Puts the item back that was taken last. Its flow has its turn again.
    pub fn put_back(&mut self, item: T) {
        let Some(key) = self.taken_of.take() else { return self.push_front(item) };
        let node = self.store(item);
        if let Some(flow) = self.flows.get_mut(&key) {
            self.nodes[node as usize].next = flow.first;
            flow.first = node;
            // The last turn, unless another item was added since.
            let turn = self.turns.iter().rposition(|turn| *turn == key);
            turn.map(|turn| self.turns.remove(turn));
        } else {
            self.flows.insert(key, Flow { first: node, last: node });
        }
        self.turns.push_front(key);
    }

    /// Takes the first item of the flow that has its turn.
    fn take_turn(&mut self) -> Option<T> {
        let key = self.turns.pop_front()?;
        self.taken_of = Some(key);
        let flow = self.flows.get_mut(&key)?;
        let node = &mut self.nodes[flow.first as usize];
        let item = node.item.take();
        let next = std::mem::replace(&mut node.next, self.unused);
        self.unused = flow.first;
        self.used -= 1;
        if flow.first == flow.last {
            self.flows.remove(&key);
        } else {
            flow.first = next;
            self.turns.push_back(key);
        }
        item
    }

    /// All items, in any order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.front.iter().chain(self.nodes.iter().filter_map(|node| node.item.as_ref()))
    }

    /// Assigns the items to flows anew. Each new flow has its items in the order in which they would have been taken.
    pub fn regroup(&mut self, flow: impl Fn(&T) -> u64) {
        let front = std::mem::take(&mut self.front);
        let mut before = std::mem::replace(self, Self { front, ..Self::new() });
        while let Some(item) = before.pop() {
            self.push(flow(&item), item);
        }
    }

    /// Removes the items for which `is_removed` holds. The others keep their flows and turns.
    pub fn remove_where(&mut self, is_removed: impl Fn(&T) -> bool) -> Vec<T> {
        let mut before = std::mem::take(self);
        let (mut removed, front): (Vec<_>, Vec<_>) = before.front.drain(..).partition(&is_removed);
        self.front = front.into();
        for key in before.turns {
            let mut next = before.flows.get(&key).map(|flow| flow.first);
            while let Some(node) = next.and_then(|node| before.nodes.get_mut(node as usize)) {
                next = Some(node.next);
                match node.item.take() {
                    Some(item) if is_removed(&item) => removed.push(item),
                    Some(item) => self.push(key, item),
                    None => break,
                }
            }
        }
        removed
    }

    /// Stores an item in a node without successor.
    fn store(&mut self, item: T) -> u32 {
        self.used += 1;
        let filled = Node { item: Some(item), next: NONE };
        if let Some(node) = self.nodes.get_mut(self.unused as usize) {
            let next = std::mem::replace(node, filled).next;
            return std::mem::replace(&mut self.unused, next);
        }
        let node = u32::try_from(self.nodes.len()).ok().filter(|&node| node != NONE);
        if self.nodes.len() < FEW {
            self.nodes.reserve_exact(1);
        }
        self.nodes.push(filled);
        node.expect("memory holds fewer items")
    }

    /// Frees the memory of an empty queue, except for the memory of a few items.
    fn shrink(&mut self) {
        self.unused = NONE;
        self.nodes.clear();
        self.nodes.shrink_to(KEPT_CAPACITY);
        self.turns.shrink_to(KEPT_CAPACITY);
        self.flows.shrink_to(KEPT_CAPACITY);
        self.front.shrink_to(KEPT_CAPACITY);
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// No node.
const NONE: u32 = u32::MAX;
/// Items for which an empty queue keeps memory.
const KEPT_CAPACITY: usize = 16;
/// Items of a queue that does not grow ahead of need.
const FEW: usize = 4;
/// Bytes of a map entry: key, flow and control byte, at a load of seven eighths.
const FLOW_BYTES: usize = 20;

/// Hashes a flow's key.
#[derive(Clone, Copy, Debug, Default)]
struct FlowHasher(u64);

impl Hasher for FlowHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = mix(self.0 ^ key);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn queue(items: &[(u64, u32)]) -> FairQueue<(u64, u32)> {
        let mut queue = FairQueue::new();
        items.iter().for_each(|&(flow, number)| queue.push(flow, (flow, number)));
        queue
    }

    fn drained<T>(mut queue: FairQueue<T>) -> Vec<T> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn flows_take_turns_and_keep_their_order() {
        let queue = queue(&[(1, 0), (1, 1), (1, 2), (2, 0), (3, 0), (3, 1)]);
        assert_eq!(drained(queue), [(1, 0), (2, 0), (3, 0), (1, 1), (3, 1), (1, 2)]);
    }

    #[test]
    fn flow_that_comes_back_waits_for_all_others() {
        let mut queue = queue(&[(1, 0), (2, 0), (2, 1), (3, 0), (3, 1)]);
        assert_eq!(queue.pop(), Some((1, 0)));
        queue.push(1, (1, 1));
        assert_eq!(drained(queue), [(2, 0), (3, 0), (1, 1), (2, 1), (3, 1)]);
    }

    #[test]
    fn item_put_back_keeps_its_turn() {
        for (items, expected) in [
            (&[(1, 0), (1, 1), (2, 0)][..], [(1, 0), (2, 0), (1, 1), (1, 2)]),
            (&[(1, 0)], [(1, 0), (2, 0), (1, 1), (1, 2)]),
        ] {
            let mut queue = queue(items);
            let item = queue.pop().unwrap();
            queue.put_back(item);
            if items.len() == 1 {
                queue.push(2, (2, 0));
                queue.push(1, (1, 1));
            }
            queue.push(1, (1, 2));
            assert_eq!(drained(queue), expected);
        }
    }

    #[test]
    fn older_items_come_first_also_when_put_back() {
        let mut queue = queue(&[(1, 1), (2, 1)]);
        [(2, 0), (1, 0)].into_iter().for_each(|item| queue.push_front(item));
        let item = queue.pop().unwrap();
        queue.put_back(item);
        assert_eq!(drained(queue), [(1, 0), (2, 0), (1, 1), (2, 1)]);
    }

    #[test]
    fn one_flow_is_first_in_first_out_after_regrouping() {
        let mut queue = queue(&[(1, 0), (1, 1), (2, 0), (2, 1)]);
        queue.push_front((3, 0));
        queue.regroup(|_| 0);
        queue.push(0, (4, 0));
        assert_eq!(drained(queue), [(3, 0), (1, 0), (2, 0), (1, 1), (2, 1), (4, 0)]);
    }

    #[test]
    fn empty_queue_keeps_little_memory() {
        let mut queue = FairQueue::new();
        (0..100_000).for_each(|flow| queue.push(flow, flow));
        (0..100_000).for_each(|flow| assert_eq!(queue.pop(), Some(flow)));
        assert!(queue.is_empty() && queue.nodes.capacity() + queue.turns.capacity() <= 4 * KEPT_CAPACITY);
    }

    #[test]
    fn memory_of_few_items_is_what_they_need() {
        let mut queue = FairQueue::new();
        assert_eq!(queue.bytes(), 0);
        for items in 1..=FEW {
            queue.push(items as u64, [0_u8; 100]);
            assert_eq!(queue.nodes.capacity(), items);
            assert!(queue.bytes() < items * 120 + 200, "{}", queue.bytes());
        }
        (0..1000).for_each(|item| queue.push(item, [0; 100]));
        assert!((100_000..400_000).contains(&queue.bytes()), "{}", queue.bytes());
        while queue.pop().is_some() {}
        assert!(queue.bytes() < 64 * 120, "{}", queue.bytes());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(u64),
        PutBack,
        Pop,
        RemoveThirds,
    }

    proptest! {
        /// Items of a flow never overtake each other, and none is lost.
        #[test]
        fn flows_keep_their_order_and_all_items(steps in prop::collection::vec(
            prop_oneof![
                4 => (0..5_u64).prop_map(Step::Push),
                1 => Just(Step::PutBack),
                3 => Just(Step::Pop),
                1 => Just(Step::RemoveThirds),
            ],
            0..200,
        )) {
            let (mut queue, mut waiting) = (FairQueue::new(), BTreeMap::<u64, VecDeque<u32>>::new());
            let mut number = 0;
            for step in steps {
                match step {
                    Step::Push(flow) => {
                        queue.push(flow, (flow, number));
                        waiting.entry(flow).or_default().push_back(number);
                        number += 1;
                    }
                    Step::PutBack => {
                        let item = queue.pop();
                        item.into_iter().for_each(|item| queue.put_back(item));
                        prop_assert_eq!(item, queue.pop());
                        item.into_iter().for_each(|item| queue.put_back(item));
                    }
                    Step::Pop => {
                        let Some((flow, number)) = queue.pop() else { continue };
                        prop_assert_eq!(waiting.get_mut(&flow).unwrap().pop_front(), Some(number));
                    }
                    Step::RemoveThirds => {
                        let removed = queue.remove_where(|(_, number)| number % 3 == 0);
                        let before: usize = waiting.values().map(VecDeque::len).sum();
                        waiting.values_mut().for_each(|flow| flow.retain(|number| number % 3 != 0));
                        let after: usize = waiting.values().map(VecDeque::len).sum();
                        prop_assert_eq!(removed.len(), before - after);
                    }
                }
                let left = waiting.values().map(VecDeque::len).sum::<usize>();
                prop_assert_eq!((queue.len(), queue.iter().count()), (left, left));
            }
        }
    }
}
