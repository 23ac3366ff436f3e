//! Running a command as a user other than root.
//!
//! On Linux credentials belong to a thread, and a new process inherits those of the thread that starts it. The
//! command is therefore started by a helper thread that has taken the user's credentials; all other threads keep
//! root's. Between fork and exec nothing of ours runs but a system call.

use std::ffi::{CString, OsString};
use std::io;
use std::process::{Child, Command};
use std::thread;

use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// A user that a command can run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// The entry in the user database, if there is one.
    entry: Option<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    home: OsString,
}

impl User {
    /// The user who called sudo, from `SUDO_UID` and `SUDO_GID`. `None` without sudo, and if root called it.
    ///
    /// # Errors
    /// They are no numbers: whatever set them did not mean root, which the command would run as.
    pub fn behind_sudo() -> Result<Option<Self>, String> {
        let [uid, gid] = ["SUDO_UID", "SUDO_GID"].map(std::env::var_os);
        let number = |text: &OsString| text.to_str()?.parse::<u32>().ok();
        match [&uid, &gid].map(|text| text.as_ref().and_then(number)) {
            [None, _] if uid.is_none() => Ok(None),
            [Some(0), _] => Ok(None),
            [Some(uid), Some(gid)] => Ok(Some(Self::from_numbers(uid, gid))),
            _ => Err("SUDO_UID and SUDO_GID are not the numbers of a user; unset them to be root".to_owned()),
        }
    }

    /// The user with that name or number.
    ///
    /// # Errors
    /// There is no such user, or the user database cannot be read: one line.
    pub fn find(text: &str) -> Result<Self, String> {
        let entry = match text.parse() {
            Ok(number) => nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(number)),
            Err(_) => nix::unistd::User::from_name(text),
        };
        match entry {
            Ok(Some(entry)) => Ok(Self::from_numbers(entry.uid.as_raw(), entry.gid.as_raw())),
            Ok(None) => Err(format!("there is no user {text}")),
            Err(cause) => Err(format!("cannot look up the user {text}: {cause}")),
        }
    }

    fn from_numbers(uid: u32, gid: u32) -> Self {
        let entry = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
        let listed = entry.as_ref().and_then(|entry| {
            let name = CString::new(entry.name.as_str()).ok()?;
            nix::unistd::getgrouplist(&name, nix::unistd::Gid::from_raw(gid)).ok()
        });
        let groups =
            listed.map_or_else(|| vec![gid], |groups| groups.iter().map(|gid| gid.as_raw()).collect());
        let entry = entry.map(|entry| Entry { name: entry.name, home: entry.dir.into() });
        Self { uid, gid, groups, entry }
    }

    /// Number of the user.
    #[must_use]
    pub const fn uid(&self) -> u32 {
        self.uid
    }

    /// Number of the user's group.
    #[must_use]
    pub const fn gid(&self) -> u32 {
        self.gid
    }

    /// Starts `command` with the numbers and groups of this user, and with `HOME`, `USER` and `LOGNAME` set.
    ///
    /// # Errors
    /// The process may not become this user, or the command cannot be started.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        if let Some(Entry { name, home }) = &self.entry {
            command.env("HOME", home).env("USER", name).env("LOGNAME", name);
        }
        thread::scope(|scope| {
            let starting = scope.spawn(|| {
                let groups: Vec<_> =
                    self.groups.iter().map(|&gid| rustix::process::Gid::from_raw(gid)).collect();
                let gid = rustix::process::Gid::from_raw(self.gid);
                let uid = rustix::process::Uid::from_raw(self.uid);
                // The groups first: only root may change them.
                set_thread_groups(&groups)?;
                set_thread_res_gid(gid, gid, gid)?;
                set_thread_res_uid(uid, uid, uid)?;
                command.spawn()
            });
            starting.join().expect("starting a command does not panic")
        })
    }
}
