//! Handles of a parent in a forked child: it can harm none, and none can harm it.

use core::time::Duration;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;

use framewright_host::framewright::config::Engine;
use framewright_host::framewright::error::AllocFailure;
use framewright_host::processes::{ProcessArena, ProcessError, ProcessOptions};
use framewright_host::{
    Arena, AttachError, Backing, CacheError, Config, Cpu, FileCache, Migratetype, Order, PAGE_BYTES,
    PageSlot, Pfn, Request, SharedArena, VerifyError,
};

use crate::cache::files::Folder;
use crate::common::order;

const MOVABLE: Migratetype = Migratetype::Movable;
const PAGE: u64 = PAGE_BYTES as u64;

/// Runs `f` in a child of this process. Returns how that ends: 0 if all is as documented, 100 for a panic, less for a
/// signal.
fn in_a_child(f: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls what it is given, and ends without running anything else of this program.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            // A panic's message goes nowhere: other threads' locks may be held permanently here.
            std::panic::set_hook(Box::new(|_| {}));
            let code = std::panic::catch_unwind(core::panic::AssertUnwindSafe(f)).unwrap_or(100);
            libc::_exit(code);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        if libc::WIFSIGNALED(status) { -libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
    }
}

/// A child's own memory: enough of it to come to where its parent's arenas are, if that were free.
fn fill_holes() -> Vec<Vec<u8>> {
    (0..200).map(|_| vec![0x55; 1 << 20]).collect()
}

/// In a process of its own, in which no other thread holds a lock as it forks.
#[test]
fn a_child_and_its_parents_handles() {
    const ALONE: &str = "FRAMEWRIGHT_FORKS";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let alone = alone.args(["--exact", "forks::a_child_and_its_parents_handles"]);
        let alone = alone.env(ALONE, "1").output().unwrap();
        assert!(alone.status.success(), "{alone:?}");
        return;
    }
    for config in [Config::framewright(), Config::linux_v6_7(), compact()] {
        arenas(config);
        memory(config);
    }
    // A page cache needs a word for each frame.
    for config in [Config::framewright(), Config::linux_v6_7()] {
        caches(config.with_marks());
    }
    swap_of_a_dead_parent();
    processes();
}

fn compact() -> Config {
    Config { engine: Engine::Compact, ..Config::framewright() }
}

fn arenas(config: Config) {
    let builder = || Arena::builder().bytes(8 << 20).cpus(4).config(config);
    let arena: Arena = builder().build().unwrap();
    let mut cpu = arena.attach().unwrap();
    let forked = |result: Result<_, framewright_host::AllocError>| result.err().map(|error| error.why);
    assert_eq!(in_a_child(|| i32::from(arena.attach().err() != Some(AttachError::Forked))), 0);
    assert_eq!(in_a_child(|| i32::from(arena.attach_to(3).err() != Some(AttachError::Forked))), 0);
    assert_eq!(in_a_child(|| i32::from(arena.verify().err() != Some(VerifyError::Forked))), 0);
    // A thread of the parent may hold the zone's lock, and never gives it back in a child.
    let locks = || arena.allocator().totals().pcp.lock_acquisitions;
    // A block of an order without a list, with a bad frame where there is a word for it.
    let raw = cpu.alloc(order(10), MOVABLE).unwrap();
    assert_eq!(cpu.hwpoison(raw).is_ok(), config.engine != Engine::Compact);
    let calls: [fn(&Arena, &Cpu<'_>, Pfn); 9] = [
        |arena, _, _| assert_eq!(arena.prometheus(&[]), ""),
        |_, cpu, _| cpu.drain(),
        |_, cpu, _| cpu.tick(),
        |_, cpu, _| cpu.answer(),
        |_, cpu, _| assert!(cpu.offline(Pfn(1024)..Pfn(1536)).is_err()),
        |_, cpu, _| assert_eq!(cpu.explain(&Request::new(Order::ZERO, MOVABLE)), []),
        |arena, _, _| assert_eq!(arena.drain_all(Duration::MAX), []),
        // SAFETY: allocated above, and not used.
        |_, cpu, raw| unsafe { cpu.free(raw, order(10)) }.unwrap(),
        // SAFETY: as above.
        |_, cpu, raw| unsafe { cpu.split(raw, order(10), order(9)) }.unwrap(),
    ];
    let pages: Vec<_> = (0..10).map(|_| cpu.alloc(Order::ZERO, MOVABLE).unwrap()).collect();
    // SAFETY: allocated above, and not used.
    pages.iter().for_each(|&pfn| unsafe { cpu.free(pfn, Order::ZERO) }.unwrap());
    for (n, call) in calls.iter().enumerate() {
        let before = locks();
        let ended = in_a_child(|| {
            // SAFETY: a call that waits permanently is ended.
            unsafe { libc::alarm(10) };
            call(&arena, &cpu, raw);
            i32::from(locks() != before)
        });
        assert_eq!(ended, 0, "call {n}");
    }
    let refused = |why| i32::from(why != Some(AllocFailure::Forked));
    assert_eq!(in_a_child(|| refused(forked(cpu.alloc(order(10), MOVABLE)))), 0);
    assert_eq!(in_a_child(|| cpu.idle(|| i32::from(arena.reap().pages > 0))), 0);
    let shared: SharedArena = builder().build_shared().unwrap();
    let (kept, slot) = (shared.alloc_block(Order::ZERO, MOVABLE).unwrap(), shared.attach().unwrap());
    assert_eq!(in_a_child(|| refused(forked(shared.alloc(order(10), MOVABLE)))), 0);
    // Ends of blocks and threads are no reason to die.
    let kept = core::cell::Cell::new(Some((kept, slot)));
    assert_eq!(
        in_a_child(|| {
            drop(kept.take());
            0
        }),
        0
    );
    drop(kept.take());
    shared.verify().unwrap();
}

/// A block's memory is neither the parent's in a child, nor other memory of the child's.
fn memory(config: Config) {
    for (backing, ends) in [(Backing::Base, 0), (Backing::Huge, 0), (Backing::HugeTlb, -libc::SIGSEGV)] {
        let builder = Arena::builder().bytes(64 << 20).cpus(2).config(config);
        let Ok(arena) = builder.backing(backing).build::<()>() else {
            assert_eq!(backing, Backing::HugeTlb, "no pool here");
            continue;
        };
        let cpu = arena.attach().unwrap();
        let mut block = cpu.alloc_block(order(10), MOVABLE).unwrap();
        block.bytes_mut().fill(7);
        let used = in_a_child(|| {
            let filled = fill_holes();
            let is_empty = block.bytes().iter().all(|&byte| byte == 0);
            block.bytes_mut().fill(1);
            let is_alone = filled.iter().flatten().all(|&byte| byte == 0x55);
            i32::from(!is_empty) | i32::from(!is_alone) << 1
        });
        assert_eq!(used, ends, "{backing:?}");
        assert!(block.bytes().iter().all(|&byte| byte == 7));
    }
}

/// Pages that a parent has flushed or swapped out stay, whichever handles its child drops.
fn caches(config: Config) {
    let folder = Folder::new();
    let arena: Arena<PageSlot> = Arena::builder().pages(1024).cpus(2).config(config).build().unwrap();
    let cpu = arena.attach().unwrap();
    let cache = FileCache::with_swap(&arena, &folder.file(1), 4096).unwrap();
    let (file, space) = (cache.open(&folder.file(2)).unwrap(), cache.make_space());
    cache.write(&cpu, file, 0, &[9; 2 * PAGE_BYTES]).unwrap();
    (0..2000).for_each(|page| cache.store_anon(&cpu, space, page * PAGE, &page.to_le_bytes()).unwrap());
    let kept = core::cell::Cell::new(Some(cache));
    let child = in_a_child(|| {
        let filled = fill_holes();
        let cache = kept.take().unwrap();
        let closed = Err(CacheError::Closed);
        let mut bytes = [0; 8];
        let all = [
            cache.write(&cpu, file, 0, b"child"),
            cache.read(&cpu, file, 0, &mut bytes).map(drop),
            cache.append(&cpu, file, b"child").map(drop),
            cache.flush(file),
            cache.close(&cpu, file),
            cache.truncate(&cpu, file, 0),
            cache.write_back(),
            cache.load_anon(&cpu, space, 0, &mut bytes),
        ];
        let refused = all.iter().all(|&result| result == closed) && cache.open(&folder.file(3)).is_err();
        cache.drop_space(&cpu, space);
        drop(cache);
        i32::from(!refused) | i32::from(filled.iter().flatten().any(|&byte| byte != 0x55)) << 1
    });
    assert_eq!(child, 0);
    let cache = kept.take().unwrap();
    cache.flush(file).unwrap();
    assert_eq!(fs::read(folder.file(2)).unwrap(), [9; 2 * PAGE_BYTES]);
    assert!(!folder.file(3).exists() || fs::metadata(folder.file(3)).unwrap().len() == 0);
    for page in 0..2000 {
        let mut bytes = [0; 8];
        cache.load_anon(&cpu, space, page * PAGE, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), page);
    }
    assert!(cache.events().pswpin > 0);
}

/// A process that ends without notice lets go of its swap file, also if a child of it lives on.
fn swap_of_a_dead_parent() {
    let (folder, config) = (Folder::new(), Config::framewright().with_marks());
    let arena = || Arena::builder().pages(512).cpus(1).config(config).build::<PageSlot>().unwrap();
    let ((mut end, alive), (mut lives, mut tells)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let ended = in_a_child(|| {
        let arena = arena();
        let _cache = FileCache::with_swap(&arena, &folder.file(1), 64).unwrap();
        // SAFETY: neither of the two runs anything else of this program.
        unsafe {
            if libc::fork() == 0 {
                libc::close(alive.as_raw_fd());
                let _ = tells.write(&[0]).and_then(|_| end.read(&mut [0]));
            }
            libc::_exit(0)
        }
    });
    assert_eq!((ended, lives.read(&mut [0]).unwrap()), (0, 1));
    let again = arena();
    assert_eq!(FileCache::with_swap(&again, &folder.file(1), 64).err().map(|error| error.kind()), None);
    drop(alive);
}

/// A child that attaches itself is not disturbed by the end of what it inherited. And a process may have many arenas.
fn processes() {
    let arena = ProcessArena::create(&ProcessOptions::new(8 << 20)).unwrap();
    let inherited = core::cell::Cell::new(Some(arena));
    let child = in_a_child(|| {
        let arena = inherited.take().unwrap();
        let refused = matches!(arena.alloc(Order::ZERO, MOVABLE), Err(ProcessError::Forked));
        let again = ProcessArena::attach(arena.file()).unwrap();
        drop(arena);
        let pfn = again.alloc(Order::ZERO, MOVABLE).unwrap();
        // SAFETY: the block is this process's.
        unsafe { again.address(pfn).unwrap().write(7) };
        i32::from(!refused)
    });
    assert_eq!(child, 0);
    let account = inherited.take().unwrap().verify().unwrap();
    assert_eq!((account.others, account.of_the_dead), (0, 0), "the child has left");
    let options = ProcessOptions::new(1 << 20);
    let all: Vec<_> = (0..100).map(|_| ProcessArena::create(&options).unwrap()).collect();
    assert_eq!(in_a_child(|| i32::from(!matches!(all[99].reap(), Err(ProcessError::Forked)))), 0);
}
