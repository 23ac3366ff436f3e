//! Which crate may use which.

use crate::repo::{File, Finding, Repo, folder, judge};

/// Which crates of this project a crate may depend on; then, which its tests may use besides. Crates are
/// named by folder. No crate depends on `lab`.
const DIRECTIONS: [(&str, &[&str], &[&str]); 13] = [
    ("core", &[], &["check"]),
    ("pagecache", &["core"], &["check", "workload"]),
    ("host", &["core", "pagecache"], &["check", "workload"]),
    ("sim", &["core", "trace", "workload"], &[]),
    ("check", &["core"], &["host", "pagecache", "sim", "workload"]),
    ("capi", &["host"], &[]),
    ("clients", &["host"], &[]),
    ("trace", &[], &[]),
    ("report", &["trace"], &[]),
    ("workload", &["trace"], &[]),
    ("rivals", &["workload"], &[]),
    ("subject", &["core", "host", "sim", "trace", "workload"], &[]),
    ("lab", &["core", "pagecache", "host", "sim", "trace", "report", "workload", "subject"], &["check"]),
];

/// Dependencies that a manifest names: line, whether only tests use it, and the package.
fn dependencies(manifest: &File) -> Vec<(usize, bool, String)> {
    let mut found = Vec::new();
    let (mut kind, mut open) = (None, 0_i32);
    for (line, number) in manifest.text.lines().zip(1..) {
        let line = line.split('#').next().unwrap_or_default().trim();
        let inside = open > 0;
        let balance =
            |opening, closing| line.matches(opening).count() as i32 - line.matches(closing).count() as i32;
        open += balance(['[', '{'], [']', '}']);
        if inside {
            continue;
        }
        if line.starts_with('[') {
            let section = line.trim_matches(['[', ']']);
            let table = ["dev-dependencies", "build-dependencies", "dependencies"]
                .into_iter()
                .find_map(|table| section.find(table).map(|at| (table, &section[at + table.len()..])));
            kind = table.map(|(table, _)| table == "dev-dependencies");
            // A section of its own: [dependencies.NAME].
            if let Some((table, name)) = table
                && let Some(name) = name.strip_prefix('.')
            {
                found.push((number, table == "dev-dependencies", name.to_owned()));
                kind = None;
            }
        } else if let Some(kind) = kind
            && let Some((key, value)) = line.split_once('=')
        {
            let renamed = value.split_once("package").and_then(|(_, rest)| rest.split('"').nth(1));
            let name = renamed.unwrap_or_else(|| key.trim().split('.').next().unwrap_or_default());
            found.push((number, kind, name.trim_matches('"').to_owned()));
        }
    }
    found
}

/// A tool in a crate's folder that is a workspace of its own: nothing here depends on it.
fn is_tool(manifest: &File) -> bool {
    folder(&manifest.path).matches('/').count() > 1 && manifest.text.contains("\n[workspace]\n")
}

pub(crate) fn directions(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for manifest in repo.manifests() {
        let Some(name) = folder(&manifest.path).strip_prefix("crates/") else { continue };
        if is_tool(manifest) {
            continue;
        }
        let Some((_, normal, tests)) = DIRECTIONS.iter().find(|(known, ..)| *known == name) else {
            let fix = "say in DIRECTIONS of xtask/tests/tidy what it may depend on";
            findings.push(manifest.finding(
                0,
                format!("crate {name} has no place in the list of crates"),
                fix,
            ));
            continue;
        };
        for (line, is_test, package) in dependencies(manifest) {
            let on = match package.strip_prefix("framewright") {
                Some("") => "core",
                Some(rest) => rest.trim_start_matches('-'),
                None => continue,
            };
            // A crate's tests may name the crate itself, with features.
            if !(normal.contains(&on) || is_test && (on == name || tests.contains(&on))) {
                let fix = "move the shared part into a crate that both may depend on";
                findings.push(manifest.finding(line, format!("{name} must not depend on {on}"), fix));
            }
        }
    }
    findings
}

pub(crate) fn core_has_no_dependency(repo: &Repo) -> Vec<Finding> {
    let Some(manifest) = repo.file("crates/core/Cargo.toml") else { return Vec::new() };
    let shipped = dependencies(manifest).into_iter().filter(|(_, is_test, _)| !is_test);
    let fix = "write the few lines that it needs; core runs where no other crate does";
    shipped.map(|(line, _, name)| manifest.finding(line, format!("core depends on {name}"), fix)).collect()
}

pub(crate) fn manifests_inherit_lints(repo: &Repo) -> Vec<Finding> {
    let missing = repo.manifests().filter(|manifest| {
        manifest.path.starts_with("crates/")
            && !is_tool(manifest)
            && !manifest.text.contains("[lints]\nworkspace = true")
    });
    let fix = "add the section [lints] with `workspace = true`";
    missing.map(|manifest| manifest.finding(0, "does not inherit the workspace's lints", fix)).collect()
}

#[test]
fn a_dependency_the_wrong_way_is_seen() {
    let host = (
        "crates/host/Cargo.toml",
        "[dependencies]\nframewright.workspace = true\nframewright-sim = { path = \"../sim\" }\n",
    );
    let work = ("crates/workload/Cargo.toml", "[dev-dependencies.framewright-lab]\npath = \"../lab\"\n");
    let core = (
        "crates/core/Cargo.toml",
        "[dependencies]\nx = { version = \"1\", features = [\n  \"y = 1\",\n] }\n[dev-dependencies]\nproptest = \"1\"\n",
    );
    let new = ("crates/new/Cargo.toml", "[lints]\nworkspace = true\n");
    let files = [host, work, core, new];
    assert_eq!(
        judge(directions, &files),
        [
            "crates/host/Cargo.toml:3: host must not depend on sim",
            "crates/workload/Cargo.toml:1: workload must not depend on lab",
            "crates/new/Cargo.toml:0: crate new has no place in the list of crates",
        ]
    );
    assert_eq!(judge(core_has_no_dependency, &files), ["crates/core/Cargo.toml:2: core depends on x"]);
    assert_eq!(judge(manifests_inherit_lints, &files).len(), 3);
    let renamed = [("crates/core/Cargo.toml", "[dev-dependencies]\nx = { package = \"framewright-lab\" }\n")];
    assert_eq!(judge(directions, &renamed), ["crates/core/Cargo.toml:2: core must not depend on lab"]);
}
