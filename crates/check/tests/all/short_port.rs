//! The short way of `docs/porting.md`, run as it is printed there.

/// The code of the guide.
#[expect(unsafe_code, reason = "memory for the allocator's own structures")]
mod guide {
    include!(concat!(env!("OUT_DIR"), "/short_port.rs"));

    pub(super) fn of(start: u64, pages: u64) -> Result<Allocator<'static, OneCpu>, SetupError> {
        page_frames(Pfn(start), pages, |layout| {
            // SAFETY: the layout is not empty.
            NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).expect("the host has memory")
        })
    }
}

use framewright::platform::OneCpu;
use framewright::{Migratetype, Order, SetupError, ZoneId};

const LISTING: &str = include_str!(concat!(env!("OUT_DIR"), "/short_port.rs"));

/// At most ten statements between the signature and the closing brace.
#[test]
fn the_short_port_has_at_most_ten_lines() {
    let (_, body) = LISTING.split_once("SetupError> {\n").expect("one function");
    let lines = body.lines().map(str::trim).filter(|line| !line.starts_with("//") && *line != "}");
    assert!((6..=10).contains(&lines.clone().count()), "{:?}", lines.collect::<Vec<_>>());
}

#[test]
fn the_short_port_gives_every_frame_and_takes_it_back() {
    let allocator = guide::of(1 << 18, 5000).expect("a plain zone");
    let cpu = allocator.cpu(&OneCpu);
    for order in [Order::ZERO, Order::new(3).expect("an order")] {
        let mut held = Vec::new();
        while let Ok(pfn) = cpu.alloc(order, Migratetype::Movable) {
            held.push(pfn);
        }
        assert_eq!(held.len() as u64, 5000 / order.pages());
        held.sort_unstable();
        held.dedup();
        assert_eq!(held.len() as u64, 5000 / order.pages(), "no block twice");
        for pfn in held {
            cpu.free(pfn, order).expect("it is allocated");
            assert!(cpu.free(pfn, order).is_err(), "a double free");
        }
    }
    cpu.drain();
    assert_eq!(allocator.free_pages(), 5000);
    assert_eq!(allocator.verify().expect("sound").free, 5000);
}

#[test]
fn the_short_port_refuses_a_zone_that_starts_anywhere() {
    assert_eq!(guide::of((1 << 18) + 1, 5000).err(), Some(SetupError::BadZone(ZoneId(0))));
}
