//! Imports: `perf.data` and the text of `perf script`, whole or not at all.

use framewright_trace::error::Error;
use framewright_trace::import;
use framewright_trace::kernel_time::{Doing, Samples};
use framewright_trace::trace::{Event, EventKind, Meta, Trace};
use proptest::prelude::*;

use crate::common::named;

/// Recorded by perf 6.1 on a 6.18 kernel, with a command named `a b [0] 1.5`; what perf script makes of it,
/// with times in microseconds and in nanoseconds.
const DATA: &[u8] = include_bytes!("../data/perf-6.1.data.zst");
const TEXT: &str = include_str!("../data/perf-6.1.txt");
const TEXT_NS: &str = include_str!("../data/perf-6.1-ns.txt");

const FIX: &str =
    "give a file of `perf record -a -e 'kmem:mm_page_*'`, or the text that `perf script` makes of it";

fn data() -> Vec<u8> {
    zstd::decode_all(DATA).unwrap()
}

fn import(bytes: &[u8]) -> Result<Trace, Error> {
    import::from_bytes(bytes, "f")
}

fn message(bytes: &[u8]) -> String {
    let message = import(bytes).unwrap_err().to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

/// The file as perf itself prints it, header and all.
#[test]
fn a_file_is_read_by_perf() {
    let has_perf = std::process::Command::new("perf").arg("--version").output().is_ok();
    if !has_perf {
        assert_eq!(
            message(&data()),
            "f: at byte 0: a file of perf, which cannot be started here (No such file or directory (os error 2)); \
             where perf can read it, run `perf script | framewright import - -o TRACE`"
        );
        return;
    }
    let (file, text) = (import(&data()).unwrap(), import(TEXT_NS.as_bytes()).unwrap());
    assert_eq!(named(&file), named(&text));
    assert_eq!((file.meta.source.as_str(), text.meta.source.as_str()), ("perf.data", "perf script"));
    assert_eq!((file.meta.kernel.as_str(), file.meta.cpus), ("6.18.44-fc-v595", 2));
    assert_eq!(file.meta.machine, "Intel(R) Xeon(R) Processor, 24105 MiB");
    assert!(file.meta.command.starts_with("/usr/bin/perf record -q -m 128"), "{}", file.meta.command);
    assert_eq!((file.meta.lost_events, text.meta.lost_events), (Some(0), None));
    // Cut within the records, and cut to their beginning: nothing is imported.
    for length in [8, 104, 2000, data().len() / 2] {
        let message = message(&data()[..length]);
        assert!(message.starts_with("f: at byte 0: perf refuses the file: "), "{message}");
    }
}

/// Text of `perf record -a -e kmem:mm_page_alloc,cpu-clock -g`: stacks of the kernel and of a program, a sample before
/// the first allocation, an idle CPU, and one without a call chain.
#[test]
fn samples_of_a_clock_become_the_traces_own() {
    let alloc = "cc1 7 [000] 1.000009: kmem:mm_page_alloc: page=0x1 pfn=0x10 order=0 migratetype=1 gfp_flags=GFP_KERNEL\n";
    let stack = "\tffffffff8136a0d4 rmqueue_bulk.part.0+0x24 ([kernel.kallsyms])\n\
                 \tffffffff8136b1f0 __alloc_frozen_pages_noprof+0x110 ([kernel.kallsyms])\n\
                 \tffffffff81300000 do_anonymous_page+0x90 ([kernel.kallsyms])\n\
                 \t        7f0011223344 main+0x12 (/usr/bin/cc1)\n\n";
    let sample = |pid: &str| format!("{pid} [000] 1.000001:    1001001          cpu-clock: \n");
    let text = format!(
        "{0}\t  11c26 free+0x56 (/usr/bin/cc1)\n\n{1}{stack}{0}{stack}{alloc}{stack}{0}\n\
         cc1 7 [001] 1.000002: 1001001 task-clock:ppp:  ffffffff8102 clear_page_erms+0x7 ([kernel.kallsyms])\n",
        sample("cc1 7"),
        sample("swapper 0"),
    );
    let trace = import(text.as_bytes()).unwrap();
    let samples = Samples::of(&trace).expect("there are some");
    assert_eq!((samples.count(), samples.cpu_ns()), (4, 4.0 * 1_001_001.0));
    let percent = |part| samples.share_of(&[part]).percent;
    assert_eq!([Doing::Allocating, Doing::Clearing, Doing::Other].map(percent), [25.0, 25.0, 50.0]);
    assert_eq!(samples.system_ns(), 2.0 * 1_001_001.0);
    assert_eq!(samples.call_sites().collect::<Vec<_>>(), [("do_anonymous_page", 100.0)]);
    assert_eq!(Samples::of(&import(alloc.as_bytes()).unwrap()), None);
}

#[test]
fn times_in_microseconds_and_nanoseconds() {
    let [coarse, fine] = [TEXT, TEXT_NS].map(|text| import(text.as_bytes()).unwrap());
    let times = coarse.events.iter().zip(&fine.events);
    assert!(times.into_iter().all(|(coarse, fine)| coarse.time_ns == fine.time_ns / 1000 * 1000));
    assert_eq!(EventKind::ALL.map(|kind| fine.count(kind)), [54, 26, 3, 39, 58]);
    assert!(fine.comms.names().iter().any(|name| name == "a b [0] 1.5"), "{:?}", fine.comms);
    // It is a trace that can be kept.
    assert_eq!(named(&Trace::read_bytes(&fine.to_bytes().unwrap(), "t").unwrap()), named(&fine));
}

#[test]
fn every_cut_of_a_text_within_a_line_is_refused() {
    let text = &TEXT.as_bytes()[..4000];
    let mut line = 1;
    for length in 1..text.len() {
        let cut = &text[..length];
        if cut.ends_with(b"\n") {
            assert_eq!(import(cut).unwrap().events.len(), line);
            line += 1;
        } else {
            let start = cut.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            assert_eq!(
                message(cut),
                format!("f: line {line} (byte {start}): the text ends within this line; {FIX}")
            );
        }
    }
}

#[test]
fn foreign_files_are_refused() {
    assert_eq!(message(b""), format!("f: at byte 0: an empty file; {FIX}"));
    assert_eq!(message(b"\x7fELF\0\0"), format!("f: at byte 0: neither perf.data nor text; {FIX}"));
    for waits in
        [" contended   total wait     max wait     avg wait\n", "=====\n  Shared Data Cache Line Table\n"]
    {
        let refusal = "a report of `perf lock` or `perf c2c`, which import does not read";
        assert_eq!(message(waits.as_bytes()), format!("f: at byte 0: {refusal}; {FIX}"));
    }
    assert_eq!(
        message(b"PAR1..."),
        "f: at byte 0: already a trace; give it to `framewright replay` as it is"
    );
    assert_eq!(
        message(b"# a comment\nwhat is this\n"),
        format!("f: line 2 (byte 12): not a line of perf script or ftrace: \"what is this\"; {FIX}")
    );
    assert_eq!(message(b"# a comment\n\n"), format!("f: holds no page-allocator events; {FIX}"));
    let switch = "sh 1 [000] 1.000000: sched:sched_switch: prev_comm=sh\n";
    assert_eq!(message(switch.as_bytes()), format!("f: holds no page-allocator events; {FIX}"));
    let missing = import::import("/nowhere/perf.data".as_ref(), "f").unwrap_err().to_string();
    assert_eq!(
        missing,
        "cannot read /nowhere/perf.data: No such file or directory (os error 2); check the path"
    );
}

/// One event of a one-line text.
fn line(line: &str) -> Event {
    let trace = import(format!("{line}\n").as_bytes()).unwrap();
    let [event] = trace.events[..] else { panic!("{trace:?}") };
    event
}

#[test]
fn lines_of_all_ages() {
    // Frames in decimal and a period before the event, as old perfs print; process and thread; a name with
    // spaces.
    let event = line(
        "  my prog 10/12 [003]  5.25: 1 kmem:mm_page_alloc: page=0xffffea pfn=4660 order=2 migratetype=1 gfp_flags=GFP_KERNEL|__GFP_COLD",
    );
    let expected = Event {
        time_ns: 5_250_000_000,
        pfn: 0x1234,
        gfp: 0xcc0,
        pid: 12,
        cpu: 3,
        order: 2,
        migratetype: Some(1),
        ..Event::default()
    };
    assert_eq!(event, expected);
    let event = line(
        "my prog 12 [003] 5.250000: kmem:mm_page_alloc: page=0x1234 pfn=0x1234 order=2 migratetype=1 gfp_flags=0xcc0",
    );
    assert_eq!(event, expected);
    let event = line("swapper 0 [001] 1.000000001: kmem:mm_page_free_batched: page=0x1 pfn=0x1 order=0");
    assert_eq!(
        (event.kind, event.migratetype, event.time_ns),
        (EventKind::PageFreeBatched, None, 1_000_000_001)
    );
}

#[test]
fn what_surrounds_the_events_of_a_text() {
    let text = "# captured on: today\n\
        # os release : 6.1.0\n# nrcpus online : 4\n# cpudesc : a CPU\n# total memory : 2048 kB\n# cmdline : perf record \n\
        a 1 [000] 1.0: kmem:mm_page_alloc: page=0x5 pfn=0x5 order=0 migratetype=0 gfp_flags=none\r\n\
        \tffffffff81234567 get_page_from_freelist+0x7 ([kernel.kallsyms])\n\
        \n\
        b 2 [001] 0.4: PERF_RECORD_LOST lost 3\n\
        b 2 [001] 0.5: kmem:kfree: call_site=x ptr=(nil)\n\
        b 2 [001] 2.0: kmem:mm_page_alloc: page=(nil) pfn=0x0 order=9 migratetype=1 gfp_flags=GFP_TRANSHUGE\n";
    let trace = import(text.as_bytes()).unwrap();
    assert_eq!((trace.events.len(), trace.meta.failed_allocations, trace.meta.lost_events), (1, 1, Some(3)));
    let Meta { kernel, cpus, machine, command, .. } = &trace.meta;
    let header = (kernel.as_str(), *cpus, machine.as_str(), command.as_str());
    assert_eq!(header, ("6.1.0", 4, "a CPU, 2 MiB", "perf record"));
}

/// A huge page of a gibibyte: no event tells of its allocation.
#[test]
fn a_free_that_no_buddy_list_takes_is_passed_over() {
    let free = "a 1 [000] 1.0: kmem:mm_page_free: page=0x40000 pfn=0x40000";
    let text = format!("{free} order=18\n{free} order=0\n");
    let trace = import::from_bytes(text.as_bytes(), "f").unwrap();
    assert_eq!(trace.events.iter().map(|event| event.order).collect::<Vec<_>>(), [0]);
}

#[test]
fn lines_that_say_wrong_or_nothing_are_refused() {
    let free = "a 1 [000] 1.0: kmem:mm_page_free:";
    let refused = |line: &str| {
        let text = format!("{free} page=0x5 pfn=0x5 order=0\n{line}\n");
        let message = message(text.as_bytes());
        let what = message.strip_prefix("f: line 2 (byte 59): ").and_then(|what| what.strip_suffix(FIX));
        what.and_then(|what| what.strip_suffix("; ")).unwrap_or_else(|| panic!("{message}")).to_owned()
    };
    for (fields, what) in [
        ("page=0x5 pfn=0x5 order=31", "mm_page_free of order 31, above 30"),
        ("page=0x5 pfn=0x5", "mm_page_free without order"),
        ("order=0", "mm_page_free without pfn"),
        ("pfn=0xg order=0", "pfn=0xg is no number"),
        ("pfn=0x10000000000000 order=0", "mm_page_free of pfn 0x10000000000000, which is no frame number"),
    ] {
        assert_eq!(refused(&format!("{free} {fields}")), what);
    }
    let alloc = "a 1 [000] 1.0: kmem:mm_page_alloc: pfn=1 order=0 migratetype=0 gfp_flags=new";
    assert_eq!(refused(alloc), "unknown allocation flag \"new\"");
    for (head, what) in [
        ("a 1 [000] 1:", "the time \"1\" is not one"),
        ("a 1 [000] 1.0000000001:", "the time \"1.0000000001\" is not one"),
        ("a b [000] 1.0:", "no thread before the CPU: \"a b\""),
    ] {
        assert_eq!(refused(&format!("{head} kmem:mm_page_free: pfn=1 order=0")), what);
    }
    for head in ["a 1 1.0:", "a 1 [70000] 1.0:"] {
        let line = format!("{head} kmem:mm_page_free: pfn=1 order=0");
        assert_eq!(refused(&line), format!("not a line of perf script or ftrace: {line:?}"));
    }
}

#[test]
fn threads_that_have_ended_are_the_kernel_s() {
    let event = line(":-1 -1/-1 [003] 5.25: kmem:mm_page_free: page=0x5 pfn=0x5 order=0");
    assert_eq!((event.pid, event.cpu), (0, 3));
}

proptest! {
    #[test]
    fn damaged_texts_are_refused_or_harmless(hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = TEXT.as_bytes()[..2000].to_vec();
        for (at, value) in hits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Err(error) = import(&bytes) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }
}

#[test]
fn flags_of_newer_kernels_are_kept_out_and_told() {
    let text = "a 1 [000] 1.0: kmem:mm_page_alloc: pfn=1 order=0 migratetype=0 gfp_flags=GFP_KERNEL|__GFP_NEW\n\
                a 1 [000] 1.1: kmem:mm_page_alloc: pfn=2 order=0 migratetype=0 gfp_flags=__GFP_NEW|__GFP_ANEW\n";
    let trace = import(text.as_bytes()).unwrap();
    assert_eq!(trace.events.iter().map(|event| event.gfp).collect::<Vec<_>>(), [0xcc0, 0]);
    assert_eq!(trace.meta.unknown_flags, "__GFP_ANEW __GFP_NEW");
}

/// The three forms of one text say the same.
#[test]
fn ftrace_and_trace_cmd_are_read_like_perf_script() {
    let perf = "\
make  4562 [001]  1397.840348: kmem:mm_page_alloc: page=0x12dc61 pfn=0x12dc61 order=0 migratetype=1 gfp_flags=GFP_KERNEL
a-b 7  70 [000]  1397.840349: kmem:mm_page_free: page=0x12dc61 pfn=0x12dc61 order=0
:-1 -1/-1 [000]  1397.840350: kmem:mm_page_free: page=0x5 pfn=0x5 order=3
";
    let ftrace = "\
# tracer: nop
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
            make-4562    [001] d..2.  1397.840348: mm_page_alloc: page=00000000f3a2b1c0 pfn=0x12dc61 order=0 migratetype=1 gfp_flags=GFP_KERNEL
            make-4562    [001] d..2.  1397.840348: sched_switch: prev_comm=make
CPU:0 [LOST 37 EVENTS]
CPU:1 [LOST 3 EVENTS]
           a-b 7-70      [000] .....  1397.840349: mm_page_free: page=00000000f3a2b1c0 pfn=0x12dc61 order=0
          <idle>-0       [000] ..s1.  1397.840350: mm_page_free: page=00000000f3a2b1c0 pfn=0x5 order=3
";
    let trace_cmd = "\
cpus=2
CPU 1 is empty
            make-4562  [001]  1397.840348: mm_page_alloc:        page=0x12dc61 pfn=0x12dc61 order=0 migratetype=1 gfp_flags=GFP_KERNEL
CPU:0 [12 EVENTS DROPPED]
           a-b 7-70    [000]  1397.840349: mm_page_free:         page=0x12dc61 pfn=0x12dc61 order=0
          <idle>-0     [000]  1397.840350: mm_page_free:         page=0x5 pfn=0x5 order=3
";
    let [perf, ftrace, trace_cmd] = [perf, ftrace, trace_cmd].map(|text| import(text.as_bytes()).unwrap());
    assert_eq!(perf.events.len(), 3);
    assert_eq!([&perf, &ftrace, &trace_cmd].map(|trace| trace.meta.lost_events), [None, Some(40), Some(12)]);
    assert_eq!(ftrace.events, trace_cmd.events);
    assert_eq!(perf.events[..2], ftrace.events[..2]);
    assert_eq!((perf.events[2].pfn, perf.events[2].pid), (5, 0));
    assert_eq!(ftrace.comms.name(ftrace.events[1].comm), "a-b 7");
}
