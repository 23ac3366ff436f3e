//! A list of operations through a preset, step by step.

use framewright_host::framewright::policy::pcp::{self, PcpRule, Sizing};
use framewright_host::framewright::policy::watermark::{self, Marks};
use framewright_host::framewright::{CpuId, ZoneId};
use framewright_host::{Arena, Backing};
use framewright_workload::target::{Mobility, Target as _, TargetCpu as _};

use super::answer::Answer;
use super::history::kind_of;
use super::ops::Ops;
use super::step::Step;
use crate::configure::Setup;
use crate::error::{Error, Result};
use crate::subject::Bare;

/// What a preset did, and how large it would have made the lists.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Operations that refilled or drained, in order.
    pub steps: Vec<Step>,
    /// The preset's own size of the lists, for the zone's size. The replay uses the kernel's.
    pub own_size: Sizing,
    /// Free blocks by order, at the end.
    pub free_blocks: Vec<u64>,
}

/// Runs a list under `setup`, in a zone as large as the kernel's and with lists of the kernel's size.
///
/// # Errors
/// A configuration that the allocator refuses, or more blocks than fit.
pub fn replay(ops: &Ops, setup: &Setup, kernel: &Answer) -> Result<Replayed> {
    let zone = &kernel.states[0];
    let cpus = usize::from(ops.cpus);
    let made = |cpus: usize| -> Result<Arena> {
        let arena = Arena::builder().pages(zone.managed).cpus(cpus).backing(Backing::Described);
        arena.config(setup.config).build().map_err(Error::failed)
    };
    // One CPU more has the blocks that wait on the others' lists at the start.
    let arena = made(cpus + 1)?;
    let allocator = arena.allocator();
    let lists = |cpu: usize| allocator.pcp(ZoneId(0), CpuId(cpu as u16));
    let bounds = Sizing { batch: zone.batch, high_min: zone.high_min, high_max: zone.high_max };
    let target = Bare(&arena);
    let mut slots: Vec<_> = (0..=cpus).map(|cpu| target.attach(cpu)).collect();
    let full = || Error::failed("the list of operations needs more memory than the kernel's zone has");
    for (cpu, blocks) in zone.lists.iter().enumerate().take(cpus) {
        // `high` is held where it was while the lists are filled.
        let high = zone.high.get(cpu).copied().unwrap_or(bounds.high_min);
        let held = high.max(zone.counts.get(cpu).map_or(0, |count| count + FORGET + 1));
        allocator.resize_pcps_of(ZoneId(0), Sizing { high_min: held, high_max: held, ..bounds });
        for (number, &blocks) in blocks.iter().enumerate() {
            let (order, mobility) = kind_of(number);
            let mut waiting = Vec::new();
            for _ in 0..blocks {
                waiting.push(slots[cpus].alloc(order, mobility).ok_or_else(full)?);
            }
            waiting.into_iter().for_each(|block| slots[cpu].free(block, order));
        }
        // What was freed in a row does not count: the module ends with as many allocations.
        for _ in 0..FORGET {
            let block = slots[cpus].alloc(0, Mobility::Movable).ok_or_else(full)?;
            slots[cpu].free(block, 0);
        }
        for _ in 0..FORGET {
            slots[cpu].alloc(0, Mobility::Movable).ok_or_else(full)?;
        }
    }
    allocator.resize_pcps_of(ZoneId(0), bounds);
    let own_size = own_size(setup, kernel, ops.cpus);
    let mut steps = Vec::new();
    let mut blocks = vec![None; ops.slots as usize];
    for (number, op) in ops.list.iter().enumerate() {
        let cpu = usize::from(op.cpu);
        let before = lists(cpu).events();
        let block = &mut blocks[op.slot as usize];
        if op.is_free {
            if let Some(frame) = block.take() {
                slots[cpu].free(frame, op.order);
            }
        } else {
            *block = Some(slots[cpu].alloc(op.order, Mobility::Movable).ok_or_else(full)?);
        }
        let after = lists(cpu).events();
        let refilled = after.refilled_pages - before.refilled_pages;
        let drained = after.drained_pages - before.drained_pages;
        if refilled + drained > 0 {
            let count = lists(cpu).count();
            steps.push(Step { op: number as u64, cpu: op.cpu.into(), refilled, drained, count });
        }
    }
    let free_blocks = allocator.zone_snapshot(&allocator.zones()[0]).nr_free.to_vec();
    Ok(Replayed { steps, own_size, free_blocks })
}

/// Allocations after which the frees before them do not count as frees in a row.
const FORGET: u32 = 16;

/// The size that the preset's rules give the lists of the kernel's ZONE_MOVABLE, from the sizes of all its zones.
///
/// With huge pages switched on, khugepaged raises what is kept free. Up to Linux 6.1 ZONE_MOVABLE has its share of that
/// like any zone; in 6.12 it is not among the zones that share it, and keeps little itself, as high memory does.
fn own_size(setup: &Setup, kernel: &Answer, cpus: u8) -> Sizing {
    let config = &setup.config;
    let is_movable = |name: &str| name == "Movable";
    let shares = config.pcp_rule != PcpRule::Auto;
    let sum = |of: fn(&[u64; 3]) -> u64, movable: bool| -> u64 {
        kernel.zones.iter().filter(|(name, _)| movable || !is_movable(name)).map(|(_, zone)| of(zone)).sum()
    };
    let lowmem = sum(|zone| zone[0], shares);
    // As khugepaged counts it: above the high watermarks, which it is about to change.
    let free = sum(|zone| zone[0].saturating_sub(zone[2]), false);
    let zones = kernel.zones.iter().filter(|(name, _)| !is_movable(name)).count() as u64;
    let kib = watermark::min_free_kib(config.generation, free * 4);
    let wanted = if kernel.huge_pages { watermark::recommended_pages_min(zones, free) } else { 0 };
    let managed = kernel.states[0].managed;
    let share = watermark::share(watermark::pages_min(kib, 4).max(wanted), managed, lowmem);
    let marks = Marks::new(config.generation, managed, share, config.watermark_scale, !shares);
    pcp::size(config.pcp_rule, managed, marks.low, u32::from(cpus), config.pcp_fraction)
}

/// The first operation at which two sequences differ, with what each did; `None` if they are the same.
#[must_use]
pub fn first_difference(kernel: &[Step], ours: &[Step]) -> Option<String> {
    let place = kernel.iter().zip(ours).position(|(kernel, ours)| kernel != ours);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fidelity::answer::State;
    use crate::fidelity::ops::Op;
    use crate::settings::Settings;

    fn answer(steps: Vec<Step>) -> Answer {
        let lists = vec![vec![0, 30]];
        let state =
            State { managed: 100_000, batch: 31, high_min: 124, high_max: 124, lists, ..State::default() };
        Answer { steps, states: [state.clone(), state], ..Answer::default() }
    }

    fn setup() -> Setup {
        Setup::from_settings(&Settings::from_pairs("preset=linux_v6_1").unwrap()).unwrap()
    }

    /// The first 500 pages are allocated, then freed.
    fn up_and_down() -> Ops {
        let op = |is_free, slot| Op { is_free, cpu: 0, order: 0, slot };
        let list = (0..500).map(|slot| op(false, slot)).chain((0..500).map(|slot| op(true, slot))).collect();
        Ops { cpus: 1, slots: 500, list }
    }

    #[test]
    fn lists_start_as_the_kernels_did() {
        let replayed = replay(&up_and_down(), &setup(), &answer(Vec::new())).unwrap();
        // 30 pages are there, so the 31st allocation refills.
        let first: Vec<_> =
            replayed.steps.iter().take(3).map(|step| (step.op, step.refilled, step.drained)).collect();
        assert_eq!(first, [(30, 31, 0), (61, 31, 0), (92, 31, 0)]);
        let drain = replayed.steps.iter().find(|step| step.drained > 0).unwrap();
        assert_eq!((drain.refilled, drain.drained, drain.count), (0, 31, 124 - 31));
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
        let size = |preset: &str, kernel: &Answer| {
            let setup = Setup::from_settings(&Settings::from_pairs(preset).unwrap()).unwrap();
            own_size(&setup, kernel, 1)
        };
        kernel.states[0].managed = 241_207;
        kernel.zones = zones(241_207);
        // 4,094 KiB of 261,888 pages of lowmem: 1,023 pages, of which the zone has 490, and a thousandth of its own above.
        assert_eq!(size("preset=linux_v6_1", &kernel).high_min, 490 + 241);
        kernel.huge_pages = true;
        // Linux 6.1 has 6,716.
        assert_eq!(size("preset=linux_v6_1", &kernel).high_min, 5400 + 5400 / 4);
        // Linux 6.12 has 2,718 and 30,113.
        kernel.states[0].managed = 242_966;
        kernel.zones = zones(242_966);
        let newer = size("preset=linux_v6_7", &kernel);
        assert_eq!((newer.high_min, newer.high_max), (128 + 10_450 / 4, 242_966 / 8));
    }

    #[test]
    fn the_first_difference_is_told_with_both_sides() {
        let step = |op, drained| Step { op, cpu: 0, refilled: 0, drained, count: 9 };
        let same = [step(1, 5), step(2, 5)];
        assert_eq!(first_difference(&same, &same), None);
        assert_eq!(
            first_difference(&same, &[step(1, 5), step(2, 6)]).unwrap(),
            "kernel: operation 2 on CPU 0 refilled 0 and drained 5 pages, 9 on the lists; \
             replayed: operation 2 on CPU 0 refilled 0 and drained 6 pages, 9 on the lists; \
             before that, both: operation 1 on CPU 0 refilled 0 and drained 5 pages, 9 on the lists"
        );
        assert!(first_difference(&same, &same[..1]).unwrap().contains("replayed: nothing more"));
    }
}
