//! Links the kernel at the addresses that ostd's boot code expects.

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/kernel.ld");
    println!("cargo::rerun-if-changed={script}");
    for argument in ["--no-pie", "--gc-sections", "-z", "norelro", "-z", "max-page-size=4096", "-T", script] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
