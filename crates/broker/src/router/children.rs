use std::hash::Hash;
use std::sync::Arc;

use bytes::Bytes;
use imbl::HashMap;

/// The levels below a node of the filter tree, shared between snapshots. Few are a sorted vector, which is
/// small; many are a hash trie, of which a change copies a path.
#[derive(Debug)]
pub(super) enum Children<T> {
    Few(Vec<(Bytes, Arc<T>)>),
    Many(HashMap<Level, Arc<T>>),
}

/// One level's name as a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Level(Bytes);

impl std::borrow::Borrow<[u8]> for Level {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl<T> Children<T> {
    pub(super) fn get(&self, level: &[u8]) -> Option<&Arc<T>> {
        match self {
            Self::Few(few) => {
                few.binary_search_by(|(name, _)| name[..].cmp(level)).ok().map(|position| &few[position].1)
            }
            Self::Many(many) => many.get(level),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Few(few) => few.is_empty(),
            Self::Many(many) => many.is_empty(),
        }
    }

    pub(super) fn insert(&mut self, level: &[u8], child: Arc<T>) {
        match self {
            Self::Few(few) => match few.binary_search_by(|(name, _)| name[..].cmp(level)) {
                Ok(position) => few[position].1 = child,
                Err(position) if few.len() < FEW => {
                    few.insert(position, (Bytes::copy_from_slice(level), child));
                }
                Err(_) => {
                    let mut many: HashMap<Level, Arc<T>> =
                        few.drain(..).map(|(name, child)| (Level(name), child)).collect();
                    many.insert(Level(Bytes::copy_from_slice(level)), child);
                    *self = Self::Many(many);
                }
            },
            Self::Many(many) => {
                many.insert(Level(Bytes::copy_from_slice(level)), child);
            }
        }
    }

    pub(super) fn remove(&mut self, level: &[u8]) {
        match self {
            Self::Few(few) => {
                if let Ok(position) = few.binary_search_by(|(name, _)| name[..].cmp(level)) {
                    few.remove(position);
                }
            }
            Self::Many(many) => {
                many.remove(level);
            }
        }
    }
}

impl<T> Clone for Children<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Few(few) => Self::Few(few.clone()),
            Self::Many(many) => Self::Many(many.clone()),
        }
    }
}

impl<T> Default for Children<T> {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

/// Up to so many children a search in a vector is as fast and far smaller.
const FEW: usize = 16;
