//! Which events are recorded beside those of the page allocator's blocks.

use super::drain;
use super::tracefs::Instance;
use crate::error::Error;

/// A set of events that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name.
    pub name: &'static str,
    /// What is in it.
    pub about: &'static str,
    /// Events, `GROUP/NAME`, and whole groups, `GROUP/`.
    events: &'static [&'static str],
}

/// All of them. Kernels differ in what they have: what a kernel lacks is left out.
pub const SETS: [Set; 5] = [
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
];

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
                    fix: "name a set (fallbacks, compaction, reclaim, locks, faults), GROUP/ or GROUP/NAME",
                });
            }
        }
    }
    Ok(events)
}
