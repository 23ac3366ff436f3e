//! Random operations against the oracle, as many as asked: the run of 10⁹ that `./test --full` is too short for.
//!
//! ```text
//! cargo run --release -p framewright-check --example soak -- PRESET OPERATIONS [SEED]
//! ```
//!
//! `PRESET` is a name of [`PRESETS`]. Three CPUs allocate and free blocks of all orders in three zones on two nodes; one free in ten
//! is wrong and has to be refused. Every operation is judged by the oracle as it is made: no frame has two owners; where blocks are
//! checked, no bad frame is handed out; where zones keep marks, each keeps them. Every 2²⁰ operations `verify` reads the
//! whole allocator. A line says how far the run is. The same arguments make the same run. What is found wrong panics
//! with the number of the operation.

use framewright::config::Experiment;
use std::process::ExitCode;

use framewright_check::prelude::*;

/// Makes a configuration.
type Preset = fn() -> Config;

/// Configurations by name.
const PRESETS: [(&str, Preset); 6] = [
    ("framewright", Config::framewright),
    ("promises", || Config {
        experiment: Experiment {
            refill_check: RefillCheck::AfterUnlock,
            ..Config::framewright().with_marks().experiment
        },
        ..Config::framewright().with_marks()
    }),
    ("linux_v3_0", Config::linux_v3_0),
    ("linux_v5_4", Config::linux_v5_4),
    ("linux_v6_1", Config::linux_v6_1),
    ("linux_v6_7", Config::linux_v6_7),
];

const CPUS: usize = 3;
/// Frames of all zones together.
const PAGES: u64 = 3 * 8192;
/// Operations between two looks at the whole allocator.
const AUDIT: u64 = 1 << 20;

/// A frame's slot: whether a check finds the frame bad.
struct Health(bool);

impl FrameUser for Health {
    const CHECKED: bool = true;

    fn check(&self) -> Option<&'static str> {
        self.0.then_some("bad")
    }
}

/// What a run has done.
#[derive(Default)]
struct Counts {
    allocated: u64,
    exhausted: u64,
    freed: u64,
    refused: u64,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let parsed = match words.as_slice() {
        [preset, operations] => Some((preset, operations, "1")),
        [preset, operations, seed] => Some((preset, operations, seed.as_str())),
        _ => None,
    }
    .and_then(|(preset, operations, seed)| {
        let (name, config) = PRESETS.into_iter().find(|(name, _)| name == preset)?;
        Some((name, config(), operations.parse::<u64>().ok()?, seed.parse::<u64>().ok()?))
    });
    let Some((name, config, operations, seed)) = parsed else {
        let presets: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
        eprintln!("usage: soak PRESET OPERATIONS [SEED]   (PRESET: {})", presets.join(", "));
        return ExitCode::from(2);
    };
    let counts = soak(name, config, operations, seed);
    println!(
        "{name}, seed {seed}: {operations} operations, {} blocks allocated, {} requests without memory, {} frees, \
         {} wrong frees refused, 0 errors",
        counts.allocated, counts.exhausted, counts.freed, counts.refused
    );
    ExitCode::SUCCESS
}

fn spec(config: Config) -> Spec {
    let third = PAGES / 3;
    let zone =
        |node, kind, start| ZoneSpec { node: NodeId(node), kind, start: Pfn(BASE.0 + start), pages: third };
    Spec::zones(
        [
            zone(0, ZoneType::Dma32, 0),
            zone(0, ZoneType::Normal, third),
            zone(1, ZoneType::Movable, 2 * third),
        ],
        CPUS,
    )
    .cpu_nodes([NodeId(0), NodeId(0), NodeId(1)])
    .config(config)
}

fn soak(name: &str, config: Config, operations: u64, seed: u64) -> Counts {
    // One thread drives all CPUs: waiting for another's drain would only take time.
    let spec =
        spec(Config { experiment: Experiment { remote_drain_spins: 1, ..config.experiment }, ..config });
    let is_bad = |pfn: Pfn| {
        config.experiment.refill_check != RefillCheck::Off
            && framewright_check::mix(pfn.0).is_multiple_of(4096)
    };
    let world: World<Plain, Health> = spec.build_with(|pfn| Health(is_bad(pfn)));
    let mut random = fastrand::Rng::with_seed(seed);
    let mut oracle = spec.oracle();
    (BASE.0..BASE.0 + PAGES).map(Pfn).filter(|&pfn| is_bad(pfn)).for_each(|pfn| oracle.went_bad(pfn));
    let mut live: Vec<Block> = Vec::new();
    let mut last = None;
    let mut counts = Counts::default();
    for n in 0..operations {
        if n % AUDIT == 0 {
            world.check(&oracle);
            if n % (AUDIT << 6) == 0 {
                eprintln!("{name}: {n} of {operations} operations, {} blocks live", live.len());
            }
        }
        step(&world, &mut random, &mut oracle, &mut live, &mut last, &mut counts)
            .unwrap_or_else(|what| panic!("{name}, seed {seed}, operation {n}: {what}"));
    }
    world.check(&oracle);
    for block in live {
        world.on(0, |cpu| cpu.free(block.pfn, block.order)).expect("a right free was refused");
        oracle.took_back(block).expect("it was owned");
    }
    (0..CPUS).for_each(|cpu| world.on(cpu, |cpu| cpu.drain()));
    world.check(&oracle);
    let account = world.settled();
    assert_eq!(
        (account.free + account.quarantined, account.on_pcp),
        (PAGES, 0),
        "pages are missing at the end"
    );
    counts
}

/// One operation. The share of memory in use wanders between empty and exhausted: what is more likely, an allocation or a free,
/// changes every few thousand operations.
fn step(
    world: &World<Plain, Health>,
    random: &mut fastrand::Rng,
    oracle: &mut Oracle,
    live: &mut Vec<Block>,
    last: &mut Option<Block>,
    counts: &mut Counts,
) -> Result<(), String> {
    let cpu = random.usize(0..CPUS);
    let allocations = if ((counts.allocated + counts.exhausted) / 5000).is_multiple_of(2) { 55 } else { 40 };
    match random.u32(0..100) {
        0 if random.u32(0..100) == 0 => world.on(cpu, |cpu| cpu.drain()),
        1 if random.u32(0..100) == 0 => world.allocator().request_drain(),
        n if n < allocations => {
            let request = request(random);
            let floors = Floors::before(world.allocator(), &request);
            let got = world.on(cpu, |cpu| cpu.alloc_with(&request, &Helpers::NONE));
            floors.check(world.allocator(), &request).map_err(|breach| format!("{breach:?}"))?;
            let Ok(pfn) = got else {
                counts.exhausted += 1;
                return Ok(());
            };
            let block = Block { pfn, order: request.order };
            oracle.handed_out(block).map_err(|breach| format!("{breach:?}"))?;
            let zone = &world.allocator().zones()[world.allocator().frames().info(pfn).zone().index()];
            if zone.spec().kind > request.highest {
                return Err(format!("{block:?} is in {:?}, beyond {:?}", zone.spec().kind, request.highest));
            }
            live.push(block);
            counts.allocated += 1;
        }
        n if n < 95 => {
            if live.is_empty() {
                return Ok(());
            }
            let block = live.swap_remove(random.usize(0..live.len()));
            world
                .on(cpu, |cpu| cpu.free(block.pfn, block.order))
                .map_err(|why| format!("{block:?}: {why}"))?;
            oracle.took_back(block).map_err(|breach| format!("{breach:?}"))?;
            *last = Some(block);
            counts.freed += 1;
        }
        _ => {
            let block = wrong(random, live, *last);
            if oracle.judge(block).is_some() {
                if world.on(cpu, |cpu| cpu.free(block.pfn, block.order)).is_ok() {
                    return Err(format!("a wrong free of {block:?} was accepted"));
                }
                counts.refused += 1;
            }
        }
    }
    Ok(())
}

fn any_order(random: &mut fastrand::Rng) -> Order {
    let n = match random.u32(0..9) {
        0..=5 => random.u8(0..4),
        6 | 7 => random.u8(4..10),
        _ => 10,
    };
    order(n)
}

fn request(random: &mut fastrand::Rng) -> Request<'_> {
    let zones = [ZoneType::Dma32, ZoneType::Normal, ZoneType::Movable];
    let flags = [Flags::NONE, Flags::NONE, Flags::HIGH, Flags::NO_WAIT, Flags::ATOMIC, Flags::VICTIM];
    Request::new(any_order(random), ORDINARY[random.usize(0..3)])
        .up_to(zones[random.usize(0..3)])
        .with(flags[random.usize(0..flags.len())])
}

/// A block that is probably not to be freed: any place, another order, inside a live block, or freed just now.
fn wrong(random: &mut fastrand::Rng, live: &[Block], last: Option<Block>) -> Block {
    let any = Block { pfn: Pfn(BASE.0 - 64 + random.u64(0..PAGES + 128)), order: any_order(random) };
    let some = if live.is_empty() { any } else { live[random.usize(0..live.len())] };
    match random.u32(0..4) {
        0 => any,
        1 => Block { order: any_order(random), ..some },
        2 => Block { pfn: some.pfn.add(random.u64(0..some.order.pages())), order: any_order(random) },
        _ => last.unwrap_or(any),
    }
}
