//! How many shared events the simulator handles in a second of one core: those in which CPUs meet, or a line moves.
//!
//! `cargo run --release -p framewright-sim --example speed` runs the benchmarks of the Xeon Gold 5320's curves that
//! have the most of them, each the whole way: world, run, results. Time is the thread's own, so what else the machine
//! does disturbs it little. Arguments choose cases by a part of their name.
#![expect(unsafe_code, reason = "the thread's own time comes from a system call")]

use framewright::Order;
use framewright::policy::pcp::Sizing;
use framewright_sim::bench::{Bench, Case, Linux, linux, linux_6_0};

#[path = "../tests/all/socket.rs"]
mod socket;

/// CPU seconds of this thread.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours, and the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let allocator =
        Linux { config: linux_6_0(), sizing: Sizing { batch: 63, high_min: 1700, high_max: 1700 } };
    let (mut shared, mut seconds) = (0, 0.0);
    println!(
        "{:<18} {:>12} {:>12} {:>10} {:>8} {:>10}  hash",
        "case", "accesses", "shared", "switches", "s", "events/s"
    );
    for (bench, order) in [
        (Bench::Bulk, 0),
        (Bench::Bulk, 4),
        (Bench::Bulk, 9),
        (Bench::Rand, 0),
        (Bench::Rand, 5),
        (Bench::Repeat, 4),
        (Bench::Repeat, 10),
    ] {
        let name = format!("{bench} order {order}");
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        let order = Order::new(order).expect("an order");
        let start = thread_seconds();
        let outcome =
            linux(&socket::socket(26), &allocator, &Case::published(bench, order, 26), 1).expect("a world");
        let took = thread_seconds() - start;
        let events = outcome.events;
        let rate = events.shared as f64 / took;
        println!(
            "{name:<18} {:>12} {:>12} {:>10} {took:>8.3} {rate:>10.3e}  {:016x}",
            events.accesses, events.shared, events.switches, events.hash
        );
        shared += events.shared;
        seconds += took;
    }
    println!(
        "together {shared} shared events in {seconds:.3} s of one core: {:.3e} a second",
        shared as f64 / seconds
    );
}
