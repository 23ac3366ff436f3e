//! Crashes at every moment, on a device that fails, tears, delays and reorders writes, runs full and fails syncs.
//!
//! The device knows for each half page what a crash may leave there: what is durable, or any write since, half of a
//! page at a time and independently of all others. At each of its operations, and when a flush returns, that is
//! compared with what flushes have promised. So every crash at every write boundary is looked at, without making one.
//!
//! Each half page says whose it is and which version: bytes of one file or space in another are seen wherever they are.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Instant;

use framewright::reclaim::BackgroundRequest;
use framewright::units::{NodeId, Order, Pfn, ZoneType};
use framewright_pagecache::{
    Cache, CacheError, Completion, Device, FileId, IoError, Opener, Progress, SpaceId, Swap,
};

use crate::{Config, Handle, PAGES, Plain, world_of};
use framewright_check::mix;
use framewright_check::platform::loom::{full, quick};

const HALF: usize = 8;
const BYTES: usize = 2 * HALF;
const SWAP: FileId = FileId(u32::MAX);
const BROKEN: IoError = IoError::from_code(5);
const FULL: IoError = IoError::from_code(28);
/// Spaces have numbers from here on.
const FIRST_SPACE: u32 = 1 << 23;
/// Pages of a file or space.
const EXTENT: u64 = 700;

type Half = [u8; HALF];

/// Owner of a half page, its page, its version: 24, 16 and 24 bits. All zeroes: not written yet.
fn stamp(owner: u32, index: u64, version: u32) -> Half {
    (u64::from(owner) << 40 | index << 24 | u64::from(version)).to_le_bytes()
}

/// The version of a half page, if it is `owner`'s page `index`, or still zeroes.
fn version(half: Half, owner: u32, index: u64) -> Option<u32> {
    let word = u64::from_le_bytes(half);
    (word == 0 || word >> 24 == u64::from(owner) << 16 | index).then_some((word & 0xff_ffff) as u32)
}

/// A half page, by file, page and half.
type Place = (FileId, u64, usize);

/// States of a half page in storage: the one that will survive a crash for certain, if nothing comes after it; and the
/// writes since.
#[derive(Default)]
struct Stored {
    durable: Half,
    since: Vec<Half>,
}

#[derive(Default)]
struct Storage {
    halves: BTreeMap<Place, Stored>,
    begun: Vec<(FileId, u64, Pfn, [u8; BYTES])>,
    /// Promises of flushes: the least version of each half page. Only of files.
    promised: HashMap<Place, u32>,
    failed_syncs: HashMap<FileId, u32>,
}

impl Storage {
    /// Whether every crash that can happen now leaves what was promised.
    fn check(&self, place: Place) {
        let (file, index, half) = place;
        if file == SWAP {
            return;
        }
        let floor = self.promised.get(&place).copied().unwrap_or_default();
        let nothing = Stored::default();
        let stored = self.halves.get(&place).unwrap_or(&nothing);
        for &left in stored.since.iter().chain([&stored.durable]) {
            let found = version(left, file.0, index);
            let found = found.unwrap_or_else(|| panic!("{place:?} holds bytes of another file: {left:?}"));
            assert!(
                found >= floor,
                "half {half} of page {index} of {file:?}: a crash leaves {found}, {floor} was flushed"
            );
        }
    }

    fn newest(&self, place: Place) -> Half {
        self.halves.get(&place).map_or([0; HALF], |stored| *stored.since.last().unwrap_or(&stored.durable))
    }

    fn put(&mut self, place: Place, half: Half) {
        self.halves.entry(place).or_default().since.push(half);
        self.check(place);
    }
}

/// The device, and the memory of pages.
struct Chaotic {
    memory: Mutex<HashMap<Pfn, [u8; BYTES]>>,
    storage: Mutex<Storage>,
    dice: AtomicU64,
    /// Of a thousand: writes, and syncs, that fail.
    fails: u64,
    sync_fails: u64,
    /// Half pages that there is room for.
    room: usize,
    calm: AtomicBool,
    writes: AtomicU64,
    torn: AtomicU64,
    refused: AtomicU64,
}

impl Chaotic {
    fn new(seed: u64) -> Self {
        Self {
            memory: Mutex::default(),
            storage: Mutex::default(),
            dice: AtomicU64::new(seed << 32),
            fails: [0, 20, 100][seed as usize % 3],
            sync_fails: [0, 100, 300][seed as usize / 3 % 3],
            room: if seed.is_multiple_of(4) { 4 * EXTENT as usize } else { usize::MAX },
            calm: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            torn: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    fn dice(&self, below: u64) -> u64 {
        mix(self.dice.fetch_add(1, Relaxed)) % below
    }

    fn is_bad_luck(&self, of_thousand: u64) -> bool {
        !self.calm.load(Relaxed) && self.dice(1000) < of_thousand
    }

    /// Ends a write, as it should or otherwise.
    fn finish(&self, file: FileId, index: u64, bytes: [u8; BYTES]) -> Result<(), IoError> {
        self.writes.fetch_add(1, Relaxed);
        let fails = self.is_bad_luck(self.fails);
        let torn = self.dice(3);
        let mut storage = self.storage.lock().unwrap();
        let halves = bytes.as_chunks::<HALF>().0;
        if file != SWAP
            && !self.calm.load(Relaxed)
            && !storage.halves.contains_key(&(file, index, 0))
            && storage.halves.len() >= self.room
        {
            self.refused.fetch_add(1, Relaxed);
            return Err(FULL);
        }
        for (half, &bytes) in halves.iter().enumerate() {
            // What fails has written the first half, or the second, or nothing.
            if !fails || torn == half as u64 {
                storage.put((file, index, half), bytes);
            }
        }
        self.torn.fetch_add(u64::from(fails && torn < 2), Relaxed);
        if fails { Err(BROKEN) } else { Ok(()) }
    }
}

impl Device for Chaotic {
    fn page_bytes(&self) -> usize {
        BYTES
    }

    fn read(&self, file: FileId, index: u64, pfn: Pfn) -> Result<(), IoError> {
        if self.is_bad_luck(self.fails) {
            self.memory.lock().unwrap().insert(pfn, [0xee; BYTES]);
            return Err(BROKEN);
        }
        let storage = self.storage.lock().unwrap();
        let mut bytes = [0; BYTES];
        for half in 0..2 {
            bytes[half * HALF..][..HALF].copy_from_slice(&storage.newest((file, index, half)));
        }
        drop(storage);
        self.memory.lock().unwrap().insert(pfn, bytes);
        Ok(())
    }

    fn write(&self, file: FileId, index: u64, pfn: Pfn) -> Result<Progress, IoError> {
        let bytes = self.memory.lock().unwrap()[&pfn];
        if self.dice(2) == 0 {
            return self.finish(file, index, bytes).map(|()| Progress::Done);
        }
        self.storage.lock().unwrap().begun.push((file, index, pfn, bytes));
        Ok(Progress::Begun)
    }

    fn completed(&self) -> Option<Completion> {
        if self.dice(3) > 0 {
            return None;
        }
        // Any of them: writes pass one another.
        let mut storage = self.storage.lock().unwrap();
        let len = storage.begun.len() as u64;
        let (file, index, pfn, bytes) =
            (len > 0).then(|| storage.begun.swap_remove(self.dice(len) as usize))?;
        drop(storage);
        Some(Completion { file, index, pfn, result: self.finish(file, index, bytes) })
    }

    /// All that was written before will last; or the device has lost some of it, and reports that once.
    fn sync(&self, file: FileId) -> Result<(), IoError> {
        let fails = self.is_bad_luck(self.sync_fails);
        let mut storage = self.storage.lock().unwrap();
        let places: Vec<Place> =
            storage.halves.range((file, 0, 0)..=(file, u64::MAX, 1)).map(|(&place, _)| place).collect();
        for place in places {
            let Some(stored) = storage.halves.get_mut(&place) else { continue };
            if fails {
                let left = self.dice(stored.since.len() as u64 + 1) as usize;
                if left < stored.since.len() {
                    stored.durable = stored.since[left];
                }
            } else if let Some(&last) = stored.since.last() {
                stored.durable = last;
            }
            stored.since.clear();
            storage.check(place);
        }
        *storage.failed_syncs.entry(file).or_default() += u32::from(fails);
        if fails { Err(BROKEN) } else { Ok(()) }
    }

    fn truncate(&self, file: FileId, index: u64) -> Result<(), IoError> {
        self.storage.lock().unwrap().halves.retain(|&(in_file, at, _), _| in_file != file || at < index);
        Ok(())
    }

    fn copy_in(&self, pfn: Pfn, offset: usize, bytes: &[u8]) {
        let mut memory = self.memory.lock().unwrap();
        memory.entry(pfn).or_default()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn copy_out(&self, pfn: Pfn, offset: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.memory.lock().unwrap()[&pfn][offset..offset + bytes.len()]);
    }

    fn clear(&self, pfn: Pfn) {
        self.memory.lock().unwrap().insert(pfn, [0; BYTES]);
    }
}

/// A file of a thread, as it knows it. Others only flush it.
struct Written {
    file: FileId,
    opener: Opener<Plain>,
    /// By page and half, the version that the cache has taken.
    halves: BTreeMap<(u64, usize), u32>,
    /// How often it was cut: what a flush had promised before is no promise any more.
    cuts: u32,
}

/// State that the threads of a round share.
struct Round<'w> {
    cache: Cache<'w, Plain, Chaotic>,
    /// By thread: its file.
    files: Vec<Mutex<Written>>,
    numbers: AtomicU32,
    lost: AtomicU64,
    flushed: AtomicU64,
}

impl Round<'_> {
    fn new_file(&self) -> Written {
        let file = FileId(self.numbers.fetch_add(1, Relaxed));
        Written { file, opener: self.cache.opener(file), halves: BTreeMap::new(), cuts: 0 }
    }

    /// Flushes a thread's file. What it held before is promised from then on.
    fn flush(&self, whose: usize) -> Result<(), CacheError> {
        let (file, halves, cuts) = {
            let written = self.files[whose].lock().unwrap();
            (written.file, written.halves.clone(), written.cuts)
        };
        self.cache.flush(file)?;
        self.flushed.fetch_add(1, Relaxed);
        let written = self.files[whose].lock().unwrap();
        if (written.file, written.cuts) == (file, cuts) {
            let mut storage = self.cache.device().storage.lock().unwrap();
            for ((index, half), version) in halves {
                let place = (file, index, half);
                let floor = storage.promised.entry(place).or_default();
                *floor = version.max(*floor);
                storage.check(place);
            }
        }
        Ok(())
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each call that the cache has")]
    fn work(&self, cpu: &Handle<'_>, me: usize, seed: u64, steps: u32) {
        let helpers = self.cache.helpers();
        let mut turn = seed << 32 | (me as u64) << 28;
        let mut dice = |below: u64| {
            turn += 1;
            mix(turn) % below
        };
        let mut space = SpaceId(FIRST_SPACE + ((me as u32) << 16));
        let mut anon: BTreeMap<u64, u32> = BTreeMap::new();
        for step in 1..=steps {
            let index = dice(EXTENT);
            let at = |half: usize| half * HALF;
            let mut page = [0; BYTES];
            match dice(100) {
                // Both halves, or one of them.
                0..40 => {
                    let (first, last) = [(0, 1), (0, 0), (1, 1)][dice(3) as usize];
                    // No other thread writes to it; others lock it only to look.
                    let file = self.files[me].lock().unwrap().file;
                    page.as_chunks_mut::<HALF>().0.fill(stamp(file.0, index, step));
                    let bytes = &page[at(first)..at(last + 1)];
                    if self.cache.write(cpu, &helpers, (file, index, at(first)), bytes).is_ok() {
                        let mut written = self.files[me].lock().unwrap();
                        written.halves.extend((first..=last).map(|half| ((index, half), step)));
                    }
                }
                40..60 => {
                    let (file, known) = {
                        let written = self.files[me].lock().unwrap();
                        let known = [0, 1]
                            .map(|half| written.halves.get(&(index, half)).copied().unwrap_or_default());
                        (written.file, known)
                    };
                    if self.cache.read(cpu, &helpers, (file, index, 0), &mut page).is_err() {
                        continue;
                    }
                    let storage = self.cache.device().storage.lock().unwrap();
                    let lossy = storage.failed_syncs.get(&file).is_some_and(|&failed| failed > 0);
                    for (half, known) in page.as_chunks::<HALF>().0.iter().zip(known) {
                        let found = version(*half, file.0, index).expect("bytes of another file");
                        assert!(found == known || lossy, "page {index} of {file:?} has {found}, not {known}");
                    }
                }
                // In every other round seldom: then pages leave memory before they are synced.
                60..70 if seed % 2 == 1 && dice(40) > 0 => drop(self.cache.write_back(64)),
                60..70 => {
                    let whose = dice(self.files.len() as u64) as usize;
                    match self.flush(whose) {
                        Err(CacheError::Lost(_)) if whose == me => {
                            // The only way on: a new file, with everything written again.
                            let before = self.files[me].lock().unwrap().file;
                            let failed = self
                                .cache
                                .device()
                                .storage
                                .lock()
                                .unwrap()
                                .failed_syncs
                                .get(&before)
                                .copied();
                            assert!(
                                failed.is_some_and(|failed| failed > 0),
                                "no sync of {before:?} has failed"
                            );
                            *self.files[me].lock().unwrap() = self.new_file();
                            self.lost.fetch_add(1, Relaxed);
                        }
                        Ok(()) | Err(CacheError::Io(_) | CacheError::Lost(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                70 => drop(self.cache.write_back(8)),
                71 => {
                    let file = self.files[dice(self.files.len() as u64) as usize].lock().unwrap().file;
                    let _ = self.cache.drop_pages(cpu, file);
                }
                72 if dice(20) == 0 => {
                    // What is cut off may be gone from now on.
                    let file = {
                        let mut written = self.files[me].lock().unwrap();
                        written.cuts += 1;
                        written.halves.retain(|&(at, _), _| at < index);
                        let file = written.file;
                        let mut storage = self.cache.device().storage.lock().unwrap();
                        storage.promised.retain(|&(in_file, at, _), _| in_file != file || at < index);
                        file
                    };
                    self.cache.truncate(cpu, file, index).unwrap();
                }
                72..87 => {
                    page.as_chunks_mut::<HALF>().0.fill(stamp(space.0, index, step));
                    if self.cache.store_anon(cpu, &helpers, (space, index, 0), &page).is_ok() {
                        anon.insert(index, step);
                    }
                }
                87..99 => {
                    if self.cache.load_anon(cpu, &helpers, (space, index, 0), &mut page).is_ok() {
                        let known = anon.get(&index).copied().unwrap_or_default();
                        for half in page.as_chunks::<HALF>().0 {
                            assert_eq!(
                                version(*half, space.0, index),
                                Some(known),
                                "page {index} of {space:?}"
                            );
                        }
                    }
                }
                _ => {
                    self.cache.drop_space(cpu, space);
                    anon.clear();
                    space.0 += 1;
                }
            }
        }
        self.cache.drop_space(cpu, space);
    }
}

fn round(seed: u64, steps: u32) -> (u64, u64) {
    // The promise holds in Linux' way, too.
    let config = if seed.is_multiple_of(2) { Config::framewright() } else { Config::linux_v6_7() };
    let world = world_of(config, 5);
    let swap = Swap::new(SWAP, 900);
    let cache = Cache::new(world.allocator(), Chaotic::new(seed)).with_swap(swap);
    let mut round = Round {
        cache,
        files: Vec::new(),
        numbers: AtomicU32::new(1),
        lost: AtomicU64::new(0),
        flushed: AtomicU64::new(0),
    };
    round.files = (0..3).map(|_| Mutex::new(round.new_file())).collect();
    let round = &round;
    std::thread::scope(|scope| {
        let world = &world;
        let work = |me| move || world.on(me, |cpu| round.work(cpu, me, seed, steps));
        let workers: Vec<_> = (0..3).map(|me| scope.spawn(work(me))).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            let asked = BackgroundRequest { order: Order::ZERO, highest: ZoneType::Normal };
            world.on(4, |cpu| cpu.background(NodeId(0), asked, &round.cache.helpers()));
            // Without a pause it would hold the zone's lock most of the time, and leave two processors to four threads.
            std::thread::sleep(Duration::from_micros(100));
        }
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    // On a device that has come to rest, everything is flushed in the end, unless it was lost.
    round.cache.device().calm.store(true, Relaxed);
    for whose in 0..3 {
        let opener = round.cache.opener(round.files[whose].lock().unwrap().file);
        let _ = (round.flush(whose), round.flush(whose), round.cache.flush_by(&opener));
        match round.flush(whose) {
            Ok(()) => {}
            Err(CacheError::Lost(_)) => drop(round.lost.fetch_add(1, Relaxed)),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(opener.file(), round.files[whose].lock().unwrap().opener.file());
    }
    round.cache.verify().unwrap();
    assert_eq!(world.settled().allocated, round.cache.pages().0 + round.cache.anon_pages());
    let device = round.cache.device();
    let [writes, torn, refused] =
        [&device.writes, &device.torn, &device.refused].map(|count| count.load(Relaxed));
    let (lost, flushed) = (round.lost.load(Relaxed), round.flushed.load(Relaxed));
    println!(
        "seed {seed}: {writes} writes, {torn} torn, {refused} refused; {flushed} flushes, {lost} files lost"
    );
    // A file whose sync has failed can be lost for good: with all three lost early, no flush succeeds.
    assert!((flushed > 0 || lost >= 3) && writes > PAGES);
    (torn, lost)
}

/// Three threads on files and spaces of their own, each flushing all files, memory for two thirds of it.
/// `FRAMEWRIGHT_CRASH_SECONDS=1800` runs for half an hour.
#[test]
fn no_crash_takes_what_was_flushed() {
    let full = full();
    let seconds = std::env::var("FRAMEWRIGHT_CRASH_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let (rounds, steps) = match () {
        () if full => (200, 10_000),
        () if quick() => (3, 2500),
        () => (9, 2500),
    };
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or_default());
    let (mut torn, mut lost) = (0, 0);
    for seed in 0.. {
        if seed >= rounds && Instant::now() >= until {
            break;
        }
        let (more_torn, more_lost) = round(seed, steps);
        (torn, lost) = (torn + more_torn, lost + more_lost);
    }
    // Which pages have left memory when a sync fails is chance: in many rounds some have.
    assert!(
        torn > 0 && (lost > 0 || !full),
        "{torn} torn writes, {lost} files lost: the device was too kind"
    );
}
