//! Marks: how much of a zone may be given away, and what a request that fails has looked at.

use framewright::Cpu;
use framewright_check::prelude::*;

use super::specs;

type OneCpu<'a> = Cpu<'a, 'a, Plain>;

const PAGEBLOCKS: u64 = 128;

/// A way to ask for memory: what it is, the request whose flags it has, and how it asks. Returns whether it got any.
struct Way(&'static str, Request<'static>, fn(&OneCpu<'_>, &Request<'_>, u64) -> bool);

fn alone(cpu: &OneCpu<'_>, request: &Request<'_>, _: u64) -> bool {
    cpu.alloc_with(request, &Helpers::NONE).is_ok()
}

fn many(cpu: &OneCpu<'_>, request: &Request<'_>, _: u64) -> bool {
    let mut out = vec![Pfn(0); 4096 >> request.order.get()];
    cpu.alloc_bulk(request.order, request.migratetype, &mut out) == out.len()
}

fn range(cpu: &OneCpu<'_>, _: &Request<'_>, round: u64) -> bool {
    let start = BASE.add(round % PAGEBLOCKS * PAGEBLOCK_PAGES + 17);
    let _ = cpu.alloc_contig_range(start..start.add(300), &Helpers::NONE);
    round < PAGEBLOCKS
}

fn ways() -> Vec<Way> {
    let request = |k, migratetype| Request::new(order(k), migratetype);
    let (unmovable, movable) = (Migratetype::Unmovable, Migratetype::Movable);
    let mut ways = vec![
        Way("bulk", request(0, unmovable), many),
        Way("bulk of order 4", request(4, movable), many),
        Way("contiguous", request(0, unmovable), range),
    ];
    for flags in [Flags::NONE, Flags::HIGH, Flags::NO_WAIT, Flags::ATOMIC, Flags::VICTIM] {
        for k in [0, 3, 8, 9, 10] {
            let migratetype = if k == 8 { movable } else { unmovable };
            ways.push(Way("single", request(k, migratetype).with(flags), alone));
        }
    }
    ways
}

/// With CMA pageblocks and some that are reserved for high orders, which most requests may not use: however memory is
/// asked for, by however many requests, each leaves every zone as much as its flags say, and so an urgent request finds
/// something after it.
#[test]
fn p05_no_request_leaves_a_zone_below_its_mark() {
    for Way(what, request, ask) in ways() {
        for (name, spec) in specs(PAGEBLOCKS, 2, Config::with_marks) {
            let world: World<Plain> = spec.build();
            let allocator = world.allocator();
            for n in 0..PAGEBLOCKS {
                let to = match n % 32 {
                    0..5 => Migratetype::Cma,
                    5 => Migratetype::HighAtomic,
                    _ => continue,
                };
                allocator.set_pageblock_type(BASE.add(n * PAGEBLOCK_PAGES), to).expect("it has memory");
            }
            let mut round = 0;
            loop {
                let floors = Floors::before(allocator, &request);
                let got = world.on(0, |cpu| ask(cpu, &request, round));
                let held = floors.check(allocator, &request);
                assert_eq!(held, Ok(()), "{name}, {what}, {request:?}: request {round}");
                round += 1;
                if !got {
                    break;
                }
            }
            assert!(round > 3, "{name}, {what}, {request:?}: {round} requests");
            let is_linux = name == "linux_v6_7";
            if request.flags == Flags::NONE && request.migratetype == Migratetype::Unmovable && !is_linux {
                let urgent = Request::new(Order::ZERO, Migratetype::Unmovable).with(Flags::ATOMIC);
                let got = world.on(1, |cpu| cpu.alloc_with(&urgent, &Helpers::NONE));
                assert!(got.is_ok(), "{name}, {what}, {request:?}: {got:?}");
            }
        }
    }
}

/// One huge request that meets the low mark brings no huge pages beyond it onto the list.
#[test]
fn a_refill_of_huge_blocks_stops_at_the_mark() {
    for (name, spec) in specs(4 * PAGEBLOCKS, 2, Config::with_marks).filter(|(name, _)| *name != "linux_v6_7")
    {
        let world: World<Plain> = spec.build();
        let zone = world.zone();
        let marks = zone.marks();
        while zone.free_pages() > marks.low + 5000 {
            world.must_alloc(0, order(10));
        }
        world.must_alloc(0, PAGEBLOCK_ORDER);
        assert!(zone.free_pages() >= marks.low, "{name}: {} pages left of {marks:?}", zone.free_pages());
    }
}

/// A bulk request stops where single requests do: what is for CMA or reserved for high orders counts for neither.
#[test]
fn many_at_once_leave_what_single_requests_leave() {
    for (to, pageblocks) in [(Migratetype::Cma, 24), (Migratetype::HighAtomic, 3)] {
        for (name, spec) in specs(PAGEBLOCKS, 2, Config::with_marks).filter(|(name, _)| *name != "linux_v6_7")
        {
            let world: World<Plain> = spec.build();
            let allocator = world.allocator();
            (0..pageblocks).for_each(|n| _ = allocator.set_pageblock_type(BASE.add(n * PAGEBLOCK_PAGES), to));
            let mut out = vec![Pfn(0); (PAGEBLOCKS * PAGEBLOCK_PAGES) as usize];
            world.on(0, |cpu| cpu.alloc_bulk(Order::ZERO, Migratetype::Unmovable, &mut out));
            let zone = &allocator.zones()[0];
            // The last request may have given a pageblock of the reserve back to all.
            let is_kept =
                |n: &u64| allocator.frames().info(BASE.add(n * PAGEBLOCK_PAGES)).migratetype() == to;
            let kept = (0..pageblocks).filter(is_kept).count() as u64;
            let usable = zone.free_pages() - kept * PAGEBLOCK_PAGES;
            assert!(usable >= zone.marks().min, "{name}, {to}: {usable} usable pages, {:?}", zone.marks());
        }
    }
}

/// Memory that a request may use, in a place where it is no hit: on this CPU's lists, of another order and type, or
/// reserved for high orders. Linux does not drain for a request that cannot wait.
#[test]
fn p06_a_request_fails_only_if_nothing_is_left_that_it_may_use() {
    for flags in [Flags::NONE, Flags::NO_WAIT, Flags::ATOMIC, Flags::VICTIM] {
        for (name, spec) in specs(64, 2, |config| config) {
            if name == "linux_v6_7" && flags.has(Flags::NO_WAIT) {
                continue;
            }
            let world: World<Plain> = spec.build();
            let request = Request::new(Order::ZERO, Migratetype::Unmovable).with(flags);
            let mut all: Vec<_> = world.on(0, |cpu| cpu.alloc_all(PAGEBLOCK_ORDER));
            assert_eq!(all.len(), 64, "{name}");
            for pfn in all.drain(..8) {
                world.must_free(0, pfn, PAGEBLOCK_ORDER);
            }
            for n in 0..8 * PAGEBLOCK_PAGES {
                let got = world.on(0, |cpu| cpu.alloc_with(&request, &Helpers::NONE));
                assert!(got.is_ok(), "{name}, {flags:?}, page {n}: {got:?}");
            }
        }
    }
}

/// A single page for a request that cannot wait may come from what is reserved for high orders, as the last resort.
#[test]
fn an_urgent_page_comes_from_the_reserve_in_the_end() {
    for (name, spec) in specs(PAGEBLOCKS, 1, Config::with_marks).filter(|(name, _)| *name != "linux_v6_7") {
        let world: World<Plain> = spec.build();
        let reserve = BASE.add(3 * PAGEBLOCK_PAGES);
        world.allocator().set_pageblock_type(reserve, Migratetype::HighAtomic).expect("it has memory");
        let urgent = Request::new(Order::ZERO, Migratetype::Unmovable).with(Flags::ATOMIC);
        let got = world.on(0, |cpu| {
            let all = core::iter::from_fn(|| cpu.alloc_with(&urgent, &Helpers::NONE).ok());
            all.map(|pfn| pfn.block_start(PAGEBLOCK_ORDER) == reserve).collect::<Vec<_>>()
        });
        let zone = world.zone();
        let kept = zone.marks().min.div_ceil(2);
        let kept = kept - kept / 4;
        assert!(zone.free_pages() >= kept, "{name}");
        assert!(
            got.iter().any(|&from_reserve| from_reserve) || zone.free_pages() == kept,
            "{name}: {} pages are left",
            zone.free_pages()
        );
    }
}

/// Without marks nothing is kept back, a pageblock of the reserve's type no more than others.
#[test]
fn what_is_reserved_by_hand_can_be_had_without_marks() {
    for (name, spec) in specs(PAGEBLOCKS, 1, |config| config).filter(|(name, _)| *name != "linux_v6_7") {
        for order in [0, 3].map(order) {
            let world: World<Plain> = spec.clone().build();
            world.allocator().set_pageblock_type(BASE, Migratetype::HighAtomic).expect("it has memory");
            let urgent = Request::new(order, M).with(Flags::NO_WAIT);
            let got = world.on(0, |cpu| cpu.request_all(&urgent));
            assert_eq!(got.len() as u64 * order.pages(), PAGEBLOCKS * PAGEBLOCK_PAGES, "{name}, {order:?}");
        }
    }
}

/// A reserve for high orders that is in use is kept from no request a second time.
#[test]
fn a_reserve_that_is_used_up_goes_back_to_all() {
    for (name, spec) in specs(PAGEBLOCKS, 1, Config::with_marks).filter(|(name, _)| *name != "linux_v6_7") {
        let world: World<Plain> = spec.build();
        world.allocator().set_pageblock_type(BASE, Migratetype::HighAtomic).expect("it has memory");
        let page = Request::new(Order::ZERO, Migratetype::Unmovable);
        let large = Request::new(order(3), Migratetype::Unmovable).with(Flags::ATOMIC);
        let patient = page.with(Flags::NO_WAIT.and(Flags::NO_RESERVES));
        world.on(0, |cpu| {
            let pages = cpu.request_all(&patient);
            let is_reserved =
                |_| cpu.request(&large).expect("it is reserved").block_start(PAGEBLOCK_ORDER) == BASE;
            assert!((0..64).all(is_reserved), "{name}");
            pages.into_iter().for_each(|pfn| cpu.must_free(pfn, 0));
            cpu.request_all(&page);
        });
        let (free, min) = (world.zone().free_pages(), world.zone().marks().min);
        assert!(free <= min, "{name}: {free} pages are left, {min} are kept");
    }
}
