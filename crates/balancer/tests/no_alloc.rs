//! Checks that a pick allocates nothing, for all policies and group sizes.

#![cfg(not(loom))]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Arc,
    time::Duration,
};

use tenbin_balancer::{Availability, Dispatch, Group, LoadReport, MemberId, MemberLoad, Nanos, Policy, Rng, Rules};

thread_local! {
    /// Per thread, so that the test harness does not disturb the count. `const` and without destructor, hence usable
    /// inside the allocator.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is forwarded unchanged to `System`, which keeps the contract; counting touches no memory that the
// allocator manages.
#[allow(unsafe_code, reason = "a global allocator can be written in no other way")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same for `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System` through `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations_of(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

fn at(now: Nanos) -> Dispatch {
    let hash = Rng::new(now.0 / 2).next_u64();
    Dispatch {
        at: now,
        bytes: 100,
        is_acknowledged: !now.0.is_multiple_of(3),
        publisher: hash,
        topic: hash,
        key: Some(hash),
    }
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations_of(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn a_pick_allocates_nothing() {
    for (policy, is_ordered) in Policy::ALL.into_iter().flat_map(|policy| [(policy, false), (policy, true)]) {
        for len in [3, 1000] {
            let group =
                Group::new(Rules { policy, is_ordered, may_break_order: true, shadow: None, ..Rules::default() });
            let loads: Vec<_> = (0..len).map(|_| Arc::new(MemberLoad::new(Nanos(0)))).collect();
            for (id, load) in (0..).zip(&loads) {
                group.join(MemberId(id), Arc::clone(load), 1, id, Nanos(0));
                // Every third member stays unknown, so that the second scan is covered.
                let processing_time = Duration::from_micros(id % 3 * 100);
                load.report(&LoadReport { messages_in_queue: id % 7, processing_time, draining: false }, Nanos(1));
            }
            // The first load of a snapshot allocates `ArcSwap`'s slots, once per thread.
            drop(group.members());
            let mut rng = Rng::new(3);
            for availability in [Availability::Ready, Availability::Full, Availability::Offline] {
                loads[1..].iter().for_each(|load| load.set_availability(availability));
                loads[0].set_availability(Availability::Offline);
                let mut picked = 0;
                let allocations = allocations_of(|| {
                    for now in 0..100 {
                        picked +=
                            group.members().pick(&at(Nanos(now)), &mut rng).map_or(0, |member| *member.value() + 1);
                    }
                });
                assert!(picked > 0);
                assert_eq!(allocations, 0, "{policy}, ordered: {is_ordered}, {len} members, {availability:?}");
            }
        }
    }
}
