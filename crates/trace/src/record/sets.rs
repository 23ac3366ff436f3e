//! Which events are recorded beside those of the page allocator's blocks.

use std::fs;
use std::path::Path;

use super::drain;
use super::tracefs::Instance;
use crate::error::Error;

/// A set of events that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// Name for `--events`.
    pub name: &'static str,
    /// Events of the set, in words.
    pub about: &'static str,
    /// Events, `GROUP/NAME`, and whole groups, `GROUP/`.
    events: &'static [&'static str],
}

/// A worker of the kernel begins a piece of work.
const WORK: &str = "workqueue/workqueue_execute_start";
/// The function of the kernel whose work alone the set `ticks` is.
const TICK: &str = "vmstat_update";

/// All of them. Kernels differ in what they have: what a kernel lacks is left out.
pub const SETS: [Set; 6] = [
    Set {
        name: "fallbacks",
        about: "blocks taken from another migratetype, pageblocks that change theirs, and the marks' set-up",
        events: &[
            "kmem/mm_page_alloc_extfrag",
            "kmem/mm_setup_per_zone_wmarks",
            "kmem/mm_setup_per_zone_lowmem_reserve",
            "kmem/mm_calculate_totalreserve_pages",
            "kmem/mm_alloc_contig_migrate_range_info",
            "page_isolation/",
        ],
    },
    Set {
        name: "compaction",
        about: "direct and background compaction",
        events: &["compaction/", "migrate/"],
    },
    Set {
        name: "reclaim",
        about: "kswapd, direct reclaim, shrinkers, the OOM killer",
        events: &["vmscan/", "oom/"],
    },
    Set {
        name: "locks",
        about: "waits for any lock of the kernel (many events)",
        events: &["lock/contention_begin", "lock/contention_end"],
    },
    Set { name: "faults", about: "page faults (many events)", events: &["exceptions/page_fault_user"] },
    Set { name: "ticks", about: "when each CPU let its lists shrink: about once a second", events: &[WORK] },
];

/// Where [`TICK`] lies, as a line of `/proc/kallsyms`; none if its work is not wanted, or all work is.
pub(super) fn tick(wanted: &[String]) -> Result<Option<String>, Error> {
    let names = |names: &[&str]| wanted.iter().any(|word| names.contains(&word.as_str()));
    if !names(&["ticks"]) || names(&[WORK, "workqueue/"]) {
        return Ok(None);
    }
    let path = Path::new("/proc/kallsyms");
    let text = fs::read_to_string(path).map_err(|cause| Error::io("read", path, cause))?;
    line_of(&text, TICK).map(Some)
}

fn line_of(kallsyms: &str, function: &str) -> Result<String, Error> {
    let is_it = |line: &&str| line.split_whitespace().nth(2) == Some(function);
    let line = kallsyms.lines().find(is_it).filter(|line| address(line).is_some_and(|address| address > 0));
    line.map(str::to_owned).ok_or_else(|| Error::CannotRecord {
        what: format!("/proc/kallsyms does not say where {function} is"),
        fix: "set kernel.kptr_restrict to 0 or 1, or leave out the events ticks",
    })
}

fn address(line: &str) -> Option<u64> {
    u64::from_str_radix(line.split_whitespace().next()?, 16).ok()
}

/// Has the kernel report only work of this function, a line of `/proc/kallsyms`.
pub(super) fn filter(instance: &Instance, function: Option<&str>) -> Result<(), Error> {
    let Some(address) = function.and_then(address) else { return Ok(()) };
    instance.set(&format!("events/{WORK}/filter"), &format!("function == {address:#x}"))
}

/// The events, `GROUP/NAME`, that `wanted` names: sets, `GROUP/NAME`, `GROUP/`. Those that every recording has come
/// first.
pub(super) fn resolve(instance: &Instance, wanted: &[String]) -> Result<Vec<String>, Error> {
    let mut events: Vec<String> = drain::always().collect();
    let mut add = |event: String| {
        if !events.contains(&event) {
            events.push(event);
        }
    };
    for word in wanted {
        if let Some(set) = SETS.iter().find(|set| set.name == word) {
            for &event in set.events {
                match event.strip_suffix('/') {
                    Some(group) => instance.group(group).into_iter().for_each(&mut add),
                    None if instance.has(event) => add(event.to_owned()),
                    None => {}
                }
            }
            continue;
        }
        // Two words of a name's characters: nothing that could lead out of the folder.
        let plain = |text: &str| {
            !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        match word.split_once('/') {
            Some((group, "")) if plain(group) && !instance.group(group).is_empty() => {
                instance.group(group).into_iter().for_each(&mut add);
            }
            Some((group, name)) if plain(group) && plain(name) && instance.has(word) => add(word.clone()),
            _ => {
                return Err(Error::CannotRecord {
                    what: format!("this kernel has no events {word:?}"),
                    fix: "name a set (fallbacks, compaction, reclaim, locks, faults, ticks), GROUP/ or GROUP/NAME",
                });
            }
        }
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_a_line_with_an_address() {
        let text = "ffffffff815be000 T vmstat_refresh\nffffffff815be070 t vmstat_update\n0000000000000000 t hidden\n\
            ffffffffc0000010 t vmstat_update_more\t[module]\n";
        assert_eq!(line_of(text, "vmstat_update").unwrap(), "ffffffff815be070 t vmstat_update");
        assert_eq!(address("ffffffff815be070 t vmstat_update"), Some(0xffff_ffff_815b_e070));
        assert!(line_of(text, "hidden").is_err() && line_of(text, "missing").is_err());
    }

    #[test]
    fn all_work_is_kept_if_it_is_wanted() {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        assert_eq!(tick(&words(&["reclaim"])).unwrap(), None);
        assert_eq!(tick(&words(&["ticks", WORK])).unwrap(), None);
        assert_eq!(tick(&words(&["ticks", "workqueue/"])).unwrap(), None);
    }
}
