//! The files of a system: below a folder, or in an archive that was made elsewhere.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use tar::{Archive, Builder, Header};

use framewright_report::error::{Error, Result};

/// The files that are read, but for those of each node.
pub const FILES: [&str; 16] = [
    "proc/zoneinfo",
    "proc/buddyinfo",
    "proc/vmstat",
    "proc/sys/kernel/osrelease",
    "proc/sys/vm/zone_reclaim_mode",
    "proc/sys/vm/min_free_kbytes",
    "proc/sys/vm/watermark_scale_factor",
    "proc/sys/vm/watermark_boost_factor",
    "proc/sys/vm/percpu_pagelist_high_fraction",
    "proc/sys/vm/percpu_pagelist_fraction",
    "sys/devices/system/cpu/online",
    "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/kernel/mm/transparent_hugepage/defrag",
    "sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
    "proc/meminfo",
    "proc/uptime",
];
/// Folder of the nodes, and their files.
const NODES: &str = "sys/devices/system/node";
const OF_NODE: [&str; 2] = ["cpulist", "distance"];

/// Folder of the control groups; below it is that of the groups of memory, where they are of version 1.
const GROUPS: &str = "sys/fs/cgroup";
const OF_MEMORY: &str = "memory";
/// Files of a group: the limit of its memory, how much is in use, and how many processes were killed. Of version 2 and
/// of version 1.
const OF_GROUP: [[&str; 3]; 2] = [
    ["memory.max", "memory.current", "memory.events"],
    ["memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"],
];
/// In version 1 no limit is the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 62;
/// Depth to which groups are looked for, and largest number of groups that are read.
const DEEPEST: usize = 4;
const MOST_GROUPS: usize = 4096;

/// Files of `/proc` and `/sys` are smaller than this, also on machines of a thousand CPUs.
const MOST: u64 = 16 << 20;

/// Longest archive, decompressed.
const MOST_OF_ALL: u64 = 128 << 20;

/// A system's files.
#[derive(Clone, Debug)]
pub struct Root {
    /// The folder or archive.
    pub(crate) path: PathBuf,
    /// By path without a leading slash; none if they are in a folder.
    archive: Option<BTreeMap<String, String>>,
}

impl Root {
    /// The system below a folder, or in a tar archive, compressed with gzip or not.
    ///
    /// # Errors
    /// The archive cannot be read, or has no `proc/zoneinfo`.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() || !path.exists() {
            return Ok(Self { path: path.to_owned(), archive: None });
        }
        let archive = unpacked(path).map_err(|cause| match cause.kind() {
            io::ErrorKind::PermissionDenied => Error::io("read", path, &cause),
            io::ErrorKind::InvalidData => Error::failed(format_args!(
                "{}: the archive is cut off or damaged ({cause}), or longer than {} MiB; copy it again",
                path.display(),
                MOST_OF_ALL >> 20
            )),
            _ => Error::failed(format_args!(
                "{}: not a tar archive; name a folder, a .tar or a .tar.gz with a Linux' /proc and /sys",
                path.display()
            )),
        })?;
        if !archive.contains_key("proc/zoneinfo") {
            return Err(Error::failed(format_args!(
                "{}: no proc/zoneinfo in it; `framewright doctor --save` makes a complete archive",
                path.display()
            )));
        }
        Ok(Self { path: path.to_owned(), archive: Some(archive) })
    }

    /// The content of a file, whose path has no leading slash.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn read(&self, name: &str) -> io::Result<String> {
        match &self.archive {
            None => {
                let mut text = String::new();
                File::open(self.path.join(name))?.take(MOST).read_to_string(&mut text).map(|_| text)
            }
            Some(files) => files.get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into()),
        }
    }

    /// Time that tasks waited for memory (PSI), in microseconds since boot.
    pub fn memory_wait_us(&self) -> Option<f64> {
        let text = self.read("proc/pressure/memory").ok()?;
        text.lines().next()?.rsplit_once("total=")?.1.trim().parse().ok()
    }

    /// Control groups whose memory is limited, by their paths below that of all groups.
    pub fn limited_groups(&self) -> Vec<String> {
        let mut found = match &self.archive {
            Some(files) => {
                let groups = files.keys().filter_map(|name| {
                    let below = name.strip_prefix(GROUPS)?;
                    OF_GROUP.iter().find_map(|[limit, ..]| below.strip_suffix(*limit))
                });
                groups.map(|name| name.trim_matches('/').to_owned()).collect()
            }
            None => {
                let has_own = self.of_group(OF_MEMORY, OF_GROUP[1][0]).is_ok();
                self.groups_below(if has_own { OF_MEMORY } else { "" })
            }
        };
        found.retain(|group| self.memory_limit(group).is_some());
        found.sort();
        found
    }

    /// A control group and those below it.
    fn groups_below(&self, group: &str) -> Vec<String> {
        let (mut found, mut next) = (Vec::new(), vec![(group.to_owned(), 0)]);
        while let Some((group, depth)) = next.pop().filter(|_| found.len() < MOST_GROUPS) {
            let below = fs::read_dir(self.path.join(GROUPS).join(&group)).into_iter().flatten().flatten();
            for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
                if let (Ok(name), true) = (entry.file_name().into_string(), depth < DEEPEST) {
                    let path = if group.is_empty() { name } else { format!("{group}/{name}") };
                    next.push((path, depth + 1));
                }
            }
            found.push(group);
        }
        found
    }

    /// The limit of a control group's memory in bytes, and the names of the files with what is in use and with who was
    /// killed; `None` if it has no limit.
    #[must_use]
    pub fn memory_limit(&self, group: &str) -> Option<(u64, [&'static str; 2])> {
        OF_GROUP.into_iter().find_map(|[limit, used, killed]| {
            let bytes = self.of_group(group, limit).ok()?.trim().parse().ok();
            Some((bytes.filter(|&bytes| bytes < NO_LIMIT)?, [used, killed]))
        })
    }

    /// A file of a control group.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn of_group(&self, group: &str, file: &str) -> io::Result<String> {
        self.read(
            &[GROUPS, group, file].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/"),
        )
    }

    /// All files that an examination reads, as a tar archive. Files of `/proc` have a length of 0, so that `tar`
    /// itself would store nothing of them.
    ///
    /// # Errors
    /// `proc/zoneinfo` cannot be read.
    pub fn archive(&self) -> Result<Vec<u8>> {
        let mut names: Vec<String> = FILES.iter().map(|name| (*name).to_owned()).collect();
        let is_node = |name: &String| {
            name.strip_prefix("node")
                .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|c| c.is_ascii_digit()))
        };
        let mut nodes: Vec<String> = match &self.archive {
            None => fs::read_dir(self.path.join(NODES))
                .into_iter()
                .flatten()
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .collect(),
            Some(files) => {
                let below = files.keys().filter_map(|name| name.strip_prefix(NODES)?.strip_prefix('/'));
                below.filter_map(|name| Some(name.split_once('/')?.0.to_owned())).collect()
            }
        };
        nodes.retain(is_node);
        nodes.sort();
        nodes.dedup();
        names.extend(nodes.iter().flat_map(|node| OF_NODE.map(|file| format!("{NODES}/{node}/{file}"))));
        for group in self.limited_groups() {
            let folder = if group.is_empty() { GROUPS.to_owned() } else { format!("{GROUPS}/{group}") };
            names.extend(OF_GROUP.as_flattened().iter().map(|file| format!("{folder}/{file}")));
        }
        let mut builder = Builder::new(Vec::new());
        for name in names {
            let text = match self.read(&name) {
                Ok(text) => text,
                Err(cause) if name == FILES[0] => {
                    return Err(Error::io("read", &self.path.join(&name), &cause));
                }
                // Not every kernel has every file.
                Err(_) => continue,
            };
            let mut header = Header::new_ustar();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            builder.append_data(&mut header, &name, text.as_bytes()).map_err(Error::failed)?;
        }
        builder.into_inner().map_err(Error::failed)
    }
}

/// The files of an archive. Their names are made to begin with `proc` or `sys`, from any folder they were packed.
fn unpacked(path: &Path) -> io::Result<BTreeMap<String, String>> {
    let mut file = File::open(path)?;
    let mut magic = [0; 2];
    file.read_exact(&mut magic)?;
    let whole = magic.chain(file);
    let reader: Box<dyn Read> =
        if magic == [0x1f, 0x8b] { Box::new(GzDecoder::new(whole)) } else { Box::new(whole) };
    // Also of what an archive says of itself, no more is kept.
    let reader = reader.take(MOST_OF_ALL);
    let mut files = BTreeMap::new();
    let mut archive = Archive::new(reader);
    for (n, entry) in archive.entries()?.enumerate() {
        // A file with one right entry is an archive.
        let damaged = |cause| if n == 0 { cause } else { io::Error::new(io::ErrorKind::InvalidData, cause) };
        let entry = entry.map_err(damaged)?;
        let name = entry.path()?.to_string_lossy().into_owned();
        let parts: Vec<&str> = name.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        // `server7/proc/sys/vm/…` is of `proc`.
        let Some(begin) = parts.iter().position(|part| matches!(*part, "proc" | "sys")) else { continue };
        let name = parts[begin..].join("/");
        let is_wanted = FILES.contains(&name.as_str()) || name.starts_with(NODES) || name.starts_with(GROUPS);
        if !is_wanted || !entry.header().entry_type().is_file() {
            continue;
        }
        let mut text = String::new();
        // What is no text is none of these files.
        if entry.take(MOST).read_to_string(&mut text).is_ok() {
            files.insert(name, text);
        }
    }
    // It ends with two empty blocks, of which the first ends the entries: what breaks off between two has none.
    if archive.into_inner().read_exact(&mut [0]).is_err() && !files.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it has no end"));
    }
    Ok(files)
}
