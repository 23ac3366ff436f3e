//! What per-CPU lists may hold is divided by the CPUs that use the memory, not by those that an arena has room for.

use framewright_host::{Arena, Backing, Cpu, Migratetype, Order};

fn arena(cpus: usize) -> Arena {
    let builder = Arena::builder().pages(1 << 18).backing(Backing::Described).cpus(cpus);
    builder.build().expect("frames without memory")
}

fn order(order: u8) -> Order {
    Order::new(order).expect("an order from 0 to 10")
}

/// Allocates 200 blocks of an order, and frees them in the same order.
fn use_blocks(cpu: &Cpu<'_>, order: Order) {
    let blocks: Vec<_> =
        (0..200).map(|_| cpu.alloc(order, Migratetype::Movable).expect("there is room")).collect();
    // SAFETY: frames without memory, each allocated above.
    blocks.iter().for_each(|&pfn| unsafe { cpu.free(pfn, order) }.expect("it is allocated"));
}

/// Blocks on all lists.
fn listed(arena: &Arena, order: Order) -> u64 {
    arena.allocator().verify().expect("it is in order");
    arena.allocator().pcp_pages() >> order.get()
}

/// Orders of which a list may hold several blocks if one CPU uses the memory.
const ORDERS: [u8; 4] = [4, 6, 8, 9];

#[test]
fn cpus_that_do_nothing_have_no_share() {
    for order in ORDERS.map(order) {
        let [alone, of_many] = [1, 64].map(|cpus| {
            let arena = arena(cpus);
            let cpu = arena.attach().expect("a slot");
            use_blocks(&cpu, order);
            listed(&arena, order)
        });
        assert!(
            alone >= 8 && of_many * 2 > alone.min(32),
            "{order}: {alone} blocks alone, {of_many} of 64 CPUs"
        );
    }
}

#[test]
fn cpus_that_come_take_a_share_and_those_that_end_give_it_back() {
    for order in ORDERS.map(order) {
        let arena = arena(64);
        let first = arena.attach().expect("a slot");
        let used = || {
            use_blocks(&first, order);
            listed(&arena, order)
        };
        let before = used();
        let more: Vec<_> = (0..31).map(|_| arena.attach().expect("a slot")).collect();
        // In the second round each of them finds that all others have come.
        (0..2).for_each(|_| more.iter().for_each(|cpu| use_blocks(cpu, order)));
        first.drain();
        let of_all = listed(&arena, order);
        assert!(of_all <= 31 * before * 3 / 4, "{order}: {of_all} on 31 lists, {before} on one before");
        drop(more);
        assert_eq!(listed(&arena, order), 0, "{order}: threads that end leave nothing");
        assert_eq!(used(), before, "{order}");
    }
}

/// A CPU that has drained its lists has them shut, also after it has served requests: its next free takes a share.
#[test]
fn lists_stay_shut_until_their_cpu_has_a_share() {
    for answers in [false, true] {
        let arena = arena(4);
        let cpu = arena.attach().expect("a slot");
        let order = order(3);
        let blocks: Vec<_> =
            (0..4).map(|_| cpu.alloc(order, Migratetype::Movable).expect("there is room")).collect();
        cpu.drain();
        if answers {
            cpu.answer();
        }
        for pfn in blocks {
            // SAFETY: a frame without memory, allocated above.
            unsafe { cpu.free(pfn, order) }.expect("it is allocated");
            assert!(listed(&arena, order) > 0);
        }
    }
}
