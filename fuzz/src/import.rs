//! Recordings of other tools: whatever the bytes are, the result is a valid trace or an error of one line.

use std::path::Path;

use framewright_trace::import::from_bytes;

use crate::trace::check;

/// Imports `input`, unless another program would read it. If it is accepted, the result must be a valid trace.
///
/// # Panics
/// It is not.
pub fn run(input: &[u8]) -> bool {
    let foreign: [&[u8]; 3] = [b"PERFILE2", b"2ELIFREP", b"\x17\x08\x44tracing"];
    !foreign.iter().any(|magic| input.starts_with(magic)) && check(from_bytes(input, "input"))
}

/// Text with every kind of line, and the texts that the importer's own tests read.
///
/// # Panics
/// A file of the checkout cannot be read.
pub fn seeds() -> Vec<Vec<u8>> {
    let recordings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/trace/tests/data");
    let read = |name: &str| std::fs::read(recordings.join(name)).expect("the checkout has it");
    let text = read("perf-6.1.txt");
    // A short text is changed in more telling places than a long one.
    let lines: Vec<&[u8]> = text.split_inclusive(|&byte| byte == b'\n').take(40).collect();
    vec![TEXT.into(), lines.concat(), text, read("perf-6.1-ns.txt")]
}

const TEXT: &str = "\
# captured on: Sat Nov 21 09:00:00 2026
             cc1  4562 [001]  1397.840348: kmem:mm_page_alloc: page=0x12dc61 pfn=0x12dc61 order=0 migratetype=1 gfp_flags=GFP_HIGHUSER_MOVABLE|__GFP_COMP
             cc1  4562 [001]  1397.840350: kmem:mm_page_alloc_zone_locked: page=0x12dc62 pfn=0x12dc62 order=0 migratetype=1 percpu_refill=1
\tffffffff81234567 rmqueue_bulk+0x4a7 ([kernel.kallsyms])

      my thread  4562/4563 [000]  1397.840360: kmem:mm_page_free: page=0x12dc61 pfn=0x12dc61 order=0
             cc1  4562 [001]  1397.840361: kmem:mm_page_free_batched: page=0x12dc61 pfn=0x12dc61 order=0 cold=0
         swapper     0 [000]  1397.840999: kmem:mm_page_pcpu_drain: page=0x12dc64 pfn=0x12dc64 order=2 migratetype=0
             cc1  4562 [001]  1397.841348: kmem:mm_page_alloc: page=(nil) pfn=0x0 order=9 migratetype=1 gfp_flags=GFP_TRANSHUGE
              as  4570 [000]  1397.842000: sched:sched_switch: prev_comm=as prev_pid=4570
";
