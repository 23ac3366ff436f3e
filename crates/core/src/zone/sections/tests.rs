extern crate std;

use std::vec::Vec;

use super::*;
use crate::config::{Engine, Experiment};
use crate::platform::machine::Machine;
use crate::policy::Generation;
use crate::policy::testing::Xorshift;
use crate::units::{NodeId, ZoneId, ZoneType};
use crate::zone::Section;

const fn zone(start: u64, pages: u64) -> ZoneSpec {
    ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(start), pages }
}

#[test]
fn sections_have_64_mib_and_are_four_a_cpu_and_256_at_most() {
    let gib = 1 << 18;
    let sections = |pages, cpus| Cut::new(&zone(0, pages), &Config::framewright(), cpus).sections();
    let cases = [(gib, 1), (gib, 2), (gib, 4), (gib, 16), (gib / 16, 16), (64 * gib, 16), (1024 * gib, 256)];
    assert_eq!(cases.map(|(pages, cpus)| sections(pages, cpus)), [1, 8, 16, 16, 1, 64, 256]);
    assert_eq!(Cut::new(&zone(0, gib), &Config::linux_v6_7(), 16).sections(), 1);
}

#[test]
fn a_run_is_inside_one_section_and_64_pageblocks_at_most() {
    let most = |shift| Cut { start: Pfn(0), end: Pfn(1 << 30), shift }.most_of_run();
    assert_eq!([11, 14, 15, 16, u64::BITS - 1].map(most), [1 << 11, 1 << 14, 1 << 15, 1 << 15, 1 << 15]);
}

#[test]
fn sections_are_aligned_and_tile_the_zone() {
    let experiment = Experiment { section_pages: 2048, ..Experiment::framewright() };
    let config = Config { engine: Engine::Compact, experiment, ..Config::framewright() };
    for (start, pages) in [(0, 8192), (1024, 8000), (3072, 3000), (2048, 2048), (1024, 1024)] {
        let spec = zone(start, pages);
        let cut = Cut::new(&spec, &config, 1);
        let ranges: Vec<_> = (0..cut.sections()).map(|n| cut.range(n)).collect();
        assert_eq!(ranges, cut.parts(spec.start..spec.end()).collect::<Vec<_>>());
        assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (spec.start, spec.end()));
        assert!(ranges.windows(2).all(|two| two[0].end == two[1].start && two[1].start.0 % 2048 == 0));
        for (n, range) in ranges.iter().enumerate() {
            let [first, last] = [range.start, Pfn(range.end.0 - 1)];
            assert!(cut.number_of(first) == n && cut.number_of(last) == n);
        }
    }
}

/// A zone of sections without memory, whose words the test writes.
fn sections(count: u64) -> Zone<'static, Machine> {
    let experiment = Experiment { section_pages: 1024, ..Experiment::framewright() };
    let config = Config { experiment, ..Config::framewright() };
    let spec = zone(3 * 1024, count * 1024);
    let cut = Cut::new(&spec, &config, 2);
    assert_eq!(cut.sections() as u64, count);
    let section = |n| Section::new(&config, 0, n, Pfn(0)..Pfn(1024));
    let words = if cut.is_cut() { count as usize * WORDS } else { 0 };
    let words: Vec<_> = (0..words).map(|_| Word::new(0)).collect();
    let more: Vec<_> = (1..count as usize).map(section).collect();
    Zone::new(ZoneId(0), spec, &config, 2, cut, (section(0), more.leak(), words.leak()))
}

impl Zone<'_, Machine> {
    /// Lets some sections show blocks, of some types: a few bins each, many of them the same.
    fn show_some(&self, random: &mut Xorshift) {
        let (types, sections) = (random.next() & random.next(), self.cut.sections());
        for (n, word) in self.common.words.iter().enumerate() {
            let bins = |random: &mut Xorshift| {
                (0..random.below(4))
                    .fold(0, |bins, _| bins | 1_u64 << (random.below(3) * 7 + random.below(5)))
            };
            let now = match (n / sections, random.below(3)) {
                (_, 0) => 0,
                (TYPES, _) => random.next() & random.next() & 0x1fff & (types >> 6 | 0x1000),
                (list, _) if types >> list & 1 == 0 => 0,
                (_, 1) => bins(random),
                _ => bins(random) << random.below(40) | 1 << WHOLE,
            };
            word.store(now, Relaxed);
        }
    }

    /// Numbers of the bins that have a block of at least an order, best first; from the pageblock order on 0 for
    /// singles and 1 for pairs.
    fn bins_of(&self, n: usize, order: Order, list: Migratetype) -> Vec<u32> {
        let shows = |which: usize, bit: u32| {
            self.common.words[which * self.cut.sections() + n].load(Relaxed) >> bit & 1 != 0
        };
        let kinds = 2 * list.index() as u32;
        match order.get() {
            9 => (0..2).filter(|kind| shows(TYPES, kinds + kind)).collect(),
            10 => (1..2).filter(|kind| shows(TYPES, kinds + kind)).collect(),
            small => (u32::from(small) * 7..64).filter(|&bin| shows(list.index(), bin)).collect(),
        }
    }

    /// Whether it has a largest block of exactly an order.
    fn has_exactly(&self, n: usize, order: Order, list: Migratetype) -> bool {
        let kind = |bin: u32| if order < PAGEBLOCK_ORDER { bin / 7 } else { bin + 9 };
        self.bins_of(n, order, list).iter().any(|&bin| kind(bin) == u32::from(order.get()) && bin < 63)
    }

    /// Whether it has such a block in a pageblock with 192 free frames or more.
    fn has_claimable(&self, n: usize, order: Order, list: Migratetype) -> bool {
        self.bins_of(n, order, list).iter().any(|&bin| bin / 7 == u32::from(order.get()) && bin % 7 >= 4)
    }

    fn has_mixed(&self, n: usize) -> bool {
        self.common.words[TYPES * self.cut.sections() + n].load(Relaxed) >> 12 & 1 != 0
    }

    /// The sections from one on.
    fn sections_from(&self, from: usize) -> impl Iterator<Item = usize> + Clone {
        (from..self.cut.sections()).chain(0..from)
    }

    /// What [`Zone::best`] shall find.
    fn expected(&self, order: Order, list: Migratetype, from: usize, held: &[usize]) -> Option<usize> {
        let rank = |n| self.bins_of(n, order, list).first().copied();
        let around = || self.sections_from(from).take(16);
        let others = || self.sections_from(from).skip(16);
        let of_others = |is_open: bool, has_any_lock: bool| {
            let fits = |n: &usize| {
                rank(*n).is_some_and(|bin| !is_open || bin < 63) && (has_any_lock || !held.contains(n))
            };
            others().find(fits)
        };
        let Some(best) = around().filter_map(rank).min() else {
            // Any block, then an open pageblock whose lock is free.
            let any = of_others(false, true)?;
            return if rank(any).is_some_and(|bin| bin < 63) {
                Some(any)
            } else {
                of_others(true, false).or(Some(any))
            };
        };
        if best == 63
            && let Some(open) = of_others(true, false)
        {
            return Some(open);
        }
        let is_good = |n: &usize| rank(*n).is_some_and(|bin| bin / 7 == best / 7 && bin <= best + 1);
        let stays = if order < PAGEBLOCK_ORDER { is_good(&from) } else { rank(from) == Some(best) };
        let chosen = if stays { Some(from) } else { around().find(|&n| rank(n) == Some(best)) };
        let is_free = |n: &usize| !held.contains(n);
        chosen.filter(is_free).or_else(|| around().filter(is_good).take(3).find(is_free)).or(chosen)
    }

    /// Calls `f` while the locks of some sections are held.
    fn holding(&self, held: &[usize], f: &mut dyn FnMut()) {
        match held {
            [] => f(),
            [n, rest @ ..] => {
                let lists = &self.section(*n).lists;
                lists.try_with(|_, _| self.holding(rest, f)).expect("it is free");
                assert!(!self.is_held(*n));
            }
        }
    }
}

/// A request of any order and type; CMA for movable ones, sometimes.
fn any_request(random: &mut Xorshift) -> Wanted {
    let migratetype = Migratetype::ALL[random.below(3) as usize];
    Wanted {
        order: Order::from_bits(random.below(11)),
        migratetype,
        may_use_cma: migratetype == Migratetype::Movable && random.below(2) == 1,
        may_fall_back: random.below(4) > 0,
        generation: Generation::V6_1,
        avoid_fragmentation: random.below(4) == 0,
    }
}

/// Any words, from any section, with any locks held. Against a naive model.
#[test]
fn a_cpu_goes_to_the_best_section_around_it_whose_lock_is_free() {
    let mut random = Xorshift(0x2545_f491_4f6c_dd1d);
    for count in [2, 3, 16, 17, 40] {
        let zone = sections(count);
        for _ in 0..1500 {
            zone.show_some(&mut random);
            let Wanted { order, migratetype, .. } = any_request(&mut random);
            let list = if random.below(4) == 0 { Migratetype::Cma } else { migratetype };
            let from = random.below(count) as usize;
            let is_held = if random.below(2) == 0 { 0 } else { random.next() | random.next() };
            let held: Vec<_> = (0..count as usize).filter(|n| is_held >> n & 1 != 0).collect();
            zone.holding(&held, &mut || {
                let told = || std::format!("{order} of {list} from {from} of {count}, {held:?} are held");
                assert_eq!(
                    zone.best(order, list, from),
                    zone.expected(order, list, from, &held),
                    "{}",
                    told()
                );
            });
            let shown = zone.shown().expect("there are several");
            let shows = |n| zone.has_exactly(n, order, list);
            let mixes =
                order == MAX_ORDER && list.is_ordinary() && zone.sections_from(0).any(|n| zone.has_mixed(n));
            assert_eq!(shown.has_unmixed(order, list), zone.sections_from(0).any(shows));
            assert_eq!(shown.has(order, list), mixes || zone.sections_from(0).any(shows));
        }
    }
}

/// CMA first where most free memory is CMA; then what a fallback chooses among what all sections show.
#[test]
fn a_request_goes_where_its_type_is_or_where_the_fallback_finds_a_block() {
    let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
    let (fell_back, claims_one) = (&mut 0, &mut 0);
    for count in [2, 3, 20] {
        let zone = sections(count);
        for _ in 0..4000 {
            zone.show_some(&mut random);
            zone.common.counters.managed.store(random.below(2) * 10_000, Relaxed);
            zone.common.counters.free.store(1000, Relaxed);
            zone.common.counters.free_cma.store([0, 500, 501][random.below(3) as usize], Relaxed);
            let (wanted, from) = (any_request(&mut random), random.below(count) as usize);
            let Wanted { order, migratetype, generation, avoid_fragmentation, .. } = wanted;
            let has_cma = wanted.may_use_cma && zone.free_cma_pages() != 0;
            let lists = match (has_cma, zone.free_cma_pages() > 500) {
                (false, _) => [migratetype; 2],
                (true, false) => [migratetype, Migratetype::Cma],
                (true, true) => [Migratetype::Cma, migratetype],
            };
            let of_type = lists.into_iter().find_map(|list| zone.expected(order, list, from, &[]));
            let expected = if let Some(n) = of_type {
                Some((n, Wanted { may_fall_back: false, ..wanted }))
            } else if !wanted.may_fall_back {
                None
            } else if order == MAX_ORDER
                && let Some(n) = zone.sections_from(from).find(|&n| zone.has_mixed(n))
            {
                Some((n, wanted))
            } else {
                let any = |order, list| zone.sections_from(0).any(|n| zone.has_exactly(n, order, list));
                let grouping = zone.common.counters.grouping();
                fallback::choose(generation, order, migratetype, grouping, avoid_fragmentation, any).map(
                    |Source { order: largest, migratetype: list, steal }| {
                        *fell_back += 1;
                        let claims = |n: &usize| zone.has_claimable(*n, largest, list);
                        let claimed = zone.sections_from(from).find(claims);
                        if let (Steal::Pageblock, Some(n)) = (steal, claimed) {
                            *claims_one += 1;
                            return (n, wanted);
                        }
                        let (found, list) = match steal {
                            Steal::Pageblock => {
                                fallback::smallest(order, migratetype, any).expect("that one")
                            }
                            _ => (largest, list),
                        };
                        let shows = |n: &usize| zone.has_exactly(*n, found, list);
                        (zone.sections_from(from).find(shows).expect("a section has it"), wanted)
                    },
                )
            };
            assert_eq!(zone.section_for(&wanted, from), expected, "{wanted:?} from {from} of {count}");
        }
    }
    assert!(*fell_back > 200 && (50..*fell_back - 50).contains(claims_one), "{fell_back}, {claims_one}");
    let wanted = any_request(&mut random);
    assert_eq!(sections(1).section_for(&wanted, 0), Some((0, wanted)), "there is but one");
}

/// By the fullest class that has a block of the order, equal ones from the section of a frame on.
#[test]
fn the_fullest_sections_come_first() {
    let mut random = Xorshift(0x1234_5678_9abc_def1);
    for count in [1, 2, 9] {
        let zone = sections(count);
        for _ in 0..500 {
            zone.show_some(&mut random);
            let (order, from) = (Order::from_bits(random.below(9)), random.below(count));
            let at = zone.spec().start.add(from * 1024 + random.below(1024));
            let class = |n: &usize| {
                let bins = zone.bins_of(*n, order, Migratetype::Movable).into_iter();
                bins.filter(|&bin| bin < 63).map(|bin| bin % 7).min()
            };
            let mut expected: Vec<_> = zone.sections_from(from as usize).collect();
            if count > 1 {
                expected.retain(|n| class(n).is_some());
                expected.sort_by_key(class);
            }
            let found: Vec<_> = zone.fullest_first(order, Migratetype::Movable, at).collect();
            assert_eq!(found, expected, "{order} from {from} of {count}");
        }
    }
}
