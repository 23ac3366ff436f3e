//! Takes the code out of `docs/porting.md`: every piece as a test under `#![no_std]`, and the first to be run.

use std::path::Path;
use std::{env, fs};

fn main() {
    let guide =
        Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../docs/porting.md");
    println!("cargo::rerun-if-changed={}", guide.display());
    println!("cargo::rerun-if-changed=build.rs");
    let text = fs::read_to_string(guide).expect("the guide is there");
    let out = env::var("OUT_DIR").expect("cargo sets it");
    let pieces = text.split("```rust\n").enumerate().map(|(n, piece)| match piece.split_once("```\n") {
        // The standard library starts `main`; nothing of it is in scope.
        Some((code, rest)) if n > 0 => {
            format!("```rust\n#![no_std]\nextern crate std;\nfn main() {{\n{code}}}\n```\n{rest}")
        }
        _ => piece.to_owned(),
    });
    let no_std: String = pieces.collect();
    fs::write(format!("{out}/porting.md"), no_std).expect("the output folder is ours");
    let (_, first) = text.split_once("```rust\n").expect("the guide has code");
    let (first, _) = first.split_once("```").expect("a piece of code ends");
    fs::write(format!("{out}/short_port.rs"), first).expect("the output folder is ours");
}
