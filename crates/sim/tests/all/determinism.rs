//! A seed gives the same events each time: in one process, in another, and another seed others.

use std::env;
use std::process::Command;

use framewright::config::{LockKind, LockPlace};

use crate::machine::{bulk, locked, socket};

/// Set in a process that is to print its hash and nothing else.
const CHILD: &str = "FRAMEWRIGHT_SIM_CHILD";

fn hash(seed: u64) -> String {
    let allocator = locked(LockKind::Queued, LockPlace::OtherEnd, 63, 378);
    bulk(&socket(8), &allocator, 8, 800, seed).events.to_string()
}

#[test]
fn two_runs_agree_and_two_seeds_differ() {
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
}

#[test]
fn two_processes_agree() {
    if env::var_os(CHILD).is_some() {
        println!("<{}>", hash(1));
        return;
    }
    let child = || {
        let output = Command::new(env::current_exe().expect("the test itself"))
            .args(["determinism::two_processes_agree", "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, "1")
            .output()
            .expect("it runs again");
        let text = String::from_utf8(output.stdout).expect("text");
        let hash = text.split_once('<').and_then(|(_, rest)| rest.split_once('>')).expect("a hash").0;
        hash.to_owned()
    };
    let here = hash(1);
    assert_eq!(child(), here);
    assert_eq!(child(), here);
}
