//! Samples of each CPU while a recording runs: the thread, and its stack of functions of the kernel.
//!
//! The kernel's clock event (`PERF_COUNT_SW_CPU_CLOCK`) needs no hardware counters, so that it works in virtual
//! machines as well. Idle CPUs are not sampled.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{FromRawFd as _, OwnedFd};

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::kernel_time::NO_FUNCTION;
use crate::kmem::report::{Report, What};

/// CPU time between two samples of a CPU, in nanoseconds: 999 in a second, so that no timer of 1000 Hz is in step.
pub(super) const PERIOD_NS: u64 = 1_001_001;
/// Bytes of the kernel's buffer of samples for each CPU, without its head: a second of them, in pages of any size.
const BUFFER: usize = 512 << 10;
/// Offsets in the head of the place up to which the kernel has written, and of the place up to which it was read.
const WRITTEN: usize = 1024;
const READ: usize = 1032;

/// `struct perf_event_attr` up to version 5, in words of 64 bits.
const WORDS: usize = 14;
const SIZE: u64 = 8 * WORDS as u64;
/// `PERF_TYPE_SOFTWARE`; its `PERF_COUNT_SW_CPU_CLOCK` is 0.
const SOFTWARE: u64 = 1;
/// `PERF_SAMPLE_TID`, `_TIME` and `_CALLCHAIN`: a sample is these three, in this order.
const SAMPLE: u64 = 1 << 1 | 1 << 2 | 1 << 5;
/// `exclude_idle`, `watermark`, `exclude_callchain_user`, `use_clockid`.
const FLAGS: u64 = 1 << 7 | 1 << 14 | 1 << 22 | 1 << 25;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: u64 = 1 << 3;
/// `PERF_RECORD_SAMPLE`, `PERF_RECORD_LOST`.
const IS_SAMPLE: u32 = 9;
const IS_LOST: u32 = 2;
/// Call chains have marks between the kernel's part and the user's: numbers from this one on.
const MARKS: u64 = (-4095_i64).cast_unsigned();

/// The samples of one CPU as they come.
pub(super) struct Sampler {
    _event: OwnedFd,
    /// `head` and `BUFFER` bytes, mapped until this is dropped.
    buffer: *mut c_void,
    /// Bytes of the head, which has the places in the buffer: a page.
    head: usize,
}

#[expect(unsafe_code, reason = "the buffer belongs to this value, and any thread may read it")]
// SAFETY: the mapping has no other user in this process, and nothing in it belongs to a thread.
unsafe impl Send for Sampler {}

impl Sampler {
    /// Begins to sample a CPU each `period_ns` of its time.
    ///
    /// # Errors
    /// The kernel has no such events, or does not allow them.
    #[expect(unsafe_code, reason = "perf_event_open has no safe wrapper")]
    pub(super) fn start(cpu: u16, period_ns: u64) -> io::Result<Self> {
        const CLOCK_MONOTONIC: u64 = 1;
        let mut attributes = [0_u64; WORDS];
        attributes[0] = SOFTWARE | SIZE << 32;
        attributes[2] = period_ns;
        attributes[3] = SAMPLE;
        attributes[5] = FLAGS;
        attributes[6] = BUFFER as u64 / 4;
        attributes[11] = CLOCK_MONOTONIC << 32;
        let (every_process, no_group) = (-1, -1);
        // SAFETY: the attributes are as long as they say, and the kernel only reads them.
        let event = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                attributes.as_ptr(),
                every_process,
                libc::c_int::from(cpu),
                no_group,
                CLOSE_ON_EXEC,
            )
        };
        let event =
            i32::try_from(event).ok().filter(|&event| event >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the kernel has just opened it for this process.
        let event = unsafe { OwnedFd::from_raw_fd(event) };
        Self::mapped(event, rustix::param::page_size())
    }

    #[expect(unsafe_code, reason = "maps the buffer")]
    fn mapped(event: OwnedFd, head: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place that the kernel chooses.
        let buffer =
            unsafe { mmap(core::ptr::null_mut(), head + BUFFER, protection, MapFlags::SHARED, &event, 0) }?;
        Ok(Self { _event: event, buffer, head })
    }

    /// Takes out what has come, whole records.
    #[expect(unsafe_code, reason = "the kernel writes to the buffer as well")]
    pub(super) fn take(&mut self, into: &mut Vec<u8>) {
        into.clear();
        // SAFETY: both places are within the head, aligned, and changed as single words by both sides.
        let [written, read] =
            [WRITTEN, READ].map(|at| unsafe { &*self.buffer.cast::<u8>().add(at).cast::<AtomicU64>() });
        let (end, begin) = (written.load(Ordering::Acquire), read.load(Ordering::Relaxed));
        let length = (end - begin).min(BUFFER as u64) as usize;
        let start = (begin % BUFFER as u64) as usize;
        let first = length.min(BUFFER - start);
        for (from, length) in [(start, first), (0, length - first)] {
            // SAFETY: within the buffer; the kernel writes no further than to what was read, which is said below.
            let bytes = unsafe {
                core::slice::from_raw_parts(self.buffer.cast::<u8>().add(self.head + from), length)
            };
            into.extend_from_slice(bytes);
        }
        fence(Ordering::SeqCst);
        read.store(end, Ordering::Release);
    }
}

impl Drop for Sampler {
    #[expect(unsafe_code, reason = "ends the mapping")]
    fn drop(&mut self) {
        // SAFETY: mapped by `start`, and used by nothing after this.
        let _ = unsafe { munmap(self.buffer, self.head + BUFFER) };
    }
}

/// Samplers of these CPUs, as far as they are online; or why there are none.
pub(super) fn start(cpus: &[u16], period_ns: u64) -> Result<Vec<Option<Sampler>>, String> {
    let absent = |cause: &io::Error| cause.raw_os_error() == Some(libc::ENODEV);
    let mut samplers = Vec::new();
    for &cpu in cpus {
        match Sampler::start(cpu, period_ns) {
            Ok(sampler) => samplers.push(Some(sampler)),
            Err(cause) if absent(&cause) => samplers.push(None),
            Err(cause) => return Err(format!("perf_event_open: {cause}")),
        }
    }
    Ok(samplers)
}

/// Appends the samples among `records` to `reports`, without those of the process `recorder`; returns the number that
/// the kernel had no room for.
pub(super) fn decode(cpu: u16, records: &[u8], recorder: u32, reports: &mut impl Extend<Report>) -> u64 {
    let mut lost = 0;
    let mut rest = records;
    while let Some((head, _)) = rest.split_first_chunk::<8>() {
        let word = u64::from_ne_bytes(*head);
        let (kind, length) = (word as u32, (word >> 48) as usize);
        let Some(body) = rest.get(8..length.max(8)) else { break };
        let words: Vec<u64> = body
            .chunks_exact(8)
            .map(|eight| u64::from_ne_bytes(eight.try_into().unwrap_or_default()))
            .collect();
        match (kind, &words[..]) {
            (IS_SAMPLE, &[ids, time_ns, length, ref chain @ ..]) if ids as u32 != recorder => {
                let chain = &chain[..chain.len().min(length as usize)];
                let stack = chain.iter().copied().filter(|&address| address < MARKS).collect();
                let pid = (ids >> 32) as u32;
                reports.extend([Report { time_ns, cpu, pid, what: What::Sample(stack) }]);
            }
            (IS_LOST, &[_, count, ..]) => lost += count,
            _ => {}
        }
        rest = &rest[8 + body.len()..];
    }
    lost
}

/// The function in a line of `/proc/kallsyms`, and its address, unless the kernel hides that.
fn function(line: &str) -> Option<(u64, String)> {
    let mut words = line.split_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok().filter(|&address| address > 0)?;
    let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
    is_code.then(|| Some((address, words.next()?.to_owned())))?
}

/// Whether a text as of `/proc/kallsyms` says where any function is.
fn has_functions(kallsyms: impl BufRead) -> bool {
    kallsyms.lines().map_while(Result::ok).any(|line| function(&line).is_some())
}

/// Fails where the kernel hides its functions: no sample would say what it was doing.
pub(super) fn functions_are_shown() -> Result<(), String> {
    let file = File::open("/proc/kallsyms").map(BufReader::new);
    let shown = file.map_err(|cause| format!("/proc/kallsyms: {cause}")).map(has_functions)?;
    let hidden = "/proc/kallsyms hides where functions are: set kernel.kptr_restrict to 0 or 1";
    shown.then_some(()).ok_or_else(|| hidden.to_owned())
}

/// The kernel's functions by address.
#[derive(Debug, Default)]
pub(super) struct Symbols(Vec<(u64, String)>);

impl Symbols {
    /// Those of the running kernel; none where it does not say.
    pub(super) fn of_kernel() -> Self {
        let Ok(file) = File::open("/proc/kallsyms") else { return Self::default() };
        Self::parse(&io::read_to_string(file).unwrap_or_default())
    }

    fn parse(kallsyms: &str) -> Self {
        let mut functions: Vec<_> = kallsyms.lines().filter_map(function).collect();
        functions.sort();
        functions.dedup_by_key(|(address, _)| *address);
        Self(functions)
    }

    /// The function at an address, or [`NO_FUNCTION`].
    pub(super) fn name(&self, address: u64) -> &str {
        let after = self.0.partition_point(|&(start, _)| start <= address);
        after.checked_sub(1).map_or(NO_FUNCTION, |n| &self.0[n].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_decoded_and_a_cut_one_is_left_out() {
        let record = |kind: u64, words: &[u64]| {
            let head = kind | (8 + 8 * words.len() as u64) << 48;
            [&[head], words].concat().iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>()
        };
        let recorder = 77;
        let bytes = [
            record(9, &[7 << 32 | 6, 100, 3, (-128_i64).cast_unsigned(), 0xff10, 0xff20]),
            record(9, &[recorder << 32 | recorder, 101, 1, 0xff10]),
            record(2, &[0, 5]),
            record(9, &[8 << 32 | 6, 102, 1, (-512_i64).cast_unsigned()]),
        ]
        .concat();
        for cut in 0..bytes.len() {
            let _ = decode(0, &bytes[..cut], 77, &mut Vec::new());
        }
        let mut reports = Vec::new();
        assert_eq!(decode(3, &bytes, 77, &mut reports), 5);
        let sample =
            |time_ns, pid, stack: &[u64]| Report { time_ns, cpu: 3, pid, what: What::Sample(stack.into()) };
        assert_eq!(reports, [sample(100, 7, &[0xff10, 0xff20]), sample(102, 8, &[])]);
    }

    /// As of kernels whose pages have 4, 16 and 64 KiB.
    #[test]
    #[expect(unsafe_code, reason = "writes to the buffer as the kernel does")]
    fn samples_begin_after_the_first_page() {
        for head in [4096, 16 << 10, 64 << 10] {
            let file = rustix::fs::memfd_create("buffer", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, (head + BUFFER) as u64).unwrap();
            let mut sampler = Sampler::mapped(file, head).unwrap();
            // SAFETY: within the mapping, aligned, and no other thread has it.
            unsafe {
                sampler.buffer.cast::<u8>().add(WRITTEN).cast::<u64>().write(8);
                sampler.buffer.cast::<u8>().add(head).cast::<u64>().write(u64::from(IS_LOST));
            }
            let mut records = Vec::new();
            sampler.take(&mut records);
            assert_eq!(records, u64::from(IS_LOST).to_ne_bytes(), "{head}");
        }
    }

    #[test]
    fn an_address_belongs_to_the_function_that_begins_before_it() {
        let symbols =
            Symbols::parse("ff20 t rmqueue\nff10 T get_page\nff30 D data\n0 t hidden\nff40 t m [ext4]\n");
        let names = [0xff0f, 0xff10, 0xff2f, 0xff35, 0xff41].map(|address| symbols.name(address));
        assert_eq!(names, ["?", "get_page", "rmqueue", "rmqueue", "m"]);
        // As kernel.kptr_restrict = 2 shows them.
        let hidden = "0000000000000000 A fixed\n0000000000000000 T get_page\n";
        assert!(
            !has_functions(hidden.as_bytes()) && has_functions("0 A fixed\nff10 T get_page\n".as_bytes())
        );
    }
}
