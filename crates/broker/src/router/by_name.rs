use std::hash::Hash;
use std::sync::Arc;

use bytes::Bytes;
use imbl::HashMap;

/// What is found by name and shared between snapshots: the levels below a node of the filter tree, the share groups of
/// a filter. Few are a sorted vector, which is small; many are a hash trie, of which a change copies a path.
#[derive(Debug)]
pub(super) enum ByName<T> {
    Few(Vec<(Bytes, Arc<T>)>),
    Many(HashMap<Name, Arc<T>>),
}

/// A name as a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Name(Bytes);

impl std::borrow::Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl<T> ByName<T> {
    pub(super) fn get(&self, name: &[u8]) -> Option<&Arc<T>> {
        match self {
            Self::Few(few) => {
                few.binary_search_by(|(other, _)| other[..].cmp(name)).ok().map(|position| &few[position].1)
            }
            Self::Many(many) => many.get(name),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Few(few) => few.is_empty(),
            Self::Many(many) => many.is_empty(),
        }
    }

    /// In no order.
    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<T>> {
        let (few, many) = match self {
            Self::Few(few) => (Some(few), None),
            Self::Many(many) => (None, Some(many)),
        };
        few.into_iter().flatten().map(|(_, value)| value).chain(many.into_iter().flat_map(HashMap::values))
    }

    pub(super) fn insert(&mut self, name: &[u8], value: Arc<T>) {
        match self {
            Self::Few(few) => match few.binary_search_by(|(other, _)| other[..].cmp(name)) {
                Ok(position) => few[position].1 = value,
                Err(position) if few.len() < FEW => {
                    few.insert(position, (Bytes::copy_from_slice(name), value));
                }
                Err(_) => {
                    let mut many: HashMap<Name, Arc<T>> =
                        few.drain(..).map(|(name, value)| (Name(name), value)).collect();
                    many.insert(Name(Bytes::copy_from_slice(name)), value);
                    *self = Self::Many(many);
                }
            },
            Self::Many(many) => {
                many.insert(Name(Bytes::copy_from_slice(name)), value);
            }
        }
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        match self {
            Self::Few(few) => {
                if let Ok(position) = few.binary_search_by(|(other, _)| other[..].cmp(name)) {
                    few.remove(position);
                }
            }
            Self::Many(many) => {
                many.remove(name);
            }
        }
    }
}

impl<T> Clone for ByName<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Few(few) => Self::Few(few.clone()),
            Self::Many(many) => Self::Many(many.clone()),
        }
    }
}

impl<T> Default for ByName<T> {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

/// Up to so many a search in a vector is as fast and far smaller.
const FEW: usize = 16;
