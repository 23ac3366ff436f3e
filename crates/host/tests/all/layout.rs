//! Places of the shared fields on this platform, byte by byte. The crate does not compile if one moves; here the
//! numbers can be read, and the relations that the study of the lock's cache line rests on.

use core::mem::{align_of, size_of};

use framewright_host::Host;
use framewright_host::framewright::frame::Pageblock;
use framewright_host::framewright::pcp::Pcp;
use framewright_host::framewright::sync::QueueNode;
use framewright_host::framewright::zone::{Layout, Zone};
use framewright_host::framewright::{Frame, Platform};

const LINE: usize = 64;

#[test]
fn descriptors_are_compact() {
    assert_eq!(size_of::<<Host as Platform>::Word>(), 8);
    assert_eq!(size_of::<Frame<Host, ()>>(), 8);
    assert_eq!(size_of::<Frame<Host, u64>>(), 16);
    assert_eq!(size_of::<Frame<Host, [u64; 7]>>(), LINE, "the size of Linux' struct page");
    assert_eq!(size_of::<Pageblock<Host>>(), 16);
}

#[test]
fn the_lock_has_three_places() {
    let Layout {
        locks,
        order0_lists,
        order0_count,
        order10_lists,
        isolated_count,
        cold,
        bins,
        counters,
        untouched,
    } = Zone::<Host>::layout();
    assert_eq!(locks, [0, 992, 1024]);
    assert_eq!([order0_lists, order0_count, order10_lists, isolated_count], [16, 96, 896, 984]);
    let [with_order0_lists, other_end, own_line] = locks.map(|at| at / LINE);
    assert_eq!(with_order0_lists, order0_lists / LINE, "shares a line with the order-0 lists");
    assert_eq!(other_end, isolated_count / LINE, "shares a line with the end of order 10");
    assert_ne!(other_end, order0_count / LINE);
    let others = [order0_lists, order0_count, order10_lists, isolated_count, cold, bins, counters, untouched];
    assert!(others.iter().all(|at| at / LINE != own_line), "shares its line with nothing");
}

#[test]
fn what_one_cpu_writes_is_in_lines_of_its_own() {
    assert_eq!(align_of::<Pcp<'_, Host>>(), 2 * LINE, "adjacent-line prefetch fetches pairs");
    assert_eq!(size_of::<Pcp<'_, Host>>() % (2 * LINE), 0);
    assert_eq!((align_of::<QueueNode<Host>>(), size_of::<QueueNode<Host>>()), (LINE, LINE));
    assert_eq!(align_of::<Zone<Host>>(), LINE);
    assert_eq!(size_of::<Zone<Host>>() % LINE, 0);
}
