//! How long an allocation takes under pressure: two threads stream files of ten times the memory through the
//! page cache, under each setting of the zonelist cache, with and without background reclaim.
//!
//! `cargo run --release -p framewright-host --example pressure -- FOLDER`
//!
//! Each line: nanoseconds at the median, at 99 and 99.9 percent and at most, of one write of a page; and how
//! many of a thousand blocks were had by a request that reclaimed directly.

use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use framewright_host::framewright::config::{Experiment, ZoneReclaimMode, ZonelistCache};
use framewright_host::{Arena, Config, FileCache, NodeId, PAGE_BYTES, PageSlot};

/// Pages of memory, on two nodes.
const MEMORY: u64 = 8192;
const THREADS: u64 = 2;

fn main() -> Result<(), Box<dyn core::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: pressure FOLDER (a folder to write files in)")?;
    println!("{:<24}{:>10}{:>10}{:>10}{:>12}{:>10}", "", "p50", "p99", "p99.9", "max", "direct ‰");
    for (name, rule) in [
        ("vanilla", ZonelistCache::AfterFirstZone),
        ("zlcfirst", ZonelistCache::BeforeFirstZone),
        ("zlcreconsider", ZonelistCache::BeforeFirstZoneAndClear),
    ] {
        for background in [false, true] {
            let line = run(Path::new(&folder), rule, background)?;
            println!("{:<24}{line}", format!("{name}{}", if background { " + background" } else { "" }));
        }
    }
    Ok(())
}

fn run(folder: &Path, rule: ZonelistCache, background: bool) -> Result<String, Box<dyn core::error::Error>> {
    let config = Config {
        zone_reclaim: ZoneReclaimMode::ON,
        experiment: Experiment { zonelist_cache: rule, ..Config::linux_v3_0().experiment },
        ..Config::linux_v3_0()
    };
    let arena: Arena<PageSlot> = Arena::builder()
        .pages(MEMORY)
        .cpus(4)
        .nodes(2)
        .distances([10, 40, 40, 10])
        .config(config)
        .background()
        .build()?;
    let files = FileCache::new(&arena);
    let all = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let (files, arena, all) = (&files, &arena, &all);
        if background {
            for node in 0..2 {
                scope.spawn(move || files.run_background(NodeId(node)));
            }
        }
        let writers: Vec<_> = (0..THREADS)
            .map(|n| scope.spawn(move || write(arena, files, &folder.join(format!("pressure-{n}")), all)))
            .collect();
        let results: Vec<_> = writers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        arena.stop_background();
        results.into_iter().for_each(|result| result.expect("a writer panicked"));
    });
    let mut all = all.into_inner()?;
    all.sort_unstable();
    let at = |thousandths: usize| all[(all.len() - 1) * thousandths / 1000];
    let events = arena.allocator().node_totals();
    let blocks = (events.numa_hit + events.numa_miss).max(1);
    let direct = events.allocstall as f64 * 1000.0 / blocks as f64;
    Ok(format!("{:>10}{:>10}{:>10}{:>12}{direct:>10.2}", at(500), at(990), at(999), at(1000)))
}

fn write(arena: &Arena<PageSlot>, files: &FileCache<'_>, path: &Path, all: &Mutex<Vec<u64>>) {
    // All on node 0, as the tests of the study were bound.
    let slot = (0..arena.cpus()).step_by(2).find_map(|slot| arena.attach_to(slot).ok());
    let cpu = slot.expect("there are two slots on node 0");
    let file = files.open(path).expect("the folder can be written to");
    let pages = 10 * MEMORY / THREADS;
    let mut times = Vec::with_capacity(pages as usize);
    for index in 0..pages {
        let begun = Instant::now();
        files
            .write(&cpu, file, index * PAGE_BYTES as u64, &[index as u8; PAGE_BYTES])
            .expect("memory is made");
        times.push(begun.elapsed().as_nanos() as u64);
    }
    files.forget(&cpu, file);
    // The measurement is over: a file that is left behind does no harm.
    let _ = std::fs::remove_file(path);
    all.lock().expect("nobody panicked").append(&mut times);
}
