extern crate std;

use std::collections::BTreeMap;
use std::vec::Vec;

use super::*;
use crate::buddy::testing::{Store, ZONE};
use crate::buddy::{Placement, Run};
use crate::frame::BlockInfo;
use crate::platform::machine::Machine;
use crate::policy::testing::Xorshift;
use crate::units::ZoneId;

/// Pageblocks of the store: its bitmaps have 520 words, of which a bit of a root stands for eight.
const PAGEBLOCKS: u64 = 520 * 64 - 7;

/// The free pageblocks of a store, by number. All that a bitmap answers follows from it.
#[derive(Default)]
struct Naive(BTreeMap<u64, Migratetype>);

impl Naive {
    fn is_ordinary(&self, n: u64) -> bool {
        self.0.get(&n).is_some_and(|list| list.is_ordinary())
    }

    /// The pageblocks of a type whose buddies are of the type, too; or those whose buddies are not.
    fn of_kind(&self, list: Migratetype, in_pairs: bool) -> impl Iterator<Item = u64> {
        let all = self.0.iter().filter(move |(_, listed)| **listed == list).map(|(&n, _)| n);
        all.filter(move |n| (self.0.get(&(n ^ 1)) == Some(&list)) == in_pairs)
    }

    /// The pageblocks that a request for up to `most` blocks gets: of one word.
    fn first(&self, order: Order, list: Migratetype, most: u64) -> Vec<u64> {
        let in_pairs = order == MAX_ORDER || self.of_kind(list, false).next().is_none();
        let word = self.of_kind(list, in_pairs).next().map(|n| n / 64);
        let most = most * (order.pages() / PAGEBLOCK_PAGES);
        self.of_kind(list, in_pairs).filter(|n| Some(n / 64) == word).take(most as usize).collect()
    }

    /// The lower of two buddies of different ordinary types.
    fn mixed_pair(&self, lower: Option<Migratetype>) -> Option<u64> {
        let differ =
            |n: u64| self.is_ordinary(n) && self.is_ordinary(n + 1) && self.0[&n] != self.0[&(n + 1)];
        let mut lowers = self.0.keys().copied().filter(|n| n % 2 == 0);
        lowers.find(|&n| differ(n) && lower.is_none_or(|list| self.0[&n] == list))
    }

    /// Blocks of order 9 and 10.
    fn blocks(&self, list: Migratetype) -> [u64; 2] {
        let is_buddy = |n: u64| match list.is_ordinary() {
            true => self.is_ordinary(n),
            false => self.0.get(&n) == Some(&list),
        };
        let of_type = || self.0.iter().filter(|(_, listed)| **listed == list).map(|(&n, _)| n);
        let singles = of_type().filter(|n| !is_buddy(n ^ 1)).count();
        let pairs = of_type().filter(|n| n % 2 == 0 && is_buddy(n + 1)).count();
        [singles as u64, pairs as u64]
    }
}

/// A pageblock near the start, near borders of two words, of two bits of a root and of two maps, or near the end.
fn any_pageblock(random: &mut Xorshift) -> u64 {
    let from = [0, 64 * 64 - 20, 512 * 64 - 20, PAGEBLOCKS - 40][random.below(4) as usize];
    from + random.below(40)
}

fn any_type(random: &mut Xorshift) -> Migratetype {
    Migratetype::ALL[[0, 1, 1, 2, 4, 5][random.below(6) as usize]]
}

fn numbers(order: Order, wholes: &Wholes) -> Vec<u64> {
    let mut all = Vec::new();
    wholes.each(order, |pfn| all.push((pfn.0 - Store::pageblock(0).0) / PAGEBLOCK_PAGES));
    all
}

/// Frees, takes and moves of pageblocks in any order. Against a naive model.
#[test]
#[expect(clippy::too_many_lines, reason = "a step for each call")]
fn bitmaps_answer_what_follows_from_the_pageblocks_that_are_free() {
    let (mut store, mut naive, random) =
        (Store::new(PAGEBLOCKS, false), Naive::default(), &mut Xorshift(0x2545_f491_4f6c_dd1d));
    // Free pages and counters as they should be.
    let (mut counted, mut refused, mut retyped) = (0_i64, 0, 0);
    let mut put = 0;
    for step in 0..2000 {
        let (n, list) = (any_pageblock(random), any_type(random));
        let (even, order) = (n / 2 * 2, if random.below(2) == 0 { PAGEBLOCK_ORDER } else { MAX_ORDER });
        let at = Store::pageblock(n);
        let frames = store.frames;
        match random.below(9) {
            0 if !naive.0.contains_key(&n) => {
                store.set_type(n, list);
                store.with(|buddy| buddy.set_whole(at, list));
                naive.0.insert(n, list);
            }
            1 if even + 1 < PAGEBLOCKS && naive.0.range(even..even + 2).next().is_none() => {
                [even, even + 1].into_iter().for_each(|n| store.set_type(n, list));
                store.with(|buddy| buddy.set_pair(Store::pageblock(even), list));
                naive.0.extend([(even, list), (even + 1, list)]);
            }
            2 => {
                // A run, also across several words, all of one type, or of the type of each of them.
                let first = n.saturating_sub(random.below(3) * 30);
                let numbers = first..(first + 1 + random.below(50)).min(PAGEBLOCKS);
                let all = || numbers.clone().filter(|n| !naive.0.contains_key(n));
                if random.below(4) > 0 {
                    all().for_each(|n| store.set_type(n, list));
                    if random.below(2) == 0 {
                        // Make room.
                        for n in numbers.clone().filter(|n| naive.0.contains_key(n)).collect::<Vec<_>>() {
                            store.with(|buddy| buddy.take_whole_at(Store::pageblock(n))).expect("it is free");
                            store.set_type(n, list);
                            naive.0.remove(&n);
                        }
                    }
                }
                let types: Vec<_> =
                    numbers.clone().map(|n| frames.info(Store::pageblock(n)).migratetype()).collect();
                let may = numbers.start / 64 == (numbers.end - 1) / 64
                    && types[0].is_ordinary()
                    && types.iter().all(|&list| list == types[0])
                    && naive.0.range(numbers.clone()).next().is_none();
                let count = numbers.end - numbers.start;
                if random.below(3) == 0 {
                    // In any case: what is free already is refused, and all else freed to its own type.
                    let run =
                        Run { first: Store::pageblock(first), count: count as u32, order: PAGEBLOCK_ORDER };
                    store.with(|buddy| buddy.free_run(run));
                    for (n, list) in numbers.zip(types) {
                        if naive.0.insert(n, list).is_some() {
                            refused += PAGEBLOCK_PAGES;
                        } else if list != Migratetype::Isolate {
                            counted += PAGEBLOCK_PAGES as i64;
                        }
                    }
                    continue;
                }
                let did = store.with(|buddy| buddy.put_pageblocks(Store::pageblock(first), count));
                assert_eq!(did, may, "{numbers:?}");
                if may {
                    counted += (count * PAGEBLOCK_PAGES) as i64;
                    naive.0.extend(numbers.map(|n| (n, types[0])));
                    put += 1;
                }
            }
            3 | 4 => {
                let most = 1 + random.below(if step % 2 == 0 { 3 } else { 70 });
                let expected = naive.first(order, list, most);
                let took = store.with(|buddy| buddy.take_wholes(order, list, most));
                assert_eq!(took.is_some(), !expected.is_empty(), "{most} of {order}, {list}");
                if let Some(took) = took {
                    assert_eq!(numbers(PAGEBLOCK_ORDER, &took), expected, "{most} of {order}, {list}");
                    let step = (order.pages() / PAGEBLOCK_PAGES) as usize;
                    let starts: Vec<u64> = expected.iter().copied().step_by(step).collect();
                    assert_eq!(
                        (numbers(order, &took), took.blocks(order)),
                        (starts.clone(), starts.len() as u64)
                    );
                    assert_eq!(took.first(), Store::pageblock(starts[0]));
                }
                expected.iter().for_each(|n| _ = naive.0.remove(n));
            }
            5 => assert_eq!(store.with(|buddy| buddy.take_whole_at(at)), naive.0.remove(&n)),
            6 if even + 1 < PAGEBLOCKS && naive.0.range(even..even + 2).count() == 2 => {
                let took = store.with(|buddy| buddy.take_large_at(Store::pageblock(even), order));
                assert_eq!(took, naive.0.remove(&even));
                if order == MAX_ORDER {
                    naive.0.remove(&(even + 1));
                }
            }
            7 if list.is_ordinary() => {
                store.with(|buddy| buddy.take_over(at, list));
                if naive.is_ordinary(n) && naive.0.insert(n, list) != Some(list) {
                    retyped += 1;
                }
            }
            8 if even + 1 < PAGEBLOCKS => {
                // Freed to the type of each pageblock; refused if one of them is free.
                let first = if order == MAX_ORDER { even } else { n };
                let numbers = first..first + order.pages() / PAGEBLOCK_PAGES;
                store.with(|buddy| buddy.put_large(Store::pageblock(first), order, Placement::Likely));
                if naive.0.range(numbers.clone()).next().is_some() {
                    refused += order.pages();
                } else {
                    for n in numbers {
                        let list = frames.info(Store::pageblock(n)).migratetype();
                        counted += if list == Migratetype::Isolate { 0 } else { PAGEBLOCK_PAGES as i64 };
                        naive.0.insert(n, list);
                    }
                }
            }
            _ => {}
        }
        assert_eq!(frames.free_whole(at), naive.0.get(&n).copied());
        let start = |n: Option<u64>| n.map(Store::pageblock);
        store.with(|buddy| {
            let any = |in_pairs| naive.of_kind(list, in_pairs).next();
            assert_eq!(buddy.first_whole(list), start(any(false).or(any(true))), "{list}");
            let kinds = [PAGEBLOCK_ORDER, MAX_ORDER].map(|order| buddy.has_whole(order, list));
            assert_eq!(kinds, [false, true].map(|in_pairs| any(in_pairs).is_some()), "{list}");
            let lower = Some(list).filter(|list| list.is_ordinary());
            assert_eq!(buddy.mixed_pair(lower), start(naive.mixed_pair(lower)), "{lower:?}");
            assert_eq!(buddy.mixed_pair(None), start(naive.mixed_pair(None)));
            assert_eq!(buddy.nr_whole(list), naive.blocks(list), "{list}");
            if step % 64 == 0 {
                for list in Migratetype::ALL {
                    assert_eq!(buddy.check_whole(list), Ok(naive.blocks(list)), "{list}");
                }
            }
            let counts = buddy.counts();
            assert_eq!((counts.refused_pages, counts.retyped), (refused, retyped));
            assert_eq!((counts.rebuilt_bins, counts.damaged_pages), (0, 0));
        });
        assert_eq!(
            store.common.counters.free.load(core::sync::atomic::Ordering::Relaxed).cast_signed(),
            counted
        );
    }
    assert!(put > 30 && refused > 0 && retyped > 10, "{put} {refused} {retyped}");
}

/// A root that promises more than its words have: the search that it misleads makes it anew, and finds all that is
/// there in its order.
#[test]
fn a_root_that_promises_too_much_is_made_anew() {
    // Bits of empty words, and behind the last word.
    let damage = [u128::MAX, 1 << 3 | 1 << 9, 1 << 63, 1 << 65, 1 << 127];
    let kinds = [Migratetype::Movable, Migratetype::Isolate]
        .into_iter()
        .flat_map(|list| KINDS.map(|kind| (list, kind)));
    for (bits, (list, kind)) in kinds.flat_map(|kind| damage.map(|bits| (bits, kind))) {
        // Singles in the words 0 and 1 of the bitmap, pairs in others.
        let (singles, pairs) = ([0, 66, 70, 32_770], [400, 9000, 33_000]);
        let pairs: Vec<u64> = pairs.into_iter().flat_map(|n| [n, n + 1]).collect();
        let mut store = Store::new(PAGEBLOCKS, false);
        let took = store.with(|buddy| {
            let set = |buddy: &mut Buddy<'_, '_, _, _>, n| {
                buddy.frames.set_info(Store::pageblock(n), BlockInfo::new(ZONE, list));
                buddy.set_whole(Store::pageblock(n), list);
            };
            singles.iter().chain(&pairs).for_each(|&n| set(buddy, n));
            buddy.check_whole(list).expect("several words have one bit of a root");
            set_root(buddy, (list, kind), bits);
            // A word that becomes non-empty is found, also if the root had its bit before.
            set(buddy, 3 * 64 * 64);
            let order = if kind == Kind::Pairs { MAX_ORDER } else { PAGEBLOCK_ORDER };
            let mut all = Vec::new();
            while let Some(took) = buddy.take_wholes(order, list, 64) {
                all.extend(numbers(PAGEBLOCK_ORDER, &took));
            }
            assert!(buddy.counts().rebuilt_bins > 0 && buddy.counts().damaged_pages == 0);
            buddy.check_whole(list).expect("they are made anew");
            all
        });
        let expected = match kind {
            Kind::Pairs => pairs,
            Kind::Singles => [0, 66, 70, 3 * 64 * 64, 32_770].into_iter().chain(pairs).collect(),
        };
        assert_eq!(took, expected);
    }
}

fn set_root(buddy: &mut Buddy<'_, '_, Machine, ()>, (list, kind): (Migratetype, Kind), bits: u128) {
    let root = &mut buddy.cold.whole.roots[list as usize][kind as usize];
    root.set(root.get() | bits);
}

/// Two free buddies of different types are published, and withdrawn, also where the roots of both types stay.
#[test]
fn buddies_of_two_types_are_shown_though_no_root_changes() {
    let mut store = Store::section(16);
    [1, 9].into_iter().for_each(|n| store.set_type(n, Migratetype::Unmovable));
    for n in [0, 4, 9, 1] {
        store.with(|buddy| buddy.free(Store::pageblock(n), PAGEBLOCK_ORDER, Placement::Likely));
        store.check();
    }
    assert_eq!(store.with(|buddy| buddy.mixed_pair(None)), Some(Store::pageblock(0)));
    let taken = store.with(|buddy| {
        buddy.account(Migratetype::Unmovable, -(PAGEBLOCK_PAGES as i64));
        buddy.take_whole_at(Store::pageblock(1))
    });
    assert_eq!(taken, Some(Migratetype::Unmovable));
    store.check();
}

/// Of two pairs that are taken together half of one is damaged: its other half is free again, and the other pair is
/// taken.
#[test]
fn a_damaged_half_of_a_pair_costs_no_other_pair() {
    let list = Migratetype::Movable;
    for bad in 0..4 {
        let mut store = Store::new(4, true);
        let pairs = [0, 2].map(Store::pageblock);
        store.with(|buddy| pairs.iter().for_each(|&at| buddy.free(at, MAX_ORDER, Placement::Likely)));
        let took = store.with(|buddy| {
            buddy.frames.set_state(Store::pageblock(bad), PAGEBLOCK_ORDER, State::Body);
            buddy.take_wholes(MAX_ORDER, list, 2).map(|took| numbers(PAGEBLOCK_ORDER, &took))
        });
        assert_eq!(took, Some(if bad < 2 { [2, 3] } else { [0, 1] }.to_vec()), "{bad}");
        let left: Vec<u64> =
            (0..4).filter(|&n| store.frames.free_whole(Store::pageblock(n)).is_some()).collect();
        assert_eq!(left, [bad ^ 1]);
        assert_eq!(
            store.with(|buddy| (buddy.counts().damaged_pages, buddy.first_whole(list))),
            (PAGEBLOCK_PAGES, Some(Store::pageblock(bad ^ 1)))
        );
    }
}

/// What [`Buddy::check_whole`] finds.
#[test]
fn each_disagreement_is_found() {
    let list = Migratetype::Movable;
    let damage: [fn(&mut Buddy<'_, '_, Machine, ()>); 7] = [
        |buddy| buddy.frames.set_info(Store::pageblock(4), BlockInfo::ABSENT),
        |buddy| buddy.frames.set_info(Store::pageblock(4), BlockInfo::new(ZoneId(0), Migratetype::Movable)),
        |buddy| buddy.frames.set_info(Store::pageblock(4), BlockInfo::new(ZONE, Migratetype::Unmovable)),
        |buddy| buddy.frames.set_state(Store::pageblock(4), PAGEBLOCK_ORDER, State::Body),
        |buddy| {
            let (map, n) = buddy.group_at(Migratetype::Movable, 0);
            map.set_word(n, map.word(n) | 1 << 10);
        },
        |buddy| set_root(buddy, (Migratetype::Movable, Kind::Singles), 2),
        |buddy| set_root(buddy, (Migratetype::Movable, Kind::Pairs), 1),
    ];
    // Behind the store's end, of its zone and type.
    let mut cut = Store::new(9, true);
    cut.with(|buddy| buddy.set_whole(Store::pageblock(4), list));
    cut.extent.range.end = Store::pageblock(4);
    let behind =
        cut.with(|buddy| buddy.check_whole(list).expect_err("it has the bit of another's pageblock"));
    let mut found: Vec<_> = damage
        .into_iter()
        .map(|damage| {
            Store::new(9, true).with(|buddy| {
                buddy.set_whole(Store::pageblock(4), list);
                assert_eq!(buddy.check_whole(list), Ok([1, 0]));
                damage(buddy);
                buddy.check_whole(list).expect_err("it is damaged")
            })
        })
        .collect();
    found.insert(5, behind);
    assert!(found[..6].iter().all(|(_, at)| at.is_some()) && found[6..].iter().all(|(_, at)| at.is_none()));
    found.dedup_by_key(|(what, _)| *what);
    assert_eq!(found.len(), 4, "{found:?}");
}
