use super::*;

fn opened(path: &Path, writes: bool) -> Open {
    Open::new(OpenOptions::new().read(true).write(writes).open(path).unwrap(), false, None).unwrap()
}

/// A file system may return less than was asked for: that is no end of the file.
#[test]
fn a_short_read_is_not_the_end() {
    let short = |most: usize| {
        move |bytes: &mut [u8], _| {
            let read = bytes.len().min(most);
            bytes[..read].fill(1);
            Ok(read)
        }
    };
    for (most, is_direct, read) in
        [(1000, false, 4096), (1000, true, 1000), (512, true, 4096), (4096, true, 4096)]
    {
        let mut bytes = [0; 4096];
        assert_eq!(fill(&mut bytes, 0, is_direct, short(most)).unwrap(), read, "{most}, direct {is_direct}");
        assert_eq!(bytes.iter().filter(|&&byte| byte == 1).count(), read);
    }
}

/// A file that was made here owes its folder a sync until one has succeeded, also if it was closed and opened
/// again.
#[test]
fn a_new_name_is_owed_until_it_is_synced() {
    let folder = tempfile::tempdir().unwrap();
    let (path, made) = (folder.path().join("new"), Made::default());
    for _ in 0..2 {
        assert!(Open::named(&path, &made).unwrap().take_folder().is_some());
    }
    Open::named(&path, &made).unwrap().sync_folders(&made).unwrap();
    assert!(Open::named(&path, &made).unwrap().take_folder().is_none());
}

/// A file that is linked to another folder while it is open, and opened there, owes both.
#[test]
fn each_name_of_a_new_file_is_owed() {
    let (folders, made) = ([(); 2].map(|()| tempfile::tempdir().unwrap()), Made::default());
    let [first, second] = folders.each_ref().map(|folder| folder.path().join("new"));
    let open = Open::named(&first, &made).unwrap();
    std::fs::hard_link(&first, &second).unwrap();
    for path in [&second, &first, &second] {
        open.owe_folder(Open::named(path, &made).unwrap().take_folder());
    }
    assert_eq!(held(&open.folders).len(), 2);
    open.sync_folders(&made).unwrap();
    assert!(open.take_folder().is_none() && Open::named(&second, &made).unwrap().take_folder().is_none());
}

/// A thread that opens a file while another one makes it owes the folder a sync, too: the other may flush later.
#[test]
fn a_new_name_is_owed_by_each_of_two_that_open_it_at_the_same_time() {
    let (folder, made) = (tempfile::tempdir().unwrap(), Made::default());
    let barrier = std::sync::Barrier::new(2);
    for n in 0..2000 {
        let path = folder.path().join(n.to_string());
        let open = || {
            barrier.wait();
            Open::named(&path, &made).unwrap().take_folder().is_some()
        };
        let both =
            thread::scope(|scope| [(); 2].map(|()| scope.spawn(open)).map(|thread| thread.join().unwrap()));
        assert_eq!(both, [true; 2], "file {n}");
    }
}

/// Direct access is refused when the file is made already, where a file system has none: as in ramfs.
#[test]
fn a_new_name_is_owed_without_direct_access_too() {
    const FOLDER: &str = "FRAMEWRIGHT_RAMFS";
    let Some(folder) = std::env::var_os(FOLDER) else {
        let folder = tempfile::tempdir().unwrap();
        let mounts = "mount -t ramfs none \"$0\" && \"$1\" --exact device::tests::a_new_name_is_owed_without_direct_access_too";
        let mut inside = std::process::Command::new("unshare");
        inside.args(["-m", "--propagation", "private", "sh", "-c", mounts]).arg(folder.path());
        match inside.arg(std::env::current_exe().unwrap()).env(FOLDER, folder.path()).output() {
            Ok(ended) if String::from_utf8_lossy(&ended.stdout).contains("running 1 test") => {
                assert!(ended.status.success(), "{ended:?}");
            }
            ended => println!("skipped: nothing can be mounted here: {ended:?}"),
        }
        return;
    };
    let made = Made::default();
    let open = Open::named(&Path::new(&folder).join("new"), &made).unwrap();
    assert!(!open.direct && open.take_folder().is_some());
}

/// A gap that comes while the file is cut is for the next cut: or the file would stay shorter than `len` says.
#[test]
fn a_gap_beside_a_cut_is_not_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gaps");
    std::fs::write(&path, "").unwrap();
    let open = opened(&path, true);
    for round in 0..200 {
        thread::scope(|scope| {
            let grower = scope.spawn(|| {
                for _ in 0..20 {
                    open.len.fetch_add(1, Relaxed);
                    open.note_gap();
                }
            });
            while !grower.is_finished() {
                open.cut().unwrap();
            }
        });
        open.cut().unwrap();
        let (stored, len) = (std::fs::metadata(&path).unwrap().len(), open.len.load(Relaxed));
        assert_eq!(stored, len, "round {round}");
    }
}

/// A cut that fails, here because the file may not be written, is made good by the next one.
#[test]
fn a_cut_that_failed_is_not_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut");
    std::fs::write(&path, [1; 100]).unwrap();
    let mut open = opened(&path, false);
    open.len.store(150, Relaxed);
    open.note_gap();
    assert!([open.cut(), open.cut()].iter().all(Result::is_err));
    open.file = opened(&path, true).file;
    open.cut().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 150);
}

/// A thread that waits for a page writes what a writer has left that panicked: no other one would, and it would wait
/// permanently.
#[test]
fn who_waits_for_a_page_writes_what_was_left() {
    let arena: Arena<PageSlot> = Arena::builder().pages(512).cpus(1).build().unwrap();
    let device = FileDevice::new(&arena, None);
    for polls in [false, true] {
        let writer = device.queue.enter();
        assert_eq!(device.write(FileId(1), 0, Pfn(0)), Ok(Progress::Begun));
        drop(writer);
        if polls {
            device.pass_time(LOOKS)
        } else {
            device.wait_for_completion()
        }
        assert!(device.completed().is_some(), "polls: {polls}");
    }
}
