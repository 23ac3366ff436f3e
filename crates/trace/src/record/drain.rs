//! Emptying the ring buffers while the command runs, a thread for each CPU; decoding what was in them afterwards.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use super::ring;
use super::sampling::{self, Sampler};
use super::spool::{Budget, Pages, Spool};
use crate::error::Error;
use crate::kmem::format::{Field, Format};
use crate::kmem::report::{Report, What, name};
use crate::kmem::{self, Decoded};
use crate::trace::EventKind;

/// Time that a reader waits for its buffer to fill before it looks for the end of the recording, in nanoseconds. The
/// kernel wakes it earlier if the buffer is half full.
const WAIT_NS: i64 = 50_000_000;

/// Time until a reader looks again for the buffer of a CPU that is not online: machines may have slots for hundreds.
const ABSENT: Duration = Duration::from_millis(250);

/// Tracepoint of a new process.
const FORK: &str = "sched/sched_process_fork";
/// Tracepoint of a new name of a thread, by `exec` and otherwise.
const RENAME: &str = "task/task_rename";

/// Events that every recording enables, `GROUP/NAME`.
pub(super) fn always() -> impl Iterator<Item = String> {
    let kmem = EventKind::ALL.into_iter().map(|kind| format!("kmem/{}", kind.name()));
    kmem.chain([FORK.to_owned(), RENAME.to_owned()])
}

/// Layouts of the running kernel's events.
pub(super) struct Decoder {
    pages: ring::Layout,
    pid: Field,
    /// By the number that marks events of the kind.
    layouts: HashMap<u16, Layout>,
}

#[derive(Clone, Debug)]
enum Layout {
    Page(kmem::Layout),
    Fork {
        child: Field,
    },
    Rename {
        pid: Field,
        new: Field,
    },
    /// Kept in words.
    Other(Format),
}

impl Decoder {
    /// Parses the texts that [`Instance::layouts`](super::tracefs::Instance::layouts) gives.
    pub(super) fn parse(texts: &[String]) -> Result<Self, Error> {
        let parsed = || {
            let [page, event, formats @ ..] = texts else { return Err("no layouts".to_owned()) };
            let formats: Result<Vec<_>, _> = formats.iter().map(|text| Format::parse(text)).collect();
            Self::from_formats(ring::Layout::parse(page, event)?, &formats?)
        };
        parsed().map_err(|what| Error::CannotRecord {
            what: format!("this kernel's events are laid out in an unknown way: {what}"),
            fix: "report it with the output of uname -a",
        })
    }

    pub(super) fn from_formats(pages: ring::Layout, formats: &[Format]) -> Result<Self, String> {
        let mut layouts = HashMap::new();
        let mut pid = None;
        for format in formats {
            let layout = if let Some(layout) = kmem::Layout::new(format)? {
                Layout::Page(layout)
            } else if format.name == "sched_process_fork" {
                Layout::Fork { child: format.need("child_pid")? }
            } else if format.name == "task_rename" {
                // Linux v6.14 to v6.18 do not say whose name it is: nearly always the thread's own.
                let pid = format.find("pid").map_or_else(|| format.need("common_pid"), Ok)?;
                Layout::Rename { pid, new: format.need("newcomm")? }
            } else {
                Layout::Other(format.clone())
            };
            layouts.insert(format.id, layout);
            // The fields before the event's own are the same for all.
            pid = Some(format.need("common_pid")?);
        }
        Ok(Self { pages, pid: pid.ok_or("no events")?, layouts })
    }

    /// Name of the event of that number.
    pub(super) fn name(&self, id: u16) -> &str {
        match self.layouts.get(&id) {
            Some(Layout::Other(format)) => &format.name,
            _ => "",
        }
    }

    pub(super) const fn page_bytes(&self) -> usize {
        self.pages.page_bytes()
    }

    /// Appends what a page's events report; returns how many events were lost before it, at least.
    pub(super) fn page(
        &self,
        cpu: u16,
        page: &[u8],
        reports: &mut VecDeque<Report>,
        earlier: &mut u64,
    ) -> Result<u64, String> {
        let mut failure = None;
        let lost = self.pages.events(page, |time_ns, event| match self.event(event) {
            Ok(Some((pid, what))) => {
                // A clock that is corrected may step back by a little; a CPU's events keep their order.
                *earlier = time_ns.max(*earlier);
                reports.push_back(Report { time_ns: *earlier, cpu, pid, what });
            }
            Ok(None) => {}
            Err(what) => failure = Some(what),
        })?;
        failure.map_or(Ok(lost), Err)
    }

    /// Thread and content of an event; `None` if it is not one of ours.
    fn event(&self, event: &[u8]) -> Result<Option<(u32, What)>, String> {
        let id = event.first_chunk().map(|&two| u16::from_ne_bytes(two));
        let Some((id, layout)) = id.and_then(|id| Some((id, self.layouts.get(&id)?))) else {
            return Ok(None);
        };
        let number = |field: Field| {
            let number = field.integer(event).and_then(|number| u32::try_from(number).ok());
            number.ok_or_else(|| format!("an event without a thread in its {} bytes", event.len()))
        };
        let what = match layout {
            Layout::Page(layout) => match layout.decode(event)? {
                Decoded::Page(page) => What::Page(page),
                Decoded::NoPage => What::NoPage,
                Decoded::NoBlock => return Ok(None),
            },
            &Layout::Fork { child } => What::Fork { child: number(child)? },
            &Layout::Rename { pid, new } => {
                What::Rename { pid: number(pid)?, name: name(new.text(event).unwrap_or_default()) }
            }
            Layout::Other(format) => What::Other { id, text: format.describe(event).into() },
        };
        Ok(Some((number(self.pid)?, what)))
    }
}

/// Result of a reader.
pub(super) struct Drained {
    pub(super) cpu: u16,
    pub(super) spool: Spool,
    /// Samples of the CPU.
    pub(super) samples: Option<Spool>,
    /// CPU time that it took.
    pub(super) busy: Duration,
}

/// The ring buffer of a CPU, and where what it reports is kept.
pub(super) struct Buffer<P = File> {
    pub(super) cpu: u16,
    pub(super) pages: P,
    pub(super) page_bytes: usize,
    pub(super) spool: Spool,
    /// The CPU's sampler and where its samples are kept.
    pub(super) sampling: Option<(Sampler, Spool)>,
}

/// Keeps what a CPU reports until `stop`. Calls `full` when the budget is spent or the disk is full; what the buffer
/// holds by then is still kept.
pub(super) fn drain(
    buffer: Buffer<impl Read + AsFd>,
    budget: &Budget,
    stop: &AtomicBool,
    full: impl Fn() -> Result<(), Error>,
) -> Result<Drained, Error> {
    let Buffer { cpu, mut pages, page_bytes, mut spool, mut sampling } = buffer;
    let failed = |action, path, cause| Error::io(action, Path::new(path), cause);
    let mut page = vec![0; page_bytes];
    let mut records = Vec::new();
    loop {
        // Read before the last look at the buffer: nothing comes after it was set.
        let last = stop.load(Ordering::Acquire);
        loop {
            match pages.read(&mut page) {
                Ok(0) => break,
                Ok(length) => {
                    let has_room = spool
                        .push(&page[..length])
                        .map_err(|cause| failed("write", "the recording's temporary file", cause))?;
                    if !has_room {
                        budget.end_at_full_disk();
                    }
                    if !budget.take(length as u64) {
                        full()?;
                    }
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => break,
                // A CPU has no buffer before it is online.
                Err(cause) if cause.raw_os_error() == Some(libc::ENODEV) => break,
                Err(cause) => return Err(failed("read", "trace_pipe_raw", cause)),
            }
        }
        if let Some((sampler, spool)) = &mut sampling {
            sampler.take(&mut records);
            if !records.is_empty() && budget.take(records.len() as u64) {
                spool
                    .push(&records)
                    .map_err(|cause| failed("write", "the recording's temporary file", cause))?;
            }
        }
        // What has come is kept, if this process is killed now.
        for spool in [Some(&mut spool), sampling.as_mut().map(|(_, spool)| spool)].into_iter().flatten() {
            spool.flush().map_err(|cause| failed("write", "the recording's temporary file", cause))?;
        }
        if last {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            let busy = Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32);
            return Ok(Drained { cpu, spool, samples: sampling.map(|(_, spool)| spool), busy });
        }
        let mut wait = [PollFd::new(&pages, PollFlags::IN)];
        let time = Timespec { tv_sec: 0, tv_nsec: WAIT_NS };
        // Woken early or not, the buffer is looked at again.
        let _ = poll(&mut wait, Some(&time));
        // There is nothing to wait for.
        if wait[0].revents().contains(PollFlags::ERR) {
            thread::sleep(ABSENT);
        }
    }
}

/// The reports of one CPU, decoded as they are asked for. Ends at the first fault, which it keeps.
pub(super) struct Reports<'a> {
    cpu: u16,
    pages: Pages,
    /// None for samples.
    decoder: Option<&'a Decoder>,
    /// The recorder's process, whose samples are left out.
    recorder: u32,
    page: Vec<u8>,
    decoded: VecDeque<Report>,
    earlier: u64,
    progress: &'a Progress,
}

/// Counts and faults from the decoding of reports.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Events that the pages say are missing, at least.
    pub(super) missed: core::cell::Cell<u64>,
    /// Samples that the kernel says are missing.
    pub(super) lost_samples: core::cell::Cell<u64>,
    pub(super) fault: core::cell::RefCell<Option<Error>>,
}

impl<'a> Reports<'a> {
    pub(super) fn new(
        cpu: u16,
        pages: Pages,
        decoder: Option<&'a Decoder>,
        recorder: u32,
        progress: &'a Progress,
    ) -> Self {
        Self {
            cpu,
            pages,
            decoder,
            recorder,
            page: Vec::new(),
            decoded: VecDeque::new(),
            earlier: 0,
            progress,
        }
    }

    /// Decodes the next page; whether there was one.
    fn page(&mut self) -> Result<bool, Error> {
        let read = self.pages.next(&mut self.page);
        if !read.map_err(|cause| Error::io("read", Path::new("the recording's temporary file"), cause))? {
            return Ok(false);
        }
        let Some(decoder) = self.decoder else {
            let lost = sampling::decode(self.cpu, &self.page, self.recorder, &mut self.decoded);
            self.progress.lost_samples.set(self.progress.lost_samples.get() + lost);
            return Ok(true);
        };
        let missed = decoder.page(self.cpu, &self.page, &mut self.decoded, &mut self.earlier);
        let missed = missed.map_err(|what| Error::CannotRecord {
            what: format!("the buffer of CPU {} cannot be decoded: {what}", self.cpu),
            fix: "report it with the output of uname -a",
        })?;
        self.progress.missed.set(self.progress.missed.get() + missed);
        Ok(true)
    }
}

impl Iterator for Reports<'_> {
    type Item = Report;

    fn next(&mut self) -> Option<Report> {
        while self.decoded.is_empty() {
            match self.page() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.progress.fault.borrow_mut().get_or_insert(error);
                    return None;
                }
            }
        }
        self.decoded.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd};

    use super::*;
    use crate::kmem::report::name;

    const RENAME: &str = include_str!("../../tests/data/format-6.18/task_rename");

    /// As Linux v6.14 to v6.18 report it.
    #[test]
    fn a_new_name_without_a_thread_is_of_the_thread_that_reports_it() {
        let without: String = RENAME
            .lines()
            .filter(|line| !line.contains("pid_t pid;"))
            .map(|line| line.to_owned() + "\n")
            .collect();
        for (format, pid) in [(RENAME, 8), (&without, 7)] {
            let format = Format::parse(format).unwrap();
            let pages = include_str!("../../tests/data/format-6.18/header_page");
            let pages = ring::Layout::parse(pages, include_str!("../../tests/data/format-6.18/header_event"))
                .unwrap();
            let decoder = Decoder::from_formats(pages, core::slice::from_ref(&format)).unwrap();
            let mut event = [0; 48];
            event[..2].copy_from_slice(&format.id.to_ne_bytes());
            event[4..8].copy_from_slice(&7_u32.to_ne_bytes());
            event[8..12].copy_from_slice(&8_u32.to_ne_bytes());
            event[28..31].copy_from_slice(b"cc1");
            let what = What::Rename { pid, name: name(b"cc1") };
            assert_eq!(decoder.event(&event).unwrap(), Some((7, what)));
        }
    }

    /// The buffer of a CPU that is online from the second look on.
    struct Late<'a> {
        looks: u32,
        stop: &'a AtomicBool,
        file: File,
    }

    impl Read for Late<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.looks += 1;
            match self.looks {
                1 => Err(io::Error::from_raw_os_error(libc::ENODEV)),
                2 => {
                    self.stop.store(true, Ordering::Release);
                    into[..4].copy_from_slice(b"page");
                    Ok(4)
                }
                _ => Err(io::ErrorKind::WouldBlock.into()),
            }
        }
    }

    impl AsFd for Late<'_> {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.file.as_fd()
        }
    }

    #[test]
    fn a_cpu_that_was_never_online_has_no_buffer_yet() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let pages = Late { looks: 0, stop: &stop, file: File::open("/dev/null").unwrap() };
        let spool = Spool::create(&folder.path().join("events")).unwrap();
        let buffer = Buffer { cpu: 3, pages, page_bytes: 4096, spool, sampling: None };
        let drained = drain(buffer, &Budget::new(1 << 20), &stop, || Ok(())).unwrap();
        assert_eq!(drained.spool.bytes(), 4 + 4);
    }
}
