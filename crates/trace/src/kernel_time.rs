//! Share of a run's CPU time that the kernel's page allocator took, by samples of the run's threads.
//!
//! A recording keeps how often each stack of kernel functions was found, as a note. One table, `FUNCTIONS`, says what a
//! function is part of; a sample counts for the innermost function of its stack that is in the table. So every sample
//! counts once, and the parts never exceed the whole.

use core::fmt::Write as _;
use std::collections::HashMap;
use std::sync::LazyLock;

use crate::trace::{EventKind, Trace};

/// Name of the note that keeps the samples.
pub(crate) const NOTE: &str = "kernel_samples";
/// Longest text of that note in bytes; stacks that were found least often are then kept without their functions.
const LONGEST: usize = 2 << 20;
/// Stack of a thread outside the kernel, and of one whose functions are not known.
const USER: &str = "user";
pub(crate) const UNKNOWN: &str = "kernel";
/// A function that is not known, within a stack.
pub(crate) const NO_FUNCTION: &str = "?";

/// Activity of a sampled thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    /// Allocating pages.
    Allocating,
    /// Freeing pages.
    Freeing,
    /// Clearing pages, within an allocation or a page fault.
    Clearing,
    /// Reclaiming pages, less the frees within.
    Reclaiming,
    /// Compacting memory.
    Compacting,
    /// Waiting for the lock of a zone.
    ZoneLock,
    /// Waiting for the lock of an LRU list.
    LruLock,
    /// Waiting for a lock of a memory control group.
    GroupLock,
    /// Writing events of the recording.
    Recording,
    /// Anything else, in the kernel or outside.
    Other,
}

impl Doing {
    /// All that belongs to the page allocator and what surrounds it.
    pub const PARTS: [Self; 8] = [
        Self::Allocating,
        Self::Freeing,
        Self::ZoneLock,
        Self::Clearing,
        Self::Reclaiming,
        Self::Compacting,
        Self::LruLock,
        Self::GroupLock,
    ];
    /// Activities that a faster page allocator changes.
    pub const ALLOCATOR: [Self; 3] = [Self::Allocating, Self::Freeing, Self::ZoneLock];

    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocating => "allocating",
            Self::Freeing => "freeing",
            Self::Clearing => "clearing",
            Self::Reclaiming => "reclaiming",
            Self::Compacting => "compacting",
            Self::ZoneLock => "zone_lock_wait",
            Self::LruLock => "lru_lock_wait",
            Self::GroupLock => "memcg_lock_wait",
            Self::Recording => "recording",
            Self::Other => "other",
        }
    }
}

/// Names of functions, `*` in place of any end.
type Words = LazyLock<Vec<&'static str>>;
/// Names by what their functions are part of. The first row that matches counts.
type Table = LazyLock<Vec<(Doing, Vec<&'static str>)>>;

fn words(text: &'static str) -> Vec<&'static str> {
    text.split_whitespace().collect()
}

fn table(rows: &[(Doing, &'static str)]) -> Vec<(Doing, Vec<&'static str>)> {
    rows.iter().map(|&(doing, text)| (doing, words(text))).collect()
}

/// Functions of Linux 3.0 to 7.0 by what they are part of, without the suffixes that compilers add (`.part.0`,
/// `.isra.0`, `.constprop.0`, `.cold`).
static FUNCTIONS: Table = LazyLock::new(|| {
    table(&[
        (Doing::Recording, "trace_event_* __traceiter_* ring_buffer_* rb_wake_up_waiters perf_* __perf_*"),
        (
            Doing::Clearing,
            "clear_page clear_page_rep clear_page_orig clear_page_erms __pi_clear_page clear_huge_page \
             clear_subpage clear_gigantic_page clear_contig_highpages clear_user_highpage* clear_highpage* \
             folio_zero_user kernel_init_pages clear_pages*",
        ),
        (
            Doing::Compacting,
            "compact_zone* try_to_compact_pages kcompactd* proactive_compact_node isolate_migratepages* \
             isolate_freepages* compaction_alloc* compaction_free* __alloc_pages_direct_compact",
        ),
        (
            Doing::Reclaiming,
            "shrink_node* shrink_zone* shrink_lruvec shrink_folio_list shrink_page_list shrink_slab* \
             shrink_inactive_list shrink_active_list shrink_many shrink_one do_shrink_slab try_to_free_pages \
             do_try_to_free_pages try_to_free_mem_cgroup_pages balance_pgdat evict_folios \
             try_to_shrink_lruvec isolate_lru_* scan_folios reclaim_pages reclaim_high reclaim_folio_list \
             __alloc_pages_direct_reclaim __perform_reclaim node_reclaim zone_reclaim",
        ),
        (
            Doing::Allocating,
            "__alloc_pages* __alloc_frozen_pages* get_page_from_freelist rmqueue* __rmqueue* \
             buffered_rmqueue prep_new_page prep_compound_page post_alloc_hook alloc_pages_bulk* \
             steal_suitable_fallback try_to_claim_block try_to_steal_block find_suitable_fallback \
             move_freepages* expand check_new_page* __zone_watermark_ok zone_watermark_fast \
             reserve_highatomic_pageblock prepare_alloc_pages alloc_contig_range*",
        ),
        (
            Doing::Freeing,
            "__free_pages* ___free_pages* free_pages free_frozen_page* __free_frozen_pages free_unref_* \
             free_pcppages_bulk free_one_page __free_one_page free_pages_prepare free_pcp_prepare \
             free_hot_cold_page* free_pages_bulk drain_pages* drain_local_pages* drain_zone_pages \
             decay_pcp_high split_large_buddy free_tail_page_prepare free_page_is_bad",
        ),
    ])
});

/// Functions that wait for a spin lock.
const WAITING: &[&str] =
    &["*queued_spin_lock_slowpath", "*ticket_spin_lock*", "virt_spin_lock", "__pv_queued_spin*"];
/// Functions that take locks of an LRU list and of a memory control group. Allocating, freeing and compacting take a
/// zone's.
static LOCKS: Table = LazyLock::new(|| {
    table(&[
        (
            Doing::LruLock,
            "folio_lruvec_* *lruvec_lock* lru_add_drain* folio_batch_move_lru pagevec_lru_move_fn \
             *__page_cache_release release_pages folios_put_refs isolate_lru_* shrink_* lru_note_cost* \
             folio_add_lru* lru_gen_*",
        ),
        (
            Doing::GroupLock,
            "*memcg* mem_cgroup_* *obj_stock* refill_stock consume_stock drain_stock css_rstat_* \
             cgroup_rstat_* page_counter_* __mem_cgroup_*",
        ),
    ])
});
/// Entries of interrupts: what a thread did before one has nothing to do with it.
const INTERRUPTS: &[&str] = &[
    "asm_sysvec_*",
    "asm_common_interrupt",
    "irq_exit_rcu",
    "handle_softirqs",
    "__do_softirq",
    "el1h_64_irq",
];
/// Functions on the way from a call site to the allocator.
static WRAPPERS: Words = LazyLock::new(|| {
    words(
        "alloc_page* alloc_frozen_pages* folio_alloc* __folio_alloc* vma_alloc_* __get_free_page* \
         get_free_pages* get_zeroed_page* alloc_anon_folio folio_prealloc filemap_alloc_folio* \
         alloc_misplaced* __page_cache_alloc",
    )
});

fn is_one_of(name: &str, patterns: &[&str]) -> bool {
    patterns.iter().any(|pattern| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(_), Some(_)) => name.contains(pattern.trim_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == *pattern,
    })
}

fn part_of(name: &str, table: &[(Doing, Vec<&str>)]) -> Option<Doing> {
    table.iter().find(|(_, patterns)| is_one_of(name, patterns)).map(|(doing, _)| *doing)
}

/// What a thread in this stack was doing; the innermost function comes last.
fn doing(stack: &[&str]) -> Doing {
    if stack.iter().any(|name| part_of(name, &FUNCTIONS[..1]).is_some()) {
        return Doing::Recording;
    }
    let mut waits = false;
    for name in stack.iter().rev() {
        if is_one_of(name, INTERRUPTS) {
            return Doing::Other;
        }
        if is_one_of(name, WAITING) {
            waits = true;
            continue;
        }
        if waits && let Some(lock) = part_of(name, &LOCKS) {
            return lock;
        }
        match part_of(name, &FUNCTIONS) {
            Some(Doing::Allocating | Doing::Freeing | Doing::Compacting) if waits => return Doing::ZoneLock,
            Some(doing) => return doing,
            None => {}
        }
    }
    Doing::Other
}

/// The function that asked for pages, if this is a stack of an allocation.
fn call_site<'a>(stack: &[&'a str]) -> Option<&'a str> {
    let outermost = stack.iter().position(|name| part_of(name, &FUNCTIONS) == Some(Doing::Allocating))?;
    stack[..outermost].iter().rev().find(|name| !is_one_of(name, &WRAPPERS)).copied()
}

/// A share of a run's CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// CPU time.
    pub cpu_ns: f64,
    /// In percent of the run's CPU time, with its 95 % interval.
    pub percent: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// CPU time that recording takes, as [`record`](crate::record) measures it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Of an allocation and its free, with every event that they write.
    pub(crate) block_ns: u64,
    pub(crate) sample_ns: u64,
}

/// Samples of a run's threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// CPU time between two samples.
    period_ns: u64,
    /// Samples that the kernel had no room for.
    pub lost: u64,
    /// What recording costs, if it was measured.
    cost: Option<Cost>,
    by_part: HashMap<Doing, u64>,
    /// Samples outside the kernel.
    user: u64,
    /// Whether any function is known.
    are_named: bool,
    call_sites: Vec<(String, u64)>,
}

impl Samples {
    /// Those of a recording; `None` if it was made without, if none fell into the run, or if those in the kernel have
    /// no functions: then no share is known.
    #[must_use]
    pub fn of(trace: &Trace) -> Option<Self> {
        let mut samples = Self::parse(&trace.notes.iter().find(|note| note.name == NOTE)?.text)?;
        samples.take_out_recording(EventKind::ALL.map(|kind| trace.count(kind) as u64));
        (samples.count() > 0 && (samples.are_named || samples.count() == samples.user)).then_some(samples)
    }

    /// Counts for the recording what it cost, which samples alone do not show: the kernel writes two kinds of events
    /// under a zone's lock, where a sample that is due comes when the lock is given back and counts for allocating or
    /// freeing; and code that writes events waits for what the run had begun before, such as the stores of a cleared
    /// page. So the time of an event is measured (`record::cost`), and samples are moved accordingly. A trace without
    /// that measurement takes the time of an event from the samples. `events` are counted by kind.
    fn take_out_recording(&mut self, events: [u64; EventKind::ALL.len()]) {
        let count = |kind: EventKind| events[kind as usize] as f64;
        let lives = f64::midpoint(count(EventKind::PageAlloc), count(EventKind::PageFree));
        let sampled = self.by_part.get(&Doing::Recording).copied().unwrap_or(0);
        let seen = [EventKind::PageAlloc, EventKind::PageFree, EventKind::PageFreeBatched].map(count);
        let all = events.iter().sum::<u64>() as f64;
        let measured = self.cost.map(|cost| lives * cost.block_ns as f64 / self.period_ns.max(1) as f64);
        let each =
            measured.map_or(sampled as f64 / seen.iter().sum::<f64>().max(1.0), |cost| cost / all.max(1.0));
        let mut hidden = 0;
        for (part, kind) in
            [(Doing::Allocating, EventKind::PageAllocZoneLocked), (Doing::Freeing, EventKind::PagePcpuDrain)]
        {
            let of_part = self.by_part.entry(part).or_default();
            let under_lock = ((each * count(kind)).round() as u64).min(*of_part);
            *of_part -= under_lock;
            hidden += under_lock;
        }
        let found = sampled + hidden;
        let cost = measured.map_or(found, |cost| (cost.round() as u64).min(found));
        self.by_part.insert(Doing::Recording, cost);
        *self.by_part.entry(Doing::Other).or_default() += found - cost;
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let mut head = lines.next()?.split_whitespace();
        let mut number = |name: &str| head.next()?.strip_prefix(name)?.parse::<u64>().ok();
        let mut samples =
            Self { period_ns: number("period_ns=")?, lost: number("lost=")?, ..Self::default() };
        samples.cost = number("block_ns=")
            .map(|block_ns| Cost { block_ns, sample_ns: number("sample_ns=").unwrap_or(0) });
        let mut call_sites: HashMap<&str, u64> = HashMap::new();
        for (count, stack) in lines.filter_map(|line| line.split_once(' ')) {
            let Ok(count) = count.parse::<u64>() else { continue };
            let stack: Vec<&str> =
                stack.split(';').map(|name| name.split('.').next().unwrap_or_default()).collect();
            let part = doing(&stack);
            samples.user += if stack == [USER] { count } else { 0 };
            samples.are_named |= stack.iter().any(|name| ![USER, UNKNOWN, NO_FUNCTION].contains(name));
            *samples.by_part.entry(part).or_default() += count;
            if part == Doing::Allocating
                && let Some(site) = call_site(&stack)
            {
                *call_sites.entry(site).or_default() += count;
            }
        }
        samples.call_sites = call_sites.into_iter().map(|(site, count)| (site.to_owned(), count)).collect();
        samples.call_sites.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Some(samples)
    }

    /// Whether what recording costs was measured: `perf record` does not.
    #[must_use]
    pub const fn is_cost_known(&self) -> bool {
        self.cost.is_some()
    }

    /// The number of samples, without those of the recording itself.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.by_part.iter().filter(|(part, _)| **part != Doing::Recording).map(|(_, count)| count).sum()
    }

    /// CPU time of the run for which a sample stands: the period, less what the sample itself takes.
    fn run_ns(&self) -> f64 {
        self.period_ns.saturating_sub(self.cost.map_or(0, |cost| cost.sample_ns)) as f64
    }

    /// CPU time of the run, without that of the recording itself.
    #[must_use]
    pub fn cpu_ns(&self) -> f64 {
        self.count() as f64 * self.run_ns()
    }

    /// CPU time of the run in the kernel, without that of the recording itself.
    #[must_use]
    pub fn system_ns(&self) -> f64 {
        self.count().saturating_sub(self.user) as f64 * self.run_ns()
    }

    /// CPU time that the run's threads spent on writing events and on being sampled, in percent of what they would have
    /// taken without.
    #[must_use]
    pub fn recording_percent(&self) -> f64 {
        let recording = self.by_part.get(&Doing::Recording).copied().unwrap_or(0) as f64;
        let all = self.count() as f64 + recording;
        100.0 * (all * self.period_ns as f64 - self.cpu_ns()) / self.cpu_ns().max(1.0)
    }

    /// The share of these parts together. Its interval is Wilson's for a proportion ("Probable Inference, the Law of
    /// Succession, and Statistical Inference", 1927).
    #[must_use]
    pub fn share_of(&self, parts: &[Doing]) -> Share {
        const Z: f64 = 1.96;
        let found: u64 = parts.iter().filter_map(|part| self.by_part.get(part)).sum();
        let (found, all) = (found as f64, (self.count() as f64).max(1.0));
        let share = (found / all).min(1.0);
        let middle = share + Z * Z / (2.0 * all);
        let width = Z * (share * (1.0 - share) / all + Z * Z / (4.0 * all * all)).sqrt();
        let percent = |share: f64| 100.0 * share / (1.0 + Z * Z / all);
        Share {
            cpu_ns: found * self.run_ns(),
            percent: 100.0 * share,
            low: percent(middle - width).max(0.0),
            high: percent(middle + width),
        }
    }

    /// The functions that allocated pages, with their shares of the time of allocating in percent, most first.
    pub fn call_sites(&self) -> impl Iterator<Item = (&str, f64)> {
        let all: u64 = self.call_sites.iter().map(|(_, count)| count).sum();
        self.call_sites
            .iter()
            .map(move |(site, count)| (site.as_str(), 100.0 * *count as f64 / all.max(1) as f64))
    }
}

/// Stacks of functions with how often each was found, the outermost first. `name` gives the function at an address.
pub(crate) fn named<'a>(
    samples: &HashMap<Box<[u64]>, u64>,
    name: impl Fn(u64) -> &'a str,
) -> HashMap<String, u64> {
    let mut by_names: HashMap<String, u64> = HashMap::new();
    for (stack, count) in samples {
        // All but the innermost are places to return to, which may lie behind the function's last instruction.
        let place = |(n, &address): (usize, &u64)| name(if n == 0 { address } else { address - 1 });
        *by_names.entry(folded(stack.iter().enumerate().map(place).collect())).or_default() += count;
    }
    by_names
}

/// A stack in a word, from its functions in the kernel, the innermost first.
pub(crate) fn folded(mut functions: Vec<&str>) -> String {
    functions.reverse();
    if functions.is_empty() { USER.to_owned() } else { functions.join(";") }
}

/// Text of the note: how often each stack was found.
pub(crate) fn text(period_ns: u64, lost: u64, cost: Option<Cost>, by_names: HashMap<String, u64>) -> String {
    let mut stacks: Vec<(String, u64)> = by_names.into_iter().collect();
    stacks.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let cost = cost.map_or_else(String::new, |Cost { block_ns, sample_ns }| {
        format!(" block_ns={block_ns} sample_ns={sample_ns}")
    });
    let mut text = format!("period_ns={period_ns} lost={lost}{cost}\n");
    let mut unnamed = 0;
    for (stack, count) in stacks {
        if text.len() + stack.len() < LONGEST {
            let _ = writeln!(text, "{count} {stack}");
        } else {
            unnamed += count;
        }
    }
    if unnamed > 0 {
        let _ = writeln!(text, "{unnamed} {UNKNOWN}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Note;

    /// Of no sample there is no share, not one of 0 % between 0 and 79.
    #[test]
    fn a_run_that_no_sample_fell_into_has_no_shares() {
        let sampled = |text: &str| {
            let note =
                Note { time_ns: 0, cpu: 0, pid: 0, comm: 0, name: NOTE.to_owned(), text: text.to_owned() };
            Samples::of(&Trace { notes: vec![note], ..Trace::default() })
        };
        let head = "period_ns=1001001 lost=0 block_ns=900 sample_ns=30000\n";
        assert_eq!(sampled(head), None);
        assert_eq!(sampled(&format!("{head}1 user\n")).expect("a sample").count(), 1);
        // Nor where the kernel hides its functions, from record or from perf: none is found to allocate.
        for hidden in ["90 user\n9 ?;?;?\n1 ?\n", "90 user\n10 kernel;kernel\n"] {
            assert_eq!(sampled(&format!("{head}{hidden}")), None);
        }
        // What does not fit the note loses its names.
        assert_eq!(sampled(&format!("{head}8 do_sys_open\n2 kernel\n")).expect("samples").count(), 10);
    }

    #[test]
    fn a_sample_counts_once_for_the_innermost_part() {
        let fault =
            "asm_exc_page_fault;handle_mm_fault;do_anonymous_page;vma_alloc_folio_noprof;alloc_pages_mpol";
        let alloc = "__alloc_frozen_pages_noprof;get_page_from_freelist";
        for (stack, expected) in [
            ("user".to_owned(), Doing::Other),
            (format!("{fault};{alloc};__list_del_entry_valid_or_report"), Doing::Allocating),
            (format!("{fault};{alloc};prep_new_page;clear_page_erms"), Doing::Clearing),
            (format!("{fault};folio_zero_user"), Doing::Clearing),
            (format!("{fault};{alloc};__traceiter_mm_page_alloc;rb_commit"), Doing::Recording),
            (format!("{fault};{alloc};rmqueue_bulk;_raw_spin_lock;native_queued_spin_lock_slowpath"), Doing::ZoneLock),
            (format!("{fault};{alloc};rmqueue;asm_sysvec_apic_timer_interrupt;update_curr"), Doing::Other),
            (format!("{fault};{alloc};try_to_free_pages;shrink_node;rmap_walk"), Doing::Reclaiming),
            (format!("{fault};{alloc};try_to_free_pages;shrink_node;free_unref_folios;x"), Doing::Freeing),
            (format!("{fault};{alloc};try_to_compact_pages;compact_zone;migrate_pages"), Doing::Compacting),
            ("exit_mmap;free_pages_and_swap_cache;folios_put_refs;free_unref_folios.part.0".to_owned(), Doing::Freeing),
            (
                "exit_mmap;folios_put_refs;__page_cache_release.part.0;folio_lruvec_lock_irqsave;queued_spin_lock_slowpath"
                    .to_owned(),
                Doing::LruLock,
            ),
            ("charge_memcg;refill_obj_stock;native_queued_spin_lock_slowpath".to_owned(), Doing::GroupLock),
            ("futex_wake;_raw_spin_lock;native_queued_spin_lock_slowpath".to_owned(), Doing::Other),
        ] {
            let cut: Vec<&str> = stack.split(';').map(|name| name.split('.').next().unwrap()).collect();
            assert_eq!(doing(&cut), expected, "{stack}");
        }
        assert_eq!(
            call_site(&format!("{fault};{alloc};x").split(';').collect::<Vec<_>>()),
            Some("do_anonymous_page")
        );
    }

    #[test]
    fn shares_have_intervals_and_leave_out_the_recording() {
        let stacks = [
            (vec![3, 12, 21], 9_u64), // do_anonymous_page, rmqueue, and its innermost
            (vec![], 90),
            (vec![5, 40], 25),
            (vec![5, 21], 1),
        ];
        let samples = stacks.into_iter().map(|(stack, count)| (stack.into_boxed_slice(), count)).collect();
        let name = |address| match address {
            0..5 => "list_del",
            5..10 => "free_unref_page.constprop.0",
            10..20 => "rmqueue",
            20..30 => "do_anonymous_page",
            _ => "trace_event_buffer_commit",
        };
        let text = text(1_000_000, 7, Some(Cost { block_ns: 40_000, sample_ns: 0 }), named(&samples, name));
        assert!(
            text.contains("\n90 user\n") && text.contains("do_anonymous_page;rmqueue;list_del"),
            "{text}"
        );
        let samples = Samples::parse(&text).expect("as written");
        assert_eq!((samples.count(), samples.cpu_ns(), samples.lost), (100, 1e8, 7));
        let share = samples.share_of(&Doing::ALLOCATOR);
        assert_eq!((share.percent, share.cpu_ns), (10.0, 1e7));
        // Wilson's interval of 10 in 100.
        assert!((share.low - 5.52).abs() < 0.01 && (share.high - 17.44).abs() < 0.01, "{share:?}");
        assert_eq!(samples.recording_percent(), 25.0);
        // A fifth of each period is the sample's own: 125 samples take 25 ms of 125, and 25 others wrote events.
        let cost = Some(Cost { block_ns: 40_000, sample_ns: 200_000 });
        let sampled = Samples { cost, ..samples.clone() };
        assert_eq!((sampled.cpu_ns(), sampled.recording_percent()), (8e7, 56.25));
        assert_eq!(sampled.share_of(&Doing::ALLOCATOR), Share { cpu_ns: 8e6, ..share });
        assert_eq!(samples.call_sites().collect::<Vec<_>>(), [("do_anonymous_page", 100.0)]);
        let shares = |samples: &Samples| {
            [Doing::Allocating, Doing::Freeing, Doing::Recording].map(|part| samples.share_of(&[part]).cpu_ns)
        };
        // 25 samples for 50 events that are seen: 4 that are not seen took 2, of 4 drains no more than there is.
        let mut guessed = Samples { cost: None, ..samples.clone() };
        guessed.take_out_recording([30, 10, 10, 4, 4]);
        assert_eq!((shares(&guessed), guessed.count()), ([7e6, 0.0, 28e6], 97));
        // 200 blocks at 40 us took 8 samples, a hundredth of them each event: the rest was not the recording's.
        let mut measured = samples.clone();
        measured.take_out_recording([200, 200, 200, 150, 50]);
        assert_eq!((shares(&measured), measured.count()), ([7e6, 0.0, 8e6], 117));
        // It cost more than was found: no sample is taken from elsewhere.
        let mut dear = Samples { cost: Some(Cost { block_ns: 1_000_000, sample_ns: 0 }), ..samples.clone() };
        dear.take_out_recording([200, 200, 0, 0, 0]);
        assert_eq!((shares(&dear), dear.count()), ([9e6, 1e6, 25e6], 100));
        for wrong in ["", "period_ns=1", "1 user", "period_ns=x lost=0"] {
            assert_eq!(Samples::parse(wrong), None, "{wrong}");
        }
    }
}
