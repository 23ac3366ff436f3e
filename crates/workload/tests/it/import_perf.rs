//! Imports: `perf.data` and the text of `perf script`, whole or not at all.

use framewright_workload::error::{Error, Place};
use framewright_workload::import;
use framewright_workload::trace::{Event, EventKind, Trace};
use proptest::prelude::*;

use crate::common::named;
use crate::perf_file::{
    ADDR, CALLCHAIN, CPU, ID, IDENTIFIER, IP, PERIOD, PerfFile, RAW, READ, STREAM_ID, TID, TIME,
};

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

#[test]
fn file_and_text_of_the_same_run_are_the_same() {
    let (file, text) = (import(&data()).unwrap(), import(TEXT_NS.as_bytes()).unwrap());
    // Each tool has its own way to say that it knows no name.
    let rename =
        |(event, name): (Event, String)| (event, if name.starts_with(':') { "<...>".into() } else { name });
    assert_eq!(named(&file), named(&text).into_iter().map(rename).collect::<Vec<_>>());
    let coarse = import(TEXT.as_bytes()).unwrap();
    assert!(
        coarse
            .events
            .iter()
            .zip(&file.events)
            .all(|(coarse, fine)| coarse.time_ns == fine.time_ns / 1000 * 1000)
    );

    let counts = EventKind::ALL.map(|kind| file.count(kind));
    assert_eq!(counts, [54, 26, 3, 39, 58]);
    assert!(file.comms.names().iter().any(|name| name == "a b [0] 1.5"), "{:?}", file.comms);
    assert_eq!((file.meta.source.as_str(), text.meta.source.as_str()), ("perf.data", "perf script"));
    assert_eq!((file.meta.kernel.as_str(), file.meta.cpus), ("6.18.44-fc-v595", 2));
    assert_eq!(file.meta.machine, "Intel(R) Xeon(R) Processor, 24105 MiB");
    assert!(file.meta.command.starts_with("/usr/bin/perf record -q -m 128"), "{}", file.meta.command);
    assert_eq!((file.meta.lost_events, text.meta.lost_events), (Some(0), None));
    // It is a trace that can be kept.
    assert_eq!(named(&Trace::read_bytes(&file.to_bytes().unwrap(), "t").unwrap()), named(&file));
}

#[test]
fn every_cut_of_a_file_is_refused_with_a_place_in_it() {
    let data = data();
    for length in 0..data.len() {
        let error = import(&data[..length]).unwrap_err();
        let Error::Refused { at: Place::Byte(at), .. } = error else { panic!("{error:?}") };
        assert!(at <= length as u64, "cut to {length} bytes: {error}");
    }
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
    assert_eq!(
        message(b"PAR1..."),
        "f: at byte 0: already a trace; give it to `framewright replay` as it is"
    );
    assert_eq!(
        message(b"PERFFILE........"),
        "f: at byte 0: a perf.data file of an outdated version; record with `perf record -a -e 'kmem:mm_page_*'`"
    );
    assert_eq!(message(b"PERF"), "f: at byte 4: the header ends here, 4 bytes too early; record it again");
    assert_eq!(
        message(b"# a comment\nwhat is this\n"),
        format!("f: line 2 (byte 12): not a line of perf script or ftrace: \"what is this\"; {FIX}")
    );
    assert_eq!(message(b"# a comment\n\n"), format!("f: holds no page-allocator events; {FIX}"));
    let other = "sh 1 [000] 1.000000: sched:sched_switch: prev_comm=sh\n";
    assert_eq!(message(other.as_bytes()), format!("f: holds no page-allocator events; {FIX}"));
    let mut pipe = data();
    pipe[8] = 16;
    assert_eq!(
        message(&pipe),
        "f: at byte 8: a stream, not a file, of perf record; record with `perf record -o FILE`, not into a pipe"
    );
    let missing = import::import("/nowhere/perf.data".as_ref()).unwrap_err().to_string();
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
        comm: 0,
        cpu: 3,
        order: 2,
        migratetype: Some(1),
        kind: EventKind::PageAlloc,
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
        a 1 [000] 1.0: kmem:mm_page_alloc: page=0x5 pfn=0x5 order=0 migratetype=0 gfp_flags=none\r\n\
        \tffffffff81234567 get_page_from_freelist+0x7 ([kernel.kallsyms])\n\
        \n\
        b 2 [001] 0.5: kmem:kfree: call_site=x ptr=(nil)\n\
        b 2 [001] 2.0: kmem:mm_page_alloc: page=(nil) pfn=0x0 order=9 migratetype=1 gfp_flags=GFP_TRANSHUGE\n";
    let trace = import(text.as_bytes()).unwrap();
    assert_eq!((trace.events.len(), trace.meta.failed_allocations), (1, 1));
}

#[test]
fn lines_that_say_wrong_or_nothing_are_refused() {
    let refused = |line: &str| {
        let text = format!("a 1 [000] 1.0: kmem:mm_page_free: page=0x5 pfn=0x5 order=0\n{line}\n");
        let (_, what) = message(text.as_bytes())
            .split_once("f: line 2 (byte 59): ")
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .unwrap();
        what.strip_suffix(&format!("; {FIX}")).unwrap().to_owned()
    };
    assert_eq!(
        refused("a 1 [000] 1.0: kmem:mm_page_free: page=0x5 pfn=0x5 order=11"),
        "mm_page_free of order 11, above 10"
    );
    assert_eq!(refused("a 1 [000] 1.0: kmem:mm_page_free: page=0x5 pfn=0x5"), "mm_page_free without order");
    assert_eq!(refused("a 1 [000] 1.0: kmem:mm_page_free: order=0"), "mm_page_free without pfn");
    assert_eq!(refused("a 1 [000] 1.0: kmem:mm_page_free: pfn=0xg order=0"), "pfn=0xg is no number");
    assert_eq!(
        refused("a 1 [000] 1.0: kmem:mm_page_free: pfn=0x10000000000000 order=0"),
        "mm_page_free of pfn 0x10000000000000, which is no frame number"
    );
    assert_eq!(
        refused("a 1 [000] 1.0: kmem:mm_page_alloc: pfn=1 order=0 migratetype=0 gfp_flags=new"),
        "unknown allocation flag \"new\""
    );
    assert_eq!(refused("a 1 [000] 1: kmem:mm_page_free: pfn=1 order=0"), "the time \"1\" is not one");
    assert_eq!(
        refused("a 1 [000] 1.0000000001: kmem:mm_page_free: pfn=1 order=0"),
        "the time \"1.0000000001\" is not one"
    );
    assert_eq!(
        refused("a 1 1.0: kmem:mm_page_free: pfn=1 order=0"),
        "not a line of perf script or ftrace: \"a 1 1.0: kmem:mm_page_free: pfn=1 order=0\""
    );
    assert_eq!(
        refused("a b [000] 1.0: kmem:mm_page_free: pfn=1 order=0"),
        "no thread before the CPU: \"a b\""
    );
    assert_eq!(
        refused("a 1 [70000] 1.0: kmem:mm_page_free: pfn=1 order=0"),
        "not a line of perf script or ftrace: \"a 1 [70000] 1.0: kmem:mm_page_free: pfn=1 order=0\""
    );
}

/// A file of two events whose samples have the usual fields.
fn two_events(big_endian: bool) -> PerfFile {
    let usual = IDENTIFIER | IP | TID | TIME | CPU | PERIOD | RAW;
    let events = vec![(usual, 0, vec![11, 12]), (IDENTIFIER | TID | TIME | CPU, 0, vec![21])];
    let mut file = PerfFile { big_endian, events, records: Vec::new() };
    let sample = |file: &PerfFile, time: u64, pid: u32, cpu: u32, raw: Vec<u8>| {
        let body = [
            file.n64(12),
            file.n64(0xffff),
            file.pair(pid, pid),
            file.n64(time),
            file.pair(cpu, 0),
            file.n64(1),
            raw,
        ];
        (9, 0, body.concat())
    };
    // Of the second event, so that its last fields say when it was.
    let tail = |file: &PerfFile, time: u64| {
        [file.pair(5, 5), file.n64(time), file.pair(0, 0), file.n64(21)].concat()
    };
    let comm = |file: &PerfFile, time: u64, pid: u32, name: &[u8; 8]| {
        (3, 0, [file.pair(pid, pid), name.to_vec(), tail(file, time)].concat())
    };
    let fork = |file: &PerfFile, time: u64| {
        (7, 0, [file.pair(50, 5), file.pair(50, 5), file.n64(time), tail(file, time)].concat())
    };
    file.records = vec![
        comm(&file, 0, 5, b"old\0\0\0\0\0"),
        // Not in order of time: each CPU's buffer is written out by itself.
        sample(&file, 300, 5, 1, file.raw_free(64, 3)),
        comm(&file, 200, 5, b"new\0\0\0\0\0"),
        sample(&file, 100, 5, 0, file.raw_alloc(64, 3, 1, 0xcc0)),
        fork(&file, 250),
        sample(&file, 260, 50, 0, file.raw_alloc(u64::MAX, 9, 1, 0)),
        sample(&file, 270, 50, 0, file.raw_alloc(65, 0, 0, 0)),
        (2, 0, [file.n64(12), file.n64(7), tail(&file, 301)].concat()),
        (13, 0, [file.n64(9), tail(&file, 302)].concat()),
        // Dropped by a filter, so not lost.
        (13, 1 << 15, [file.n64(1000), tail(&file, 302)].concat()),
        // Of no interest: a round's end, a mapping.
        (68, 0, Vec::new()),
        (10, 0, vec![0xee; 40]),
    ];
    file
}

#[test]
fn both_byte_orders() {
    for big_endian in [false, true] {
        let trace = import(&two_events(big_endian).bytes()).unwrap();
        let names: Vec<&str> = trace.events.iter().map(|event| trace.comm(event)).collect();
        assert_eq!(names, ["old", "new", "new"]);
        let [alloc, child, free] = trace.events[..] else { panic!("{trace:?}") };
        assert_eq!((alloc.time_ns, alloc.cpu, alloc.pid, alloc.order, alloc.gfp), (100, 0, 5, 3, 0xcc0));
        assert_eq!((child.time_ns, child.pid, child.pfn), (270, 50, 65));
        assert_eq!((free.time_ns, free.cpu, free.kind, free.pfn), (300, 1, EventKind::PageFree, 64));
        assert_eq!((trace.meta.lost_events, trace.meta.failed_allocations), (Some(9), 1));
        assert_eq!(trace.meta.kernel, "6.18.0");
    }
}

#[test]
fn threads_that_have_ended_are_the_kernel_s_and_impossible_ones_are_refused() {
    let with_thread = |thread: u32| {
        let usual = TID | TIME | CPU | RAW;
        let mut file = PerfFile { big_endian: false, events: vec![(usual, 0, vec![])], records: Vec::new() };
        let body = [file.pair(thread, thread), file.n64(77), file.pair(3, 0), file.raw_free(99, 1)];
        file.records = vec![(9, 0, body.concat())];
        file.bytes()
    };
    assert_eq!(import(&with_thread(u32::MAX)).unwrap().events[0].pid, 0);
    assert_eq!(
        message(&with_thread(1 << 31)),
        "f: at byte 192: a thread of number 2147483648, which no kernel gives; record it again"
    );
    let event = line(":-1 -1/-1 [003] 5.25: kmem:mm_page_free: page=0x5 pfn=0x5 order=0");
    assert_eq!((event.pid, event.cpu), (0, 3));
}

#[test]
fn every_cut_of_a_made_file_is_refused() {
    let bytes = two_events(true).bytes();
    // The last eight bytes are a string's padding.
    for length in 0..bytes.len() {
        assert!(import(&bytes[..length]).is_err(), "cut to {length} of {} bytes", bytes.len());
    }
}

#[test]
fn all_fields_before_the_tracepoint_s_own_are_passed_over() {
    let all = IP | TID | TIME | ADDR | ID | STREAM_ID | CPU | PERIOD | READ | CALLCHAIN | RAW;
    let group = 1 << 3 | 1 << 0 | 1 << 2 | 1 << 4;
    let single = 1 << 1 | 1 << 4;
    for (read_format, reading) in
        [(single, vec![7, 8, 9]), (group, vec![2, 70, 7, 8, 9, 7, 8, 9]), (0, vec![1])]
    {
        let mut file =
            PerfFile { big_endian: false, events: vec![(all, read_format, vec![])], records: Vec::new() };
        let reading: Vec<u8> = reading.iter().flat_map(|&number| file.n64(number)).collect();
        let body = [
            file.n64(0xaaaa),
            file.pair(4, 6),
            file.n64(77),
            file.n64(0xbbbb),
            file.n64(1),
            file.n64(2),
            file.pair(3, 0),
            file.n64(1),
            reading,
            file.n64(2),
            file.n64(0x11),
            file.n64(0x22),
            file.raw_free(99, 1),
        ];
        file.records = vec![(9, 0, body.concat())];
        let trace = import(&file.bytes()).unwrap();
        let [event] = trace.events[..] else { panic!("{trace:?}") };
        assert_eq!((event.pid, event.time_ns, event.cpu, event.pfn, event.order), (6, 77, 3, 99, 1));
        assert_eq!(trace.comm(&event), "<...>");
    }
}

#[test]
fn files_that_cannot_be_taken_whole_are_refused() {
    let data_at = |file: &PerfFile| 104 + 8 * 3 + 80 * file.events.len();
    let with = |kind: u32, body: &[u8]| {
        let mut file = two_events(false);
        file.records.insert(0, (kind, 0, body.to_vec()));
        (data_at(&file), message(&file.bytes()))
    };
    for kind in [81, 83] {
        let (at, message) = with(kind, &[0; 16]);
        assert_eq!(
            message,
            format!(
                "f: at byte {at}: compressed records; record without -z, or import the text of `perf script`"
            )
        );
    }
    let (at, message) = with(9, &[0; 16]);
    assert_eq!(message, format!("f: at byte {}: a sample of an unknown event 0; record it again", at + 8));
    let (at, message) = with(2, &[0; 8]);
    assert_eq!(
        message,
        format!("f: at byte {}: a record ends here, 8 bytes too early; record it again", at + 16)
    );

    let mut file = two_events(false);
    file.records.clear();
    assert_eq!(
        self::message(&file.bytes()),
        "f: at byte 40: no records: perf record did not finish the file; \
         let `perf record` end by itself or interrupt it, but do not kill it"
    );
    let mut file = two_events(false);
    file.events[0].0 &= !TIME;
    let first = data_at(&file) + file.records[0].2.len() + 8;
    assert_eq!(
        self::message(&file.bytes()),
        format!("f: at byte {}: samples without thread, time or CPU; record it again", first + 8)
    );
    let mut file = two_events(false);
    file.events[1].0 &= !IDENTIFIER;
    assert_eq!(
        self::message(&file.bytes()),
        format!(
            "f: at byte {}: samples that differ in layout and do not say which event they are of; record it again",
            first + 8
        )
    );
    let mut bytes = two_events(false).bytes();
    bytes[16] = 63;
    assert_eq!(
        self::message(&bytes),
        "f: at byte 128: 160 bytes of attributes of 63 bytes each; record it again"
    );
    let mut bytes = two_events(false).bytes();
    bytes[48..56].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(
        self::message(&bytes),
        format!(
            "f: at byte 40: the records of 18446744073709551615 bytes at byte 288 would end after the {} bytes there are; record it again",
            bytes.len()
        )
    );
}

proptest! {
    #[test]
    fn damaged_files_are_refused_or_harmless(hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), big_endian: bool) {
        let mut bytes = two_events(big_endian).bytes();
        // The formats' long texts are left out, so that most hits are on something that counts.
        let end = 700;
        for (at, value) in hits {
            let at = at.index(end);
            bytes[at] = value;
        }
        if let Err(error) = import(&bytes) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }

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
