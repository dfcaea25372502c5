use std::sync::Arc;

use super::Grant;
use crate::auth::Rights;
use crate::outbox::Outbox;

/// One ordinary subscription, as the index holds it.
#[derive(Debug, Clone)]
pub(super) struct Subscriber {
    pub(super) number: u64,
    pub(super) outbox: Arc<Outbox>,
    pub(super) rights: Arc<Rights>,
    pub(super) grant: Grant,
}

/// The subscribers of one filter, ordered by number, in chunks that snapshots share: a change copies one chunk
/// and the list of chunks, whether ten clients have the filter or a hundred thousand.
#[derive(Debug, Clone, Default)]
pub(super) struct SubscriberList {
    // INVARIANT: no chunk is empty; numbers rise within and across chunks.
    chunks: Vec<Arc<Vec<Subscriber>>>,
}

impl SubscriberList {
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Subscriber> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// Adds, or replaces the one of the same number.
    pub(super) fn insert(&mut self, subscriber: Subscriber) {
        let number = subscriber.number;
        let Some(at) = self.chunk_of(number) else {
            self.chunks.push(Arc::new(vec![subscriber]));
            return;
        };
        let mut chunk = Vec::clone(&self.chunks[at]);
        match chunk.binary_search_by_key(&number, |other| other.number) {
            Ok(position) => chunk[position] = subscriber,
            Err(position) => chunk.insert(position, subscriber),
        }
        if chunk.len() > CHUNK {
            let upper = chunk.split_off(if at + 1 == self.chunks.len() { CHUNK } else { CHUNK / 2 });
            self.chunks.insert(at + 1, Arc::new(upper));
        }
        self.chunks[at] = Arc::new(chunk);
    }

    /// Whether there was one of this number.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        let Some(at) = self.chunk_of(number) else { return false };
        let Ok(position) = self.chunks[at].binary_search_by_key(&number, |other| other.number) else { return false };
        if self.chunks[at].len() == 1 {
            self.chunks.remove(at);
        } else {
            let mut chunk = Vec::clone(&self.chunks[at]);
            chunk.remove(position);
            self.chunks[at] = Arc::new(chunk);
        }
        true
    }

    /// The chunk in which a number is, or belongs; `None` when there is no chunk at all.
    fn chunk_of(&self, number: u64) -> Option<usize> {
        let after = self.chunks.partition_point(|chunk| chunk[0].number <= number);
        if self.chunks.is_empty() { None } else { Some(after.saturating_sub(1)) }
    }
}

const CHUNK: usize = 64;
