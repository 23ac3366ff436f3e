//! A recorded run: its spans nest, cover what they should, and change nothing.

use framewright::Order;
use framewright::config::{LockKind, LockPlace};
use framewright_sim::bench::{Bench, Case, linux, linux_recorded};
use framewright_sim::trace::{Doing, Span};

use crate::machine::{locked, socket};

#[test]
fn spans_of_a_cpu_nest_and_recording_changes_nothing() {
    let case = Case { bench: Bench::Bulk, order: Order::ZERO, cores: 4, blocks: 400, stands_for: 400 };
    let allocator = locked(LockKind::Ticket, LockPlace::OwnLine, 31, 186);
    let plain = linux(&socket(4), &allocator, &case, 1).expect("a world");
    let outcome = linux_recorded(&socket(4), &allocator, &case, 1, 1 << 20).expect("a world");
    assert_eq!(outcome.events, plain.events);
    let recorded = outcome.recorded.expect("it was asked for");
    for cpu in 0..4 {
        let mut spans: Vec<Span> = recorded.spans.iter().copied().filter(|span| span.cpu == cpu).collect();
        spans.sort_by_key(|span| (span.start, core::cmp::Reverse(span.end)));
        let mut open: Vec<Span> = Vec::new();
        for span in spans {
            while open.last().is_some_and(|outer| outer.end <= span.start) {
                open.pop();
            }
            assert!(open.last().is_none_or(|outer| span.end <= outer.end), "{span:?} leaves {open:?}");
            assert_eq!(open.is_empty(), span.doing == Doing::Run, "{span:?}");
            open.push(span);
        }
    }
    let time = |doing: Doing| -> u64 {
        let all = recorded.spans.iter().filter(|span| span.doing == doing);
        all.map(|span| span.end.since(span.start).0 / 1000).sum()
    };
    // The allocator's own counters say the same, in whole ns.
    let [locks, wait, hold] = outcome.lock;
    assert!(time(Doing::LockWait).abs_diff(wait) <= locks && time(Doing::LockHold).abs_diff(hold) <= locks);
    let place = |name: &str| recorded.names.iter().position(|known| known == name);
    assert!(time(Doing::Poll(place("zone lock"))) > 0, "ticket waiters poll the lock");
    assert!(time(Doing::Transfer(place("zone lock"))) > 0, "and the lock's line moves");
}
