//! Every pure policy over a grid of arguments, small and large, and at the ends of what a word can hold.

use framewright::config::{ListOrder, PcpRule, ZoneReclaimMode, ZonelistCache};
use framewright::fault::FaultRule;
use framewright::policy::Generation;
use framewright::policy::compact::{Defer, Resume, is_suitable};
use framewright::policy::fallback as fall;
use framewright::policy::init::{self, Job, Split};
use framewright::policy::nodes::{NodePolicy, choose};
use framewright::policy::passes::{Facts, Limits, Means, Outcome, Passes, Step};
use framewright::policy::pcp::{self, Shortage, Sizing, Traffic, Tuning};
use framewright::policy::reclaim::{self, Balance, Caller, Reclaimable};
use framewright::policy::watermark::{self as marks, Access, FreePages, Marks};
use framewright::policy::zlc::{self, Seen};
use framewright::policy::zonelist::{self, Entry, Topology, ZonelistOrder};
use framewright::units::{MAX_ZONE_PAGES, Migratetype, NodeId, NodeMask, Order, Pfn, ZoneId, ZoneType};
use framewright::zone::{Zone, ZoneSpec};
use framewright::{Config, Flags, Plan, Request};
use framewright_check::platform::checked::Checked;
use framewright_check::platform::plain::Plain;

use crate::record::Trail;

const GENERATIONS: [Generation; 2] = [Generation::V3_0, Generation::V6_1];
const RULES: [PcpRule; 5] = [PcpRule::V5_4, PcpRule::V6_1, PcpRule::V6_7, PcpRule::V6_16, PcpRule::Auto];
const WORDS: [u64; 14] = [0, 1, 2, 3, 31, 32, 64, 100, 511, 512, 1025, 262_144, 1 << 40, u64::MAX];
const BOOLS: [bool; 2] = [false, true];

fn order(order: u8) -> Order {
    Order::new(order).expect("an order")
}

fn some_orders() -> impl Iterator<Item = Order> + Clone {
    [0, 1, 2, 3, 4, 5, 8, 9, 10].into_iter().map(order)
}

fn kinds() -> impl Iterator<Item = Migratetype> + Clone {
    Migratetype::ALL.into_iter()
}

pub(crate) fn units(trail: &mut Trail) {
    for word in WORDS.into_iter().chain(1020..1028) {
        let pfn = Pfn(word);
        trail.note(&(Order::for_pages(word), Order::try_from(word).ok(), Order::try_from(word as u32).ok()));
        trail.note(&(Order::try_from(word as usize).ok(), Order::new(word as u8)));
        for order in Order::all() {
            trail.note(&(pfn.block_start(order), pfn.is_aligned(order)));
            if word < 1 << 41 {
                trail.note(&(pfn.buddy(order), pfn.add(order.pages())));
            }
        }
        if word < 1 << 41 {
            for pages in [1, 2, 3, 511, 512, 1024, 5000] {
                trail.note(&Order::largest_at(pfn, pages));
            }
        }
        let mask = NodeMask(word);
        trail.note(&(
            mask.is_empty(),
            mask.len(),
            mask.iter().collect::<Vec<_>>(),
            mask.iter().collect::<NodeMask>(),
        ));
        for node in [0, 1, 5, 63, 64, 200] {
            let node = NodeId(node);
            trail.note(&(mask.has(node), NodeMask::of(node), mask.or(NodeMask(6)), mask.and(NodeMask(7))));
        }
    }
    for order in Order::all() {
        let above: Vec<Order> = order.and_above().collect();
        trail.note(&(order.pages(), order.index(), order.get(), above, order.and_above().next_back()));
    }
    for kind in kinds() {
        trail.note(&(kind.index(), kind.is_ordinary(), kind.name()));
    }
    for kind in ZoneType::ALL {
        trail.note(&kind.name());
        let spec = ZoneSpec { node: NodeId(1), kind, start: Pfn(7), pages: 5 };
        trail.note(&(spec.end(), [6, 7, 11, 12].map(|pfn| spec.spans(Pfn(pfn)))));
    }
    let all = [
        Flags::HIGH,
        Flags::NO_WAIT,
        Flags::ATOMIC,
        Flags::NO_RETRY,
        Flags::REPEAT,
        Flags::NO_FAIL,
        Flags::THIS_NODE,
        Flags::NO_WRITE,
        Flags::NO_RESERVES,
        Flags::VICTIM,
        Flags::NO_WAKE,
        Flags::ZERO,
    ];
    for a in all {
        for b in all {
            trail.note(&(a.and(b), a.without(b), a.has(b), a.and(b).has(b), a.and(b).without(a)));
        }
        for kind in [Migratetype::Movable, Migratetype::Unmovable] {
            for highest in ZoneType::ALL {
                let request = Request::new(order(2), kind).up_to(highest).with(a).with(Flags::HIGH);
                trail.note(&(request, request.highest_usable(), request.facts(false), request.facts(true)));
                trail.note(&ZoneType::ALL.map(|kind| request.may_use(kind)));
            }
        }
    }
}

pub(crate) fn faults(trail: &mut Trail) {
    for rule in [
        FaultRule::nth(1),
        FaultRule::nth(0),
        FaultRule::nth(5).times(3).from_order(order(4)),
        FaultRule::share(0, 1),
        FaultRule::share(13, 99),
        FaultRule::share(100, 3),
    ] {
        trail.note(&(rule, (0..300).map(|n| rule.fails(n)).collect::<Vec<_>>()));
    }
}

pub(crate) fn compaction(trail: &mut Trail) {
    for order in some_orders() {
        for low in WORDS {
            for reserve in [0, 5, 700, u64::MAX] {
                for all in [0, 10, 600, 1040, 3000, u64::MAX] {
                    let free = FreePages { all, highatomic: all / 8, cma: all / 5 };
                    trail.note(&is_suitable(order, low, reserve, free));
                }
            }
        }
        let mut defer = Defer::default();
        for n in 0..60 {
            trail.note(&(defer.passes_over(order), defer.passes_over(self::order(3)), defer, defer.pack()));
            trail.note(&Defer::unpack(defer.pack()));
            defer = if n % 11 == 10 {
                defer.succeeded(self::order(n / 11 * 2))
            } else {
                defer.failed(self::order(n % 7))
            };
        }
        for failed in 0..11 {
            let defer = Defer { considered: 3, shift: 2, failed };
            trail.note(&(defer.succeeded(order), defer.failed(order)));
        }
    }
    for generation in GENERATIONS {
        trail.note(&Resume::is_kept(generation));
    }
    for (low, high) in [(0, 0), (0, 1), (5, 5), (5, 6), (9, 4), (1000, 40_000)] {
        let packed = Resume::pack(Some(Resume { low, high }));
        trail.note(&(packed, Resume::unpack(packed), Resume::pack(None)));
    }
    trail.note(&(Resume::PACKED_BITS, WORDS.map(Resume::unpack)));
}

pub(crate) fn fallback(trail: &mut Trail) {
    for pages in WORDS {
        for types in [0, 1, 3, 4] {
            trail.note(&fall::grouping(pages, types));
        }
        for compatible in WORDS {
            trail.note(&BOOLS.map(|grouping| fall::retypes(pages, compatible, grouping)));
            for kind in kinds() {
                trail.note(&BOOLS.map(|may| fall::cma_first(kind, may, pages, compatible)));
                for generation in GENERATIONS {
                    for requester in kinds() {
                        trail.note(&fall::compatible_pages(
                            generation,
                            requester,
                            kind,
                            pages.min(512),
                            compatible.min(512),
                        ));
                    }
                }
            }
        }
    }
    for kind in kinds() {
        trail.note(&fall::fallbacks(kind));
        for order in Order::all() {
            for generation in GENERATIONS {
                for grouping in BOOLS {
                    trail.note(&(
                        fall::can_steal_whole(generation, order, kind, grouping),
                        fall::steal(generation, order, kind, grouping),
                        fall::search(generation, order, kind, grouping),
                    ));
                    for avoid in BOOLS {
                        for n in 0..40_u64 {
                            let has = |order: Order, kind: Migratetype| {
                                framewright_check::mix(n << 8 | u64::from(order.get()) << 4 | kind as u64) % 7
                                    < n % 5
                            };
                            trail.note(&fall::choose(generation, order, kind, grouping, avoid, has));
                        }
                    }
                }
            }
            trail.note(&kinds().map(|other| fall::may_merge(order, kind, other)).collect::<Vec<_>>());
        }
    }
    for order in Order::all() {
        trail.note(&BOOLS.map(|avoid| fall::search_floor(order, avoid)));
        for forced in BOOLS {
            for free in BOOLS {
                trail.note(&fall::to_tail(order, forced, || free));
            }
        }
    }
}

pub(crate) fn initialisation(trail: &mut Trail) {
    let ranges = |of: &[(u64, u64)]| of.iter().map(|&(start, end)| Pfn(start)..Pfn(end)).collect::<Vec<_>>();
    let some = [
        ranges(&[]),
        ranges(&[(0, 512)]),
        ranges(&[(0, 1024), (1024, 4096)]),
        ranges(&[(100, 5000), (5001, 5002), (8192, 60_000)]),
        ranges(&[(u64::MAX - 5000, u64::MAX)]),
        ranges(&[(512, 700), (1023, 1025), (2047, 9000), (32_768, 40_000)]),
    ];
    for ranges in &some {
        for section in [0, 1, 512, 1024, 4096, 32_768] {
            trail.note(&(
                init::first_deferred(ranges, section),
                init::first_deferred_of(ranges.iter().cloned(), section),
            ));
            for at in [0, 1, 1024, 1500, 8192, 33_000] {
                for split in [Split::OneThread, Split::AllCpus, Split::AllCpusBySection] {
                    for cpus in [0, 1, 3, 64] {
                        let jobs = init::jobs(ranges, Pfn(at), split, cpus, section).take(20);
                        for job in jobs {
                            trail.note(&(
                                &job,
                                job.claims().take(30).collect::<Vec<_>>(),
                                job.claim(Pfn(at)),
                            ));
                        }
                    }
                }
            }
        }
        for (start, end) in [(0, 10), (0, 1024), (600, 1024), (5000, 5003), (9000, 33_000)] {
            trail.note(&init::clipped(ranges, Pfn(start)..Pfn(end)).collect::<Vec<_>>());
        }
    }
    for at in WORDS.into_iter().chain([1023, 1024, 1536, 4096]) {
        trail.note(&init::unit_end(Pfn(at)));
        for end in [0, 512, 1024, 1025, 2048, 1 << 50] {
            trail.note(&init::release_order(Pfn(at), Pfn(end)));
        }
        for order in some_orders() {
            trail.note(&init::growth_target(order, at));
        }
        for (align, min, most) in [(1024, 1024, 1), (1024, 1024, 7), (2048, 4096, 3), (0, 0, 0)] {
            trail.note(&Job::new(Pfn(5)..Pfn(at), align, min, most));
        }
    }
}

pub(crate) fn nodes(trail: &mut Trail) {
    let weights = [3, 0, 2];
    for usable in [0, 1, 2, 5, 7, 15] {
        for wanted in [0, 1, 2, 4, 6, 15] {
            for turn in 0..12 {
                let nodes = NodeMask(wanted);
                for policy in [
                    NodePolicy::Local,
                    NodePolicy::Preferred(NodeId(turn as u16)),
                    NodePolicy::PreferredMany(nodes),
                    NodePolicy::Bind(nodes),
                    NodePolicy::Interleave { nodes, turn },
                    NodePolicy::Weighted { nodes, weights: &weights, turn },
                ] {
                    trail.note(&BOOLS.map(|this| choose(policy, NodeId(1), NodeMask(usable), this)));
                }
            }
        }
    }
}

pub(crate) fn passes(trail: &mut Trail) {
    let mut random = fastrand::Rng::with_seed(3);
    for bits in 0..2048_u32 {
        let is = |bit: u32| bits >> bit & 1 == 1;
        let facts = Facts {
            order: order([0, 1, 3, 4, 9][random.usize(0..5)]),
            movable: random.bool(),
            can_wait: is(0),
            high: random.bool(),
            no_retry: is(1),
            repeat: is(2),
            no_fail: is(3),
            may_write: is(4),
            no_reserves: random.bool(),
            reclaiming: is(5),
            victim: is(6),
        };
        let means = Means { marks: is(7), reclaim: is(8), compact: is(9), forget: random.bool() };
        let limits = Limits { without_progress: random.u32(0..4), rounds: random.u32(1..9) };
        let (mut passes, mut step) = Passes::begin(GENERATIONS[usize::from(is(10))], facts, means, limits);
        for _ in 0..60 {
            trail.note(&(step, passes.reclaimed()));
            if step == Step::Fail {
                break;
            }
            let outcomes = [
                Outcome::Done,
                Outcome::Progress(random.u64(0..3)),
                Outcome::NoProgress,
                Outcome::Yes,
                Outcome::No,
            ];
            let outcome = match step {
                Step::Reclaim => outcomes[random.usize(1..3)],
                Step::Assess | Step::Kill => outcomes[random.usize(3..5)],
                _ => Outcome::Done,
            };
            step = passes.next(outcome);
        }
    }
}

pub(crate) fn lists(trail: &mut Trail) {
    for rule in RULES {
        trail.note(&(
            rule.moves_high(),
            rule.watches_orders(),
            [0, 1, 63, u32::MAX].map(|batch| rule.most_counted(batch)),
        ));
        for fraction in [0, 1, 7, 8, 9, 100, u32::MAX] {
            trail.note(&pcp::validate_fraction(rule, fraction));
            for managed in WORDS.into_iter().chain([4096, 100_000, 1 << 20]) {
                for (low, cpus) in [(0, 0), (100, 1), (5000, 3), (1 << 30, 16), (u64::MAX, 1)] {
                    trail.note(&pcp::size(rule, managed, low, cpus, fraction));
                    trail.note(&pcp::size_with_cap(rule, managed, low, cpus, fraction, pcp::BATCH_CAP_V3_0));
                }
            }
        }
    }
    for pages in WORDS.into_iter().chain((0..40).map(|n| n * 7000)) {
        trail.note(&[1, 4, 128, 256].map(|cap| pcp::raw_batch(pages, cap)));
    }
    for cpus in [0, 1, 4, u32::MAX] {
        trail.note(&BOOLS.map(|coming| pcp::sharing_cpus(cpus, coming, 9)));
    }
    for held in [[0, 0, 0], [1, 0, 5], [9, 9, 9], [3, 20, 1], [0, 0, 40]] {
        for count in [0, 1, 2, 3, 4, 7, 10, 26, 50, u32::MAX] {
            trail.note(&pcp::round_robin(held, count));
        }
    }
    let sizing = Sizing { batch: 7, high_min: 20, high_max: 50 };
    trail.note(&[0, 19, 20, 21, 49, 50, 51].map(|high| sizing.clamp_high(high)));
}

pub(crate) fn tuning(trail: &mut Trail) {
    let mut random = fastrand::Rng::with_seed(8);
    let pressures = [Shortage::None, Shortage::BelowHigh, Shortage::Reclaim];
    for n in 0..4000_usize {
        let rule = RULES[n % 5];
        let high_min = random.u32(0..300);
        let more = if random.u32(0..3) == 0 { 0 } else { random.u32(0..900) };
        let batch = [1, 7, 31, 63, 200][random.usize(0..5)];
        let sizing = Sizing { batch, high_min, high_max: high_min + more };
        let pressure = pressures[random.usize(0..3)];
        let traffic = Traffic {
            count: random.u32(0..600),
            free_count: random.u32(0..3000),
            alloc_factor: random.u8(0..7),
            free_factor: random.u8(0..7),
            freed_high: random.bool(),
        };
        let tuning = Tuning { traffic, high: random.u32(0..1300) };
        trail.note(&(Tuning::new(sizing), tuning.resized(sizing), tuning.threshold(rule, sizing, pressure)));
        for order in some_orders() {
            trail.note(&tuning.refill(rule, sizing, order, pressure));
            trail.note(&tuning.drain(rule, sizing, order, pressure));
            trail.note(&traffic.needs_drain(rule, tuning.high, order));
            let pages = order.pages() as u32;
            if traffic.count >= pages {
                trail.note(&(traffic.on_alloc(pages), traffic.drained(pages)));
            }
            trail.note(&(traffic.on_free(rule, batch, pages), traffic.refilled(pages)));
        }
        trail.note(&(tuning.tick(rule, sizing), sizing.is_tuned()));
        // At the bounds themselves.
        let at =
            Tuning { traffic: Traffic { count: high_min, free_count: batch, ..traffic }, high: high_min };
        trail.note(&(at.drain(rule, sizing, order(0), pressure), at.drain(rule, sizing, order(2), pressure)));
        let at = Tuning {
            traffic: Traffic { count: batch, free_count: batch + high_min / 2, ..traffic },
            high: batch,
        };
        trail
            .note(&(at.drain(rule, sizing, order(1), pressure), at.refill(rule, sizing, order(0), pressure)));
        trail.note(&(at.refill(rule, sizing, order(1), pressure), at.tick(rule, sizing)));
    }
}

pub(crate) fn reclaim(trail: &mut Trail) {
    let modes = (0..8).map(ZoneReclaimMode);
    for mode in modes {
        trail.note(&(
            mode.is_on(),
            mode.and(ZoneReclaimMode::WRITE),
            (0..8).map(|bits| mode.has(ZoneReclaimMode(bits))).collect::<Vec<_>>(),
        ));
        for n in 0..60 {
            let mut random = fastrand::Rng::with_seed(n);
            let mut some = || random.u64(0..120) * if random.u32(0..9) == 0 { u64::MAX / 200 } else { 1 };
            let has = Reclaimable {
                file_lru: some(),
                file: some(),
                file_mapped: some(),
                file_dirty: some(),
                anon_lru: some(),
                slab: some(),
            };
            trail.note(&(has.on_lists(), has.page_cache(mode)));
            for pages in [0, 99, 100, 1000, 2000, 10_000, 1 << 30] {
                for bits in 0..8 {
                    let asker = Caller {
                        must_not: bits & 1 > 0,
                        remote_with_cpus: bits & 2 > 0,
                        unreclaimable: bits & 4 > 0,
                    };
                    trail.note(&reclaim::zone_reclaim(mode, &has, pages, asker));
                }
            }
        }
    }
    for distances in [&[][..], &[10, 20], &[10, 30], &[10, 31], &[255]] {
        trail.note(&ZoneReclaimMode::at_boot(distances));
    }
    for order in Order::all() {
        trail.note(&reclaim::zone_reclaim_target(order));
        for a in WORDS {
            for b in WORDS {
                for c in [0, 5, u64::MAX] {
                    trail.note(&(reclaim::could_help(a, b, c, order), reclaim::could_help(a, c, b, order)));
                }
            }
        }
    }
    for a in WORDS.into_iter().chain([6, 12, 600]) {
        for b in WORDS {
            trail.note(&(
                [0, 1].map(|freed| reclaim::is_unreclaimable(a, b, freed)),
                reclaim::shrink_mark(a, b, 5000),
                reclaim::shrink_mark(5, a, b),
            ));
        }
    }
    for bits in 0..512_u32 {
        let zones: Vec<Balance> = (0..3)
            .map(|n| {
                let bits = bits >> (3 * n);
                Balance {
                    pages: if bits & 1 > 0 { 100 << n } else { 0 },
                    meets_high: bits & 2 > 0,
                    unreclaimable: bits & 4 > 0,
                }
            })
            .collect();
        for priority in [reclaim::FIRST_PRIORITY, 5, 0] {
            trail.note(&reclaim::highest_unbalanced(&zones, priority));
        }
        for generation in GENERATIONS {
            trail.note(&[0, 3, 10].map(|n| reclaim::is_balanced(generation, order(n), &zones)));
        }
    }
}

pub(crate) fn watermarks(trail: &mut Trail) {
    for a in WORDS.into_iter().chain([4, 16, 1 << 14, 1 << 24]) {
        trail.note(&GENERATIONS.map(|generation| marks::min_free_kib(generation, a)));
        for b in WORDS {
            trail.note(&(
                marks::recommended_pages_min(a, b),
                marks::pages_min(a, b),
                marks::boost_after_reclaim(a, b),
            ));
            for c in [0, 1, 7, 4096, u64::MAX] {
                trail.note(&(
                    marks::share(a, b, c),
                    marks::boost_after_steal(a, b, c, 15_000),
                    marks::boost_after_steal(c, a, 9000, b),
                ));
                for generation in GENERATIONS {
                    for high in BOOLS {
                        let made = Marks::new(generation, a, b, c, high);
                        trail.note(&(made, made.boosted(c)));
                    }
                }
            }
        }
    }
    for generation in GENERATIONS {
        for pages in [[0, 0, 0, 0], [4096, 0, 100_000, 50], [10, 20, 30, 40], [u64::MAX, 5, u64::MAX, 7]] {
            for ratios in [marks::RESERVE_RATIOS, [0, 0, 0, 0], [1, 2, 3, 4]] {
                trail.note(&marks::lowmem_reserve(generation, &pages, &ratios));
            }
        }
    }
    for bits in 0..32_u32 {
        let is = |bit: u32| bits >> bit & 1 == 1;
        let access = Access { high: is(0), harder: is(1), oom_victim: is(2), highatomic: is(3), cma: is(4) };
        trail.note(&kinds().map(|kind| access.may_use(kind)).collect::<Vec<_>>());
        for mark in [0, 1, 3, 7, 100, 1 << 40] {
            trail.note(&GENERATIONS.map(|generation| access.lowered(generation, mark)));
            for order in some_orders() {
                for reserve in [0, 9, u64::MAX] {
                    let request = marks::Check { order, mark, reserve, access };
                    for free in [0, 1, 2, 20, 101, 113, 600, 1200, u64::MAX] {
                        trail.note(&marks::check_v3_0(&request, free, |order| free >> (1 + order.get())));
                        let pages = FreePages { all: free, highatomic: free / 4, cma: free / 3 };
                        for n in 0..4 {
                            let has = |order: Order, kind: Migratetype| {
                                (u64::from(order.get()) + kind as u64 + n).is_multiple_of(5)
                            };
                            trail.note(&marks::check_v6_1(&request, pages, has));
                        }
                    }
                }
            }
        }
    }
}

pub(crate) fn cache(trail: &mut Trail) {
    let seen = [
        Seen::Forbidden,
        Seen::BelowMark,
        Seen::ReclaimOff,
        Seen::NotScanned,
        Seen::Full,
        Seen::StillBelow,
        Seen::NothingTaken,
    ];
    for rule in [
        ZonelistCache::Off,
        ZonelistCache::AfterFirstZone,
        ZonelistCache::BeforeFirstZone,
        ZonelistCache::BeforeFirstZoneAndClear,
    ] {
        trail.note(&rule.clears_after_progress());
        for several in BOOLS {
            for first in seen {
                for second in seen {
                    let mut walk = zlc::ZlcWalk::new(rule, several);
                    trail.note(&(
                        walk.looks_twice(),
                        walk.skips(false),
                        walk.saw(first),
                        walk.skips(false),
                        walk.skips(true),
                    ));
                    trail.note(&(
                        walk.saw(second),
                        walk.skips(false),
                        walk.again(),
                        walk.saw(first),
                        walk.again(),
                        walk.skips(false),
                    ));
                }
            }
        }
    }
    for now in WORDS.into_iter().chain([1_000_000_000, 1_000_000_001, 1_000_000_006]) {
        trail.note(&WORDS.map(|last| zlc::zaps(now, last)));
    }
}

pub(crate) fn zonelists(trail: &mut Trail) {
    let mut random = fastrand::Rng::with_seed(4);
    for _ in 0..400 {
        let nodes = random.usize(1..6);
        let distance: Vec<u8> = (0..nodes * nodes)
            .map(|n| if n % (nodes + 1) == 0 { 10 } else { [20, 21, 30, 40][random.usize(0..4)] })
            .collect();
        let has_cpus: Vec<bool> = (0..nodes).map(|_| random.bool()).collect();
        let pages: Vec<[u64; 4]> = (0..nodes)
            .map(|_| [0_u64; 4].map(|_| if random.bool() { 0 } else { random.u64(1..9000) }))
            .collect();
        let topology = Topology::new(&distance, &has_cpus, &pages).expect("as many of each");
        trail.note(&(topology.nodes(), zonelist::default_order_v3_0(&topology)));
        trail.note(&Topology::new(&distance[1..], &has_cpus, &pages).is_none());
        trail.note(&Topology::new(&distance, &has_cpus[1..], &pages).is_none());
        let mut load = vec![0; nodes];
        for local in 0..nodes {
            let mut out = vec![NodeId(0); nodes];
            let len = zonelist::node_order(&topology, NodeId(local as u16), &mut load, &mut out);
            trail.note(&(&out[..len], &load));
            for by in [ZonelistOrder::Node, ZonelistOrder::Zone] {
                let mut entries = vec![Entry { node: NodeId(0), zone: ZoneType::Dma }; 4 * nodes];
                let count = zonelist::zonelist(by, &topology, &out[..len], &mut entries);
                trail.note(&&entries[..count]);
            }
        }
    }
}

pub(crate) fn plans(trail: &mut Trail) {
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..300 {
        let zones: Vec<ZoneSpec> = (0..random.u64(0..5))
            .map(|n| ZoneSpec {
                node: NodeId(random.u16(0..4)),
                kind: ZoneType::ALL[random.usize(0..4)],
                start: Pfn(match random.u32(0..30) {
                    0 => 1 << 52,
                    1 => (1 << 52) - 1024,
                    _ => n * 8192 + [0, 0, 0, 1024, 512, 5][random.usize(0..6)],
                }),
                pages: if random.u32(0..20) == 0 { MAX_ZONE_PAGES + n } else { random.u64(0..9000) },
            })
            .collect();
        let cpus: Vec<NodeId> = (0..random.usize(0..9)).map(|_| NodeId(random.u16(0..4))).collect();
        let names = [
            "framewright",
            "linux_v3_0",
            "linux_v5_4",
            "linux_v6_1",
            "linux_v6_7",
            "own_lists",
            "own_slots",
            "own_fixed",
            "own_no_lists",
            "own_zero",
            "own_costly",
            "own_fraction",
        ];
        let mut config: Config = crate::world::config(names[random.usize(0..names.len())]);
        config.experiment.pcp_slots =
            if random.u32(0..9) == 0 { random.u32(0..70) } else { config.experiment.pcp_slots };
        config.experiment.pcp_fraction =
            if random.u32(0..9) == 0 { random.u32(0..12) } else { config.experiment.pcp_fraction };
        config.page_kib = if random.u32(0..9) == 0 { random.u32(0..20) } else { config.page_kib };
        config.poison = random.u32(0..9) == 0;
        config.experiment.zonelist_order =
            [ListOrder::Node, ListOrder::Zone, ListOrder::AsV3_0][random.usize(0..3)];
        trail.note(&Plan::new(&zones, &cpus, &config));
    }
    // As many zones and nodes as there may be, and one more.
    for (count, node) in [(255, 0), (256, 0), (2, 63), (2, 64), (2, 65)] {
        let zones: Vec<_> = (0..count)
            .map(|n| ZoneSpec {
                node: NodeId(node),
                kind: ZoneType::Normal,
                start: Pfn(n * 1024),
                pages: 512,
            })
            .collect();
        trail.note(&Plan::new(&zones, &[NodeId(0), NodeId(node)], &Config::default()));
    }
    trail.note(&(ZoneId(3).index(), Zone::<Checked>::layout(), Zone::<Plain>::layout()));
}
