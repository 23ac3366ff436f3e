//! Links the kernel as a bare ELF image for the host's own target: no start files, no libraries, no extra target.

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/kernel.ld");
    for file in [script, "src/entry.s", "src/vectors.s", "src/memory.s"] {
        println!("cargo:rerun-if-changed={file}");
    }
    for argument in [
        "-nostartfiles",
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,--build-id=none",
        "-Wl,--gc-sections",
        "-Wl,--no-dynamic-linker",
        "-Wl,-z,max-page-size=4096",
        "-Wl,-z,norelro",
        "-Wl,-T",
    ] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rustc-link-arg-bins={script}");
}
