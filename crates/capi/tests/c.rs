//! The library as C gets it: installed by `crates/capi/install`, linked by gcc and clang, run, and run under valgrind.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

fn capi() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// Installs the library as its README says.
fn install(folder: &str, features: Option<&str>) -> PathBuf {
    let destination = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    let _ = fs::remove_dir_all(&destination);
    let mut command = Command::new("make");
    command.arg("-C").arg(capi()).args(["--silent", "install", "PREFIX=/usr"]);
    command.arg(format!("DESTDIR={}", destination.display()));
    run(command.args(features.map(|names| format!("FEATURES={names}"))));
    destination.join("usr")
}

/// Where the library is installed: once for all tests.
fn installed() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| install("capi", None))
}

/// Whether a tool is there. Where everything is meant to be tested, it has to be.
fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    assert!(found || env::var_os("CI").is_none(), "{tool} is not installed");
    if !found {
        println!("skipped: {tool} is not installed");
    }
    found
}

fn compile(compiler: &str, program: &str, to: &str, libraries: &[&str]) -> PathBuf {
    let root = installed();
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(to);
    let mut command = Command::new(compiler);
    command.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-pedantic", "-Werror"]);
    command.arg("-I").arg(root.join("include")).arg(capi().join("c").join(program)).arg("-o").arg(&binary);
    command.arg(format!("-Wl,-rpath,{}", root.join("lib").display()));
    run(command.args(libraries));
    binary
}

/// What pkg-config says, for a library that is below DESTDIR.
fn flags(statically: bool) -> Vec<String> {
    let root = installed();
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", root.join("lib/pkgconfig"));
    command.env("PKG_CONFIG_SYSROOT_DIR", root.parent().expect("DESTDIR"));
    command.env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1");
    let output = run(command.args(statically.then_some("--static")).args(["--libs", "framewright"]));
    String::from_utf8(output.stdout).expect("text").split_whitespace().map(str::to_owned).collect()
}

/// FNV-1a, as `header/src/main.rs` computes it.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Names in a text that begin with `fw_` and are followed by `behind`.
fn names(text: &str, behind: char) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("fw_") {
        let name: String = text[at..].chars().take_while(|&c| is_name(c)).collect();
        let alone = text[..at].chars().next_back().is_none_or(|c| !is_name(c));
        if alone && text[at + name.len()..].starts_with(behind) {
            found.insert(name);
        }
    }
    found
}

fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_header_is_of_this_source() {
    let mut sources: Vec<PathBuf> =
        fs::read_dir(capi().join("src")).unwrap().map(|entry| entry.unwrap().path()).collect();
    sources.retain(|path| !matches!(path.file_stem().and_then(|name| name.to_str()), Some("lib" | "twin")));
    sources.sort();
    sources.insert(0, capi().join("header/inline.h"));
    let text: String = sources.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let header = fs::read_to_string(capi().join("include/framewright.h")).unwrap();
    let line = format!("// Source: {:016x}\n", hash(&text));
    assert!(header.contains(&line), "the header is of other source: run crates/capi/header/generate");
    if env::var_os("FRAMEWRIGHT_FULL").is_some() {
        run(Command::new(capi().join("header/generate")).arg("--check"));
    }
}

#[test]
fn every_function_of_the_header_is_exported_with_a_version_and_nothing_else_is() {
    let header = fs::read_to_string(capi().join("include/framewright.h")).unwrap();
    let (declarations, _) =
        header.split_once("// ---- hits without a call").expect("what is inlined comes last");
    let declared = names(&code(declarations), '(');
    let mapped = names(&fs::read_to_string(capi().join("framewright.map")).unwrap(), ';');
    assert!(declared.len() > 40, "{declared:?}");
    assert_eq!(declared, mapped, "framewright.map names other functions than the header");
    let library = installed().join("lib/libframewright.so");
    let output =
        run(Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library));
    let text = String::from_utf8(output.stdout).unwrap();
    let exported: BTreeSet<&str> = text.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let mut wanted: BTreeSet<String> = mapped.iter().map(|name| format!("{name}@@FRAMEWRIGHT_0.1")).collect();
    wanted.insert("FRAMEWRIGHT_0.1".into());
    let exported: BTreeSet<String> =
        exported.iter().map(|name| name.replace("0.1@@FRAMEWRIGHT_0.1", "0.1")).collect();
    assert_eq!(exported, wanted);
}

#[test]
fn installed_files_have_no_debug_information() {
    for (file, most) in [("libframewright.so", 2 << 20), ("libframewright.a", 24 << 20)] {
        let path = installed().join("lib").join(file);
        let sections = run(Command::new("readelf").args(["--section-headers", "--wide"]).arg(&path)).stdout;
        let sections = String::from_utf8_lossy(&sections);
        assert!(sections.contains(".text") && !sections.contains(".debug_info"), "{file}");
        let bytes = fs::metadata(&path).unwrap().len();
        assert!(bytes < most, "{file} has {bytes} bytes");
    }
}

#[test]
fn programs_build_with_gcc_and_clang_and_run() {
    let [shared, fixed] = [false, true].map(flags);
    for compiler in ["gcc", "clang"] {
        if !has(compiler) {
            continue;
        }
        let programs = [
            ("api", ""),
            ("ranges", ""),
            ("buffer_pool", "20000"),
            ("object_cache", "100000"),
            ("huge_ring", "200"),
        ];
        for (program, arguments) in programs {
            let source = format!("{program}.c");
            let libraries: Vec<&str> = shared.iter().map(String::as_str).chain(["-lpthread"]).collect();
            let binary = compile(compiler, &source, &format!("{program}-{compiler}"), &libraries);
            let output = run(Command::new(binary).args(arguments.split_whitespace()));
            println!("{compiler} {program}: {}", String::from_utf8_lossy(&output.stdout).trim());
        }
        let wrapped = ["-lpthread", "-Wl,--wrap=fw_alloc_page,--wrap=fw_free_page"];
        for (name, inlined) in [("hits", None), ("hits-calls", Some("-DFW_NO_INLINE"))] {
            let libraries: Vec<&str> =
                shared.iter().map(String::as_str).chain(wrapped).chain(inlined).collect();
            let output = run(&mut Command::new(compile(
                compiler,
                "hits.c",
                &format!("{name}-{compiler}"),
                &libraries,
            )));
            println!("{compiler} {name}: {}", String::from_utf8_lossy(&output.stdout).trim());
        }
    }
    // The same with the archive.
    let libraries: Vec<&str> =
        fixed.iter().map(|flag| if flag == "-lframewright" { "-l:libframewright.a" } else { flag }).collect();
    let binary = compile("gcc", "api.c", "api-static", &libraries);
    run(&mut Command::new(&binary));
    let linked = run(Command::new("ldd").arg(&binary)).stdout;
    assert!(!String::from_utf8_lossy(&linked).contains("libframewright"), "linked with the archive");
    let libraries: Vec<&str> = fixed.iter().map(String::as_str).chain(["-static"]).collect();
    run(&mut Command::new(compile("gcc", "api.c", "api-without-libraries", &libraries)));
    // Compilers of C99 and C++ read the headers, too.
    for (compiler, language) in [("gcc", "-std=c99"), ("clang", "-std=c99"), ("g++", "-std=c++11")] {
        if has(compiler) {
            let kernel = capi().join("freestanding/framewright_kernel.h");
            let kind = if compiler == "g++" { "c++" } else { "c" };
            // Each once more than it is needed, as where two headers of a program name them.
            for header in [installed().join("include/framewright.h"), kernel] {
                run(Command::new(compiler)
                    .args(["-fsyntax-only", "-Wall", "-Wextra", "-pedantic", "-Werror", language, "-x", kind])
                    .arg("-include")
                    .args([&header, &header]));
            }
        }
    }
}

#[test]
fn valgrind_finds_nothing() {
    if !has("valgrind") {
        return;
    }
    let flags = flags(false);
    let libraries: Vec<&str> = flags.iter().map(String::as_str).chain(["-lpthread"]).collect();
    for (program, arguments) in [("buffer_pool", "3000"), ("object_cache", "20000"), ("huge_ring", "20")] {
        let binary = compile("gcc", &format!("{program}.c"), &format!("{program}-valgrind"), &libraries);
        // Not permanently, if a process waits for another that has failed.
        let mut command = Command::new("timeout");
        command.args(["300", "valgrind"]);
        command.args([
            "--quiet",
            "--error-exitcode=9",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
        ]);
        run(command.arg(binary).args(arguments.split_whitespace()));
    }
}

/// The suite of `conformance/`: everything that must pass does, and what is broken on purpose fails for its own reason.
#[test]
fn the_conformance_suite_passes_and_can_fail() {
    let suite = capi().join("../../conformance");
    let mut sources: Vec<PathBuf> =
        fs::read_dir(&suite).unwrap().map(|entry| entry.unwrap().path()).collect();
    sources.retain(|path| path.extension().is_some_and(|ending| ending == "c"));
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance");
    let mut command = Command::new("gcc");
    command.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-pedantic", "-Werror", "-I"]);
    command.arg(installed().join("include")).args(sources).arg("-o").arg(&binary).args(flags(false));
    run(command.arg(format!("-Wl,-rpath,{}", installed().join("lib").display())).arg("-lpthread"));
    let report = String::from_utf8(run(&mut Command::new(binary)).stdout).unwrap();
    println!("{report}");
    let failed: BTreeSet<&str> =
        report.lines().filter_map(|line| line.strip_prefix("FAILED")).map(str::trim).collect();
    assert!(failed.iter().all(|line| line.starts_with("broken: ")), "{failed:?}");
    // An arena that cannot be made is no pass.
    assert!(!report.contains("skipped"), "{report}");
    let reasons = ["starts at frame", "belong to another block that is allocated", "is not to be had again"];
    for reason in reasons.into_iter().chain(["free with a smaller order was accepted"]) {
        assert!(failed.iter().any(|line| line.contains(reason)), "{reason}: {failed:?}");
    }
}

/// Two processes on one memfd, one of which is killed at random moments: fifteen of them, or a thousand.
#[test]
fn a_process_killed_at_any_moment_leaves_an_arena_that_works() {
    let flags = flags(false);
    let libraries: Vec<&str> = flags.iter().map(String::as_str).collect();
    let binary = compile("gcc", "killed.c", "killed", &libraries);
    let kills = if env::var_os("FRAMEWRIGHT_FULL").is_some() { "1000" } else { "15" };
    // Another order of events each time; the seed is printed, and so is what failed.
    let seed = std::process::id().to_string();
    let output = run(Command::new(binary).args([kills, &seed]));
    println!("seed {seed}: {}", String::from_utf8_lossy(&output.stdout));
}

/// The variant for kernels, in a program without any library: nothing is undefined when it is linked, and it works.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_kernel_in_c_needs_no_library() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("freestanding");
    let home = capi().join("freestanding");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--release", "--locked", "--manifest-path"]).arg(home.join("Cargo.toml"));
    run(build.env("CARGO_TARGET_DIR", &target));
    for compiler in ["gcc", "clang"] {
        if !has(compiler) {
            continue;
        }
        let binary = target.join(format!("kernel-{compiler}"));
        let mut command = Command::new(compiler);
        command.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-pedantic", "-Werror"]);
        command.args(["-ffreestanding", "-nostdlib", "-static", "-fno-stack-protector"]);
        command.arg(home.join("kernel.c")).arg(target.join("release/libframewright_freestanding.a"));
        run(command.arg("-o").arg(&binary));
        run(&mut Command::new(binary));
    }
}

/// Memory in no block is out of bounds for memcheck and for AddressSanitizer, and no other memory is.
#[test]
fn checkers_are_told_whose_memory_is_whose() {
    if env::var_os("FRAMEWRIGHT_FULL").is_none() || !has("valgrind") {
        return;
    }
    let root = install("capi-annotated", Some("annotations"));
    let build = |name: &str, options: &[&str]| {
        let binary = root.join(name);
        let mut command = Command::new("gcc");
        command.args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-I"]).arg(root.join("include"));
        command
            .args(options)
            .arg(capi().join("c/annotated.c"))
            .arg("-o")
            .arg(&binary)
            .arg("-L")
            .arg(root.join("lib"));
        command.arg(format!("-Wl,-rpath,{}", root.join("lib").display()));
        run(command.args(["-lframewright", "-lpthread"]));
        binary
    };
    let (plain, checked) = (build("plain", &[]), build("checked", &["-fsanitize=address"]));
    let memcheck = |what: &str| {
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--error-exitcode=9"]).arg(&plain).arg(what).output().unwrap()
    };
    let sanitized = |what: &str| Command::new(&checked).arg(what).output().unwrap();
    for (tool, output, complaint) in [
        ("memcheck", &memcheck as &dyn Fn(&str) -> Output, "Invalid write of size 1"),
        ("AddressSanitizer", &sanitized, "use-after-poison"),
    ] {
        for what in ["right", "freed", "beyond", "refused0", "refused2", "refused4"] {
            let ended = output(what);
            let text = String::from_utf8_lossy(&ended.stderr);
            assert_eq!(ended.status.success(), what == "right", "{tool}, {what}: {text}");
            assert!(what == "right" || text.contains(complaint), "{tool}, {what}: {text}");
        }
    }
    // Without a checker nothing is told.
    run(Command::new(&plain).arg("freed"));
}

/// The hot pair of C against that of Rust, interleaved in one program, the best of many rounds of each, the best of
/// five programs. Hits are in the program's own code, so it is the same through the shared library; two calls cost what
/// two calls cost, and their bound is one that noise does not break. The figures of a quiet machine are in `README.md`.
#[test]
fn the_hot_pair_is_not_dearer_than_in_rust() {
    if env::var_os("FRAMEWRIGHT_FULL").is_none() {
        return;
    }
    let root = install("capi-twin", Some("twin"));
    for (name, options, library, most) in [
        ("shared", None, "-lframewright", 1.3),
        ("shared, any order", Some("-DGENERAL"), "-lframewright", 1.3),
        ("static", None, "-l:libframewright.a", 1.1),
        ("shared, two calls", Some("-DFW_NO_INLINE"), "-lframewright", 2.2),
        ("static, two calls", Some("-DFW_NO_INLINE"), "-l:libframewright.a", 2.2),
    ] {
        let binary = root.join("pair");
        let mut command = Command::new("gcc");
        command.args(["-std=c11", "-O2", "-I"]).arg(root.join("include")).args(options);
        command.arg(capi().join("c/pair.c")).arg("-o").arg(&binary).arg("-L").arg(root.join("lib"));
        command.arg(format!("-Wl,-rpath,{}", root.join("lib").display()));
        run(command.args([library, "-lgcc_s", "-lpthread", "-ldl", "-lm"]));
        let ratio = |_| {
            let text = String::from_utf8(run(&mut Command::new(&binary)).stdout).unwrap();
            print!("{name}: {text}");
            text.split_whitespace().nth(2).unwrap().parse::<f64>().unwrap()
        };
        let best = (0..5).map(ratio).fold(f64::INFINITY, f64::min);
        assert!(best < most, "{name}: C takes {best} times as long as Rust");
    }
}
