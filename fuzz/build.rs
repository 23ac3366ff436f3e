//! `cfg(fuzzing)` is set by cargo-fuzz; the compiler does not know it by itself.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(fuzzing)");
    println!("cargo::rerun-if-changed=build.rs");
}
