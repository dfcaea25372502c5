//! Versions of the subscription index, which tell whether an earlier match is still valid.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use tenbin_codec::TopicFilter;

/// Versions of the index: one for each part, and one for all parts.
///
/// A part is all topics whose first level has the same hash. So a SUBSCRIBE invalidates only routes of its part,
/// unless its filter begins with a wildcard.
///
/// Written after the snapshot (release), read before it (acquire). A reader that sees a version and then loads the
/// snapshot gets that version's snapshot or a later one. So a cached match is never older than its version.
#[derive(Debug)]
pub(super) struct Versions {
    all: AtomicU64,
    parts: Box<[AtomicU64; PARTS]>,
}

/// One part of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part(u8);

/// A set of parts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// One bit per part.
    bits: u64,
    is_all: bool,
}

impl Versions {
    /// Grows with every change that may concern any topic.
    #[inline]
    pub(super) fn of_all(&self) -> u64 {
        self.all.load(Ordering::Acquire)
    }

    /// Grows with every other change that may concern a topic of this part.
    #[inline]
    pub(super) fn of(&self, part: Part) -> u64 {
        self.parts[usize::from(part.0) % PARTS].load(Ordering::Acquire)
    }

    /// Invalidates the matches of these parts.
    pub(super) fn raise(&self, parts: Parts) {
        if parts.is_all {
            self.all.fetch_add(1, Ordering::Release);
            return;
        }
        let changed = (0..PARTS).filter(|part| parts.bits >> part & 1 == 1);
        changed.for_each(|part| {
            self.parts[part].fetch_add(1, Ordering::Release);
        });
    }
}

impl Default for Versions {
    fn default() -> Self {
        Self { all: AtomicU64::new(0), parts: Box::new([const { AtomicU64::new(0) }; PARTS]) }
    }
}

impl Part {
    /// Returns the part of topics that begin with this level.
    pub(super) fn of(first_level: &[u8], hasher: &RandomState) -> Self {
        Self((hasher.hash_one(first_level) % PARTS as u64) as u8)
    }
}

impl Parts {
    pub(super) const ALL: Self = Self { bits: 0, is_all: true };

    /// Adds the parts whose topics `filter` may match.
    pub(super) fn add(&mut self, filter: &TopicFilter, hasher: &RandomState) {
        match filter.levels().next() {
            Some(b"+" | b"#") | None => self.is_all = true,
            Some(first) => self.bits |= 1 << Part::of(first, hasher).0,
        }
    }
}

const PARTS: usize = u64::BITS as usize;
