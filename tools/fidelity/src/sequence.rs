//! A list of operations through a preset, step by step.
#![expect(unsafe_code, reason = "frames without memory are freed")]

use framewright::policy::pcp::{self, Sizing};
use framewright::policy::watermark::{self, Marks};
use framewright::{Config, Migratetype};
use framewright::{CpuId, Order, ZoneId};
use framewright_host::{Arena, Backing};

use super::answer::{Answer, State};
use super::layout::Lists;
use super::ops::Ops;
use super::step::{Frames, Step};

/// Operations of a preset, and how large it would have made the lists.
#[derive(Clone, Debug)]
pub(crate) struct Replayed {
    /// Operations that refilled or drained, in order.
    pub steps: Vec<Step>,
    /// The preset's own size of the lists, for the zone's size. The replay uses the kernel's.
    pub own_size: Sizing,
    /// Free blocks by order, at the end.
    pub free_blocks: Vec<u64>,
}

/// Runs a list under `config`, in a zone whose free blocks lie as the kernel's did and with lists of the kernel's size.
///
/// # Errors
/// A configuration that the allocator refuses, or more blocks than fit.
pub(crate) fn replay(ops: &Ops, config: &Config, kernel: &Answer) -> Result<Replayed, String> {
    let cpus = usize::from(ops.cpus);
    // One CPU more holds what is in use in the kernel's zone from the start.
    let arena = Arena::builder().pages(kernel.layout.pages()).cpus(cpus + 1).backing(Backing::Described);
    let arena: Arena = arena.config(*config).build().map_err(|error| error.to_string())?;
    let allocator = arena.allocator();
    let lists = |cpu: usize| allocator.pcp(ZoneId(0), CpuId(cpu as u16));
    let slots: Vec<_> = (0..=cpus).map(|cpu| arena.attach_to(cpu).expect("each is attached once")).collect();
    let State { batch, high_min, high_max, ref high, ref counts, ref free_blocks, .. } = kernel.states[0];
    let size = Sizing { batch, high_min, high_max };
    kernel.layout.arrange(&arena, &slots, &Lists { size, high, counts, free_blocks })?;
    let base = arena.frames().start.0;
    let mut frames = Frames::default();
    let own_size = own_size(config, kernel, ops.cpus);
    let mut steps = Vec::new();
    let mut blocks = vec![None; ops.slots as usize];
    for (number, op) in ops.list.iter().enumerate() {
        let cpu = usize::from(op.cpu);
        let order = Order::new(op.order).expect("an order of a list of operations");
        let before = lists(cpu).events();
        let block = &mut blocks[op.slot as usize];
        if op.is_free {
            if let Some(pfn) = block.take() {
                // SAFETY: allocated below with this order, and no memory is behind it.
                unsafe { slots[cpu].free(pfn, order) }.expect("it is allocated");
            }
        } else {
            let pfn = slots[cpu].alloc(order, Migratetype::Movable).map_err(|error| error.to_string())?;
            frames.add(pfn.0 - base);
            *block = Some(pfn);
        }
        let after = lists(cpu).events();
        let refilled = after.refilled_pages - before.refilled_pages;
        let drained = after.drained_pages - before.drained_pages;
        if refilled + drained > 0 {
            let (count, high) = (lists(cpu).count(), lists(cpu).high());
            let (op, cpu, frames) = (number as u64, op.cpu.into(), frames.0);
            steps.push(Step { op, cpu, refilled, drained, count, high, frames });
        }
    }
    let free_blocks = allocator.zone_snapshot(&allocator.zones()[0]).nr_free.to_vec();
    Ok(Replayed { steps, own_size, free_blocks })
}

/// The size that the preset's rules give the lists of the kernel's ZONE_MOVABLE, from the sizes of all its zones.
///
/// With huge pages switched on, khugepaged raises what is kept free. Up to Linux 6.1 ZONE_MOVABLE has its share of that
/// like any zone; in 6.12 it is not among the zones that share it, and keeps little itself, as high memory does.
fn own_size(config: &Config, kernel: &Answer, cpus: u8) -> Sizing {
    let is_movable = |name: &str| name == "Movable";
    let shares = !config.experiment.pcp_rule.moves_high();
    let sum = |count: fn(&[u64; 3]) -> u64, movable: bool| -> u64 {
        kernel
            .zones
            .iter()
            .filter(|(name, _)| movable || !is_movable(name))
            .map(|(_, zone)| count(zone))
            .sum()
    };
    let lowmem = sum(|zone| zone[0], shares);
    // As khugepaged counts it: above the high watermarks, which it is about to change.
    let free = sum(|zone| zone[0].saturating_sub(zone[2]), false);
    let zones = kernel.zones.iter().filter(|(name, _)| !is_movable(name)).count() as u64;
    let kib = watermark::min_free_kib(config.experiment.marks, free * 4);
    let wanted = if kernel.huge_pages { watermark::recommended_pages_min(zones, free) } else { 0 };
    let managed = kernel.states[0].managed;
    let share = watermark::share(watermark::pages_min(kib, 4).max(wanted), managed, lowmem);
    let marks = Marks::new(config.experiment.marks, managed, share, config.watermark_scale, !shares);
    let experiment = &config.experiment;
    let cpus = u32::from(cpus);
    pcp::size(experiment.pcp_rule, managed, marks.low, cpus, experiment.pcp_fraction, pcp::BATCH_CAP)
}

/// The first operation at which two sequences differ, with what each did; `None` if they are the same.
pub(crate) fn first_difference(kernel: &[Step], ours: &[Step]) -> Option<String> {
    let place = kernel.iter().zip(ours).position(|(kernel, ours)| !kernel.moves_as(ours));
    let place = match place {
        Some(place) => place,
        None if kernel.len() == ours.len() => return None,
        None => kernel.len().min(ours.len()),
    };
    let told = |step: Option<&Step>| step.map_or_else(|| "nothing more".to_owned(), Step::to_string);
    let before = place
        .checked_sub(1)
        .map_or_else(String::new, |last| format!("; before that, both: {}", kernel[last]));
    Some(format!("kernel: {}; replayed: {}{before}", told(kernel.get(place)), told(ours.get(place))))
}

/// The last operation up to which both are known to have handed out the same frames, and the first one at which they
/// are known not to; `None` if they always have.
pub(crate) fn first_other_frame(kernel: &[Step], ours: &[Step]) -> Option<(u64, u64)> {
    let same = |(kernel, ours): (&Step, &Step)| kernel.frames == ours.frames;
    let place = kernel.iter().zip(ours).position(|both| !same(both))?;
    Some((place.checked_sub(1).map_or(0, |last| kernel[last].op), kernel[place].op))
}

#[cfg(test)]
mod tests {
    use framewright::config::PcpRule;

    use super::*;
    use crate::layout::Layout;
    use crate::ops::Op;

    fn answer(steps: Vec<Step>) -> Answer {
        let counts = vec![30];
        let state =
            State { managed: 100_000, batch: 31, high_min: 124, high_max: 124, counts, ..State::default() };
        // Of the first block 30 pages wait on the movable list, and the rest is in use.
        let layout = Layout {
            span: 98 << 10,
            free: vec![(10, 1, (1..98).map(|block| block << 10).collect())],
            waiting: vec![(0, 1, (0..30).rev().collect())],
        };
        Answer { steps, states: [state.clone(), state], layout, ..Answer::default() }
    }

    /// The first 500 pages are allocated, then freed.
    fn up_and_down() -> Ops {
        let op = |is_free, slot| Op { is_free, cpu: 0, order: 0, slot };
        let list = (0..500).map(|slot| op(false, slot)).chain((0..500).map(|slot| op(true, slot))).collect();
        Ops { cpus: 1, slots: 500, list }
    }

    #[test]
    fn lists_start_as_the_kernels_did() {
        let replayed = replay(&up_and_down(), &Config::linux_v6_1(), &answer(Vec::new())).unwrap();
        // 30 pages are there, so the 31st allocation refills.
        let first: Vec<_> =
            replayed.steps.iter().take(3).map(|step| (step.op, step.refilled, step.drained)).collect();
        assert_eq!(first, [(30, 31, 0), (61, 31, 0), (92, 31, 0)]);
        let drain = replayed.steps.iter().find(|step| step.drained > 0).unwrap();
        assert_eq!((drain.refilled, drain.drained, drain.count), (0, 31, 124 - 31));
        // Head first: pages 29 to 0, then the first refill's, from 1024 on.
        let mut frames = Frames::default();
        (0..30).rev().chain([1024]).for_each(|frame| frames.add(frame));
        assert_eq!(replayed.steps[0].frames, frames.0);
        // All but what was in use is free again, or waits.
        let free: u64 = (0..11).map(|order| replayed.free_blocks[order] << order).sum();
        let waits = u64::from(replayed.steps.last().unwrap().count);
        assert!(free + waits <= (97 << 10) + 30 && free > 90 << 10, "{free} {waits}");
    }

    /// What packaged kernels answered: `kernel/linux --made-up --operations 20000 --keep`, without what else the boot
    /// printed.
    #[test]
    fn presets_do_what_kernels_did_down_to_the_frame() {
        let old = include_str!("../tests/data/made-up/linux-6.1.txt");
        let new = include_str!("../tests/data/made-up/linux-6.12.txt");
        let run = |preset: Config, text: &str| {
            let kernel = Answer::parse(text).unwrap();
            let ops = Ops::made_up(1, kernel.ops as usize);
            let ours = replay(&ops, &preset, &kernel).unwrap();
            (kernel, ours)
        };
        for (preset, text) in [(Config::linux_v6_1(), old), (Config::linux_v6_7(), new)] {
            let (kernel, ours) = run(preset, text);
            assert!(kernel.steps.len() > 400 && kernel.ops == 20_000, "{preset:?}");
            assert_eq!(crate::differences(&kernel, &ours), [""; 0], "{preset:?}");
        }
        let mut own_rule = Config::linux_v6_7();
        own_rule.experiment.pcp_rule = PcpRule::Auto;
        // The rules of other kernels, and our own default's, move other pages.
        for (preset, text) in [
            (Config::linux_v6_1(), new),
            (Config::linux_v6_16(), new),
            (own_rule, new),
            (Config::linux_v6_7(), old),
        ] {
            let (kernel, ours) = run(preset, text);
            assert!(first_difference(&kernel.steps, &ours.steps).is_some(), "{preset:?}");
        }
    }

    /// The machine of `kernel/linux`. Its zone got the 1,300 pages of the initrd after its marks had been computed.
    #[test]
    fn huge_pages_make_lists_longer() {
        let mut kernel = answer(Vec::new());
        let zones = |movable| {
            [("DMA", 3_840), ("DMA32", 258_048), ("Movable", movable)]
                .map(|(name, managed)| (name.to_owned(), [managed, 0, 0]))
                .to_vec()
        };
        kernel.states[0].managed = 241_207;
        kernel.zones = zones(241_207);
        // 4,094 KiB of 261,888 pages of lowmem: 1,023 pages, of which the zone has 490, and a thousandth of its own
        // above.
        assert_eq!(own_size(&Config::linux_v6_1(), &kernel, 1).high_min, 490 + 241);
        kernel.huge_pages = true;
        // Linux 6.1 has 6,716.
        assert_eq!(own_size(&Config::linux_v6_1(), &kernel, 1).high_min, 5400 + 5400 / 4);
        // Linux 6.12 has 2,718 and 30,113.
        kernel.states[0].managed = 242_966;
        kernel.zones = zones(242_966);
        let newer = own_size(&Config::linux_v6_7(), &kernel, 1);
        assert_eq!((newer.high_min, newer.high_max), (128 + 10_450 / 4, 242_966 / 8));
    }

    #[test]
    fn the_first_difference_is_told_with_both_sides() {
        let step = |op, drained| Step { op, cpu: 0, refilled: 0, drained, count: 9, high: 20, frames: 0 };
        let same = [step(1, 5), step(2, 5)];
        assert_eq!(first_difference(&same, &same), None);
        assert_eq!(
            first_difference(&same, &[step(1, 5), step(2, 6)]).unwrap(),
            "kernel: operation 2 on CPU 0 refilled 0 and drained 5 pages, 9 on the lists, high 20; \
             replayed: operation 2 on CPU 0 refilled 0 and drained 6 pages, 9 on the lists, high 20; \
             before that, both: operation 1 on CPU 0 refilled 0 and drained 5 pages, 9 on the lists, high 20"
        );
        assert!(first_difference(&same, &same[..1]).unwrap().contains("replayed: nothing more"));
    }
}
