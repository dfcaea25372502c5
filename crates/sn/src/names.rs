use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxBuildHasher;
use tenbin_codec::TopicName;

/// Topic names of all clients, each stored once.
#[derive(Debug)]
pub(crate) struct Names {
    bytes_maximum: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    names: HashSet<Arc<TopicName>, FxBuildHasher>,
    bytes: usize,
    /// Bytes from which on unused names are searched for.
    sweep_from: usize,
    /// Refusals until the next search for unused names, which visits all names.
    skipped_sweeps: u32,
}

/// Memory of a name without its text.
const NAME_OVERHEAD: usize = 96;
/// The fewest bytes from which on unused names are searched for.
const SWEEP_FROM: usize = 1 << 20;
/// Refusals after a sweep that freed nothing.
const SWEEPS_SKIPPED: u32 = 1000;

impl Names {
    pub(crate) fn new(bytes_maximum: usize) -> Self {
        Self { bytes_maximum, table: Mutex::default() }
    }

    /// The stored name. Forgets unused names if there is no room; `None` if that frees none.
    pub(crate) fn intern(&self, name: &TopicName) -> Option<Arc<TopicName>> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = table.names.get(name) {
            return Some(Arc::clone(known));
        }
        let size = size(name);
        // Names of clients that come and go take no more than twice the others.
        if table.bytes + size > table.sweep_from.max(SWEEP_FROM) {
            table.remove_unused();
            table.sweep_from = 2 * table.bytes;
        }
        if table.bytes + size > self.bytes_maximum {
            table.sweep();
            if table.bytes + size > self.bytes_maximum {
                return None;
            }
        }
        let name = Arc::new(name.detach());
        table.bytes += size;
        table.names.insert(Arc::clone(&name));
        Some(name)
    }
}

impl Table {
    fn sweep(&mut self) {
        if let Some(left) = self.skipped_sweeps.checked_sub(1) {
            self.skipped_sweeps = left;
            return;
        }
        let before = self.bytes;
        self.remove_unused();
        if self.bytes == before {
            self.skipped_sweeps = SWEEPS_SKIPPED;
        }
    }

    fn remove_unused(&mut self) {
        let bytes = &mut self.bytes;
        self.names.retain(|name| {
            let is_used = Arc::strong_count(name) > 1;
            if !is_used {
                *bytes -= size(name);
            }
            is_used
        });
    }
}

fn size(name: &TopicName) -> usize {
    name.as_bytes().len() + NAME_OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> TopicName {
        TopicName::try_from(text).expect("a name")
    }

    #[test]
    fn names_that_come_and_go_leave_little() {
        let names = Names::new(64 << 20);
        let kept = names.intern(&name("kept")).expect("room");
        for number in 0..100_000 {
            assert!(names.intern(&name(&format!("up/{number}"))).is_some());
        }
        let bytes = names.table.lock().expect("no panic").bytes;
        assert!(bytes <= SWEEP_FROM, "{bytes} bytes");
        assert!(Arc::ptr_eq(&kept, &names.intern(&name("kept")).expect("it is known")));
    }

    #[test]
    fn equal_names_share_memory_and_unused_ones_make_room() {
        let names = Names::new(2 * (NAME_OVERHEAD + 1));
        let first = names.intern(&name("a")).expect("room");
        assert!(Arc::ptr_eq(&first, &names.intern(&name("a")).expect("it is known")));
        let second = names.intern(&name("b")).expect("room");
        drop(first);
        let third = names.intern(&name("c")).expect("the unused name makes room");
        assert!(names.intern(&name("d")).is_none(), "all names are in use");
        assert_eq!((second.text(), third.text()), (&"b".try_into().unwrap(), &"c".try_into().unwrap()));
    }
}
