//! A workload of one's own, and the command that knows it beside all others. See the guide, "Write a workload".
//!
//! One thread keeps some blocks and swaps one of them, chosen at random, for a new one, again and again.

use std::process::ExitCode;
use std::time::Instant;

use framewright_host::{Migratetype, Order};
use framewright_lab::cli;
use framewright_lab::configure::Subject;
use framewright_lab::study::workload::{Declaration, Key, Opt, Quantity, Role, Takes, Workload};
use framewright_lab::study::{Part, Plan, Run, configured, result_part};
use framewright_report::error::{Error, Result};
use framewright_report::result::{Better, Kind, Part as ResultPart};

struct Swap;

impl Workload for Swap {
    fn declaration(&self) -> &'static Declaration {
        &Declaration {
            name: "swap",
            about: "One thread swaps one of its blocks, chosen at random, for a new one.",
            kinds: &[Kind::Measured],
            keys: &[
                Key {
                    name: "order",
                    takes: Takes::Whole(0, 10),
                    default: Some("0"),
                    about: "Order of the blocks.",
                },
                Key {
                    name: "blocks",
                    takes: Takes::Whole(1, 4096),
                    default: Some("512"),
                    about: "Blocks it keeps.",
                },
            ],
            metrics: &[Quantity {
                name: "swap_ns",
                unit: "ns",
                better: Better::Lower,
                about: "Time of an allocation and a free.",
                role: Role::Main,
            }],
            options: &[(Opt::Samples, Kind::Measured)],
            needs: &[],
            is_bound: false,
            varies: 0,
        }
    }

    fn run(&self, kind: Kind, plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
        let key = |name: &str, default| {
            part.workload.get(name).and_then(|value| value.to_string().parse().ok()).unwrap_or(default)
        };
        let order = Order::new(key("order", 0) as u8).expect("the declaration bounds it");
        let mut result = result_part(plan, part, kind, "host", run.seed);
        // Interleaved: sample by sample, each variant in turn.
        for sample in 0..run.samples {
            for variant in part.combinations().iter().flat_map(|varied| configured(plan, varied)).flatten() {
                let ns = swap(&variant.setup.subject(1 << 20, 1)?, order, key("blocks", 512), sample)?;
                result.metric("swap_ns", "ns", Better::Lower).sample(&variant.variant, ns);
            }
        }
        Ok(result)
    }
}

/// Nanoseconds for one swap, mean of as many as fit in some milliseconds.
fn swap(subject: &Subject, order: Order, blocks: usize, seed: u32) -> Result<f64> {
    const SWAPS: usize = 1 << 18;
    let Subject::Compact(arena) = subject else {
        return Err(Error::usage("swap has no variant with 64-byte descriptors; leave `descriptor` out"));
    };
    let cpu = arena.attach_to(0).map_err(Error::failed)?;
    let alloc = || cpu.alloc_block(order, Migratetype::Movable).map_err(Error::failed);
    let mut kept = (0..blocks).map(|_| alloc()).collect::<Result<Vec<_>>>()?;
    // The multiplier of Knuth's MMIX; the high bits are random enough to choose a block.
    let mut random = u64::from(seed) + 1;
    let begin = Instant::now();
    for _ in 0..SWAPS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let chosen = (random >> 33) as usize % blocks;
        // What it kept there is freed.
        kept[chosen] = alloc()?;
    }
    Ok(begin.elapsed().as_nanos() as f64 / SWAPS as f64)
}

fn main() -> ExitCode {
    cli::main(&[&Swap])
}
