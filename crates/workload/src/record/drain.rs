//! Emptying the ring buffers while the command runs, a thread for each CPU.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ring;
use super::tracefs::Instance;
use crate::error::Error;
use crate::kmem::format::{ByteOrder, Field, Format};
use crate::kmem::report::{Report, What, name};
use crate::kmem::{self, Decoded};
use crate::trace::EventKind;

/// How long a reader waits for its buffer to fill before it looks for the end of the recording, in
/// nanoseconds. The kernel wakes it earlier if the buffer is half full.
const WAIT_NS: i64 = 50_000_000;

/// Where processes begin.
const FORK: &str = "sched/sched_process_fork";
/// Where threads get their names, by `exec` and otherwise.
const RENAME: &str = "task/task_rename";

/// All events that a recording enables, `GROUP/NAME`.
pub(super) fn events() -> impl Iterator<Item = String> {
    let kmem = EventKind::ALL.into_iter().map(|kind| format!("kmem/{}", kind.name()));
    kmem.chain([FORK.to_owned(), RENAME.to_owned()])
}

/// How to understand the running kernel's events.
#[derive(Debug)]
pub(super) struct Decoder {
    pages: ring::Layout,
    pid: Field,
    /// By the number that marks events of the kind.
    layouts: HashMap<u16, Layout>,
}

#[derive(Clone, Copy, Debug)]
enum Layout {
    Page(kmem::Layout),
    Fork { child: Field },
    Rename { pid: Field, new: Field },
}

impl Decoder {
    /// Reads the layouts from an instance's files.
    pub(super) fn new(instance: &Instance) -> Result<Self, Error> {
        let pages = instance.page_layout()?;
        let mut formats = Vec::new();
        for event in events() {
            formats.push(instance.format(&event)?);
        }
        Self::from_formats(pages, &formats).map_err(|what| Error::CannotRecord {
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
            } else if FORK.ends_with(&format.name) {
                Layout::Fork { child: format.need("child_pid")? }
            } else {
                Layout::Rename { pid: format.need("pid")?, new: format.need("newcomm")? }
            };
            layouts.insert(format.id, layout);
            // The fields before the event's own are the same for all.
            pid = Some(format.need("common_pid")?);
        }
        Ok(Self { pages, pid: pid.ok_or("no events")?, layouts })
    }

    /// Appends what a page's events report; returns how many events were lost before it, at least.
    pub(super) fn page(&self, cpu: u16, page: &[u8], reports: &mut Vec<Report>) -> Result<u64, String> {
        let mut failure = None;
        let lost = self.pages.events(page, |time_ns, event| match self.event(event) {
            Ok(Some((pid, what))) => {
                // A clock that is corrected may step back by a little; a CPU's events keep their order.
                let time_ns = reports.last().map_or(time_ns, |last| time_ns.max(last.time_ns));
                reports.push(Report { time_ns, cpu, pid, what });
            }
            Ok(None) => {}
            Err(what) => failure = Some(what),
        })?;
        failure.map_or(Ok(lost), Err)
    }

    /// Thread and content of an event; `None` if it is not one of ours.
    fn event(&self, event: &[u8]) -> Result<Option<(u32, What)>, String> {
        let bytes = ByteOrder::NATIVE;
        let id = event.first_chunk().map(|&two| u16::from_ne_bytes(two));
        let Some(layout) = id.and_then(|id| self.layouts.get(&id)) else { return Ok(None) };
        let number = |field: Field| {
            let number = field.integer(event, bytes).and_then(|number| u32::try_from(number).ok());
            number.ok_or_else(|| format!("an event without a thread in its {} bytes", event.len()))
        };
        let what = match *layout {
            Layout::Page(layout) => match layout.decode(event, bytes)? {
                Decoded::Page(page) => What::Page(page),
                Decoded::NoPage => What::NoPage,
            },
            Layout::Fork { child } => What::Fork { child: number(child)? },
            Layout::Rename { pid, new } => {
                What::Rename { pid: number(pid)?, name: name(new.text(event).unwrap_or_default()) }
            }
        };
        Ok(Some((number(self.pid)?, what)))
    }
}

/// What a CPU reported until `stop`, and how many events its pages say are missing, at least.
pub(super) fn drain(
    cpu: u16,
    mut pages: File,
    decoder: &Decoder,
    stop: &AtomicBool,
) -> Result<(Vec<Report>, u64), Error> {
    let mut reports = Vec::new();
    let mut lost = 0;
    let mut page = vec![0; decoder.pages.page_bytes()];
    loop {
        // Read before the last look at the buffer: nothing comes after it was set.
        let last = stop.load(Ordering::Acquire);
        loop {
            match pages.read(&mut page) {
                Ok(0) => break,
                Ok(length) => {
                    lost += decoder.page(cpu, &page[..length], &mut reports).map_err(|what| {
                        Error::CannotRecord {
                            what: format!("the buffer of CPU {cpu} cannot be decoded: {what}"),
                            fix: "report it with the output of uname -a",
                        }
                    })?;
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => break,
                Err(cause) => return Err(Error::io("read", Path::new("trace_pipe_raw"), cause)),
            }
        }
        if last {
            return Ok((reports, lost));
        }
        let mut wait = [PollFd::new(&pages, PollFlags::IN)];
        let time = Timespec { tv_sec: 0, tv_nsec: WAIT_NS };
        // Woken early or not, the buffer is looked at again.
        let _ = poll(&mut wait, Some(&time));
    }
}
