//! No circle of imports between the files of a crate.
//!
//! An import counts for the file that defines what is imported: re-exports are followed. What a file takes from one
//! above it in its own branch (`a/b.rs` from `a.rs`) is not counted: they are one module in two files.

use std::collections::{BTreeMap, BTreeSet};

use crate::repo::{File, Finding, Repo};
use crate::source::{is_word, word};

/// A module's path from the crate's root, as its names.
type Names = Vec<String>;

/// A crate's file, by the path of its module.
struct Module<'a> {
    file: &'a File,
    /// Paths that it names, from the crate's root.
    uses: BTreeSet<Names>,
    /// Paths that it exports, by name.
    exports: BTreeMap<String, Names>,
}

pub(crate) fn imports(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for lib in repo.ending("/src/lib.rs") {
        let source = lib.path.trim_end_matches("lib.rs");
        let modules = modules(repo, source);
        let edges: BTreeMap<&Names, BTreeSet<&Names>> =
            modules.iter().map(|(name, module)| (name, targets(&modules, name, module))).collect();
        findings.extend(circles(&edges).into_iter().map(|circle| {
            let names: Vec<String> = circle.iter().map(|name| name.join("::")).collect();
            let what = format!("{} import each other in a circle", names.join(", "));
            modules[circle[0]].file.finding(0, what, "move what they share to a file of its own")
        }));
    }
    findings
}

fn modules<'a>(repo: &'a Repo, source: &str) -> BTreeMap<Names, Module<'a>> {
    let inner = |file: &File| {
        let path = file.path.strip_prefix(source)?.strip_suffix(".rs")?;
        (!matches!(path, "lib" | "main") && !file.shipped.is_empty())
            .then(|| path.trim_end_matches("/mod").split('/').map(str::to_owned).collect::<Names>())
    };
    let named = repo.files.iter().filter_map(|file| Some((inner(file)?, file)));
    let read = named.map(|(name, file)| {
        let paths = paths(&name, &file.shipped);
        let exports = paths.iter().filter_map(|(path, given)| Some((given.clone()?, path.clone()))).collect();
        let uses = paths.into_iter().map(|(path, _)| path).collect();
        (name, Module { file, uses, exports })
    });
    read.collect()
}

/// Paths that a module names, from the crate's root, and the name under which it gives each of them on, if it does.
pub(crate) fn paths(name: &[String], code: &str) -> Vec<(Names, Option<String>)> {
    let mut paths: Vec<_> = inline(code).filter_map(|path| Some((absolute(name, path)?, None))).collect();
    for (statement, is_public) in statements(code) {
        for mut path in trees(statement) {
            let last = path.pop().unwrap_or_default();
            let (last, new) = last.split_once(" as ").unwrap_or((&last, &last));
            path.push(word(last.trim()).to_owned());
            let given = is_public.then(|| word(new.trim()).to_owned());
            paths.extend(absolute(name, path).map(|path| (path, given)));
        }
    }
    paths
}

/// The trees of `use` statements, and whether they are public.
fn statements(code: &str) -> impl Iterator<Item = (&str, bool)> {
    code.match_indices("use ").filter_map(|(at, _)| {
        let line = code[..at].rsplit('\n').next().unwrap_or_default().trim();
        let end = code[at..].find(';')?;
        (line.is_empty() || line.starts_with("pub")).then(|| (&code[at + 4..at + end], !line.is_empty()))
    })
}

/// `a::{b, c::d}` as a::b and a::c::d.
fn trees(text: &str) -> Vec<Names> {
    let text = text.trim();
    let Some((head, rest)) = text.split_once('{') else {
        return vec![text.split("::").map(|name| name.trim().to_owned()).collect()];
    };
    let rest = rest.trim_end().trim_end_matches('}');
    let (mut depth, mut begin, mut items) = (0, 0, Vec::new());
    for (at, c) in rest.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&rest[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    items.push(&rest[begin..]);
    let head: Names =
        head.split("::").map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let below = items.into_iter().filter(|item| !item.trim().is_empty()).flat_map(trees);
    below.map(|tail| head.iter().cloned().chain(tail).collect()).collect()
}

/// Paths in the code that begin with `crate` or `super`.
fn inline(code: &str) -> impl Iterator<Item = Names> + '_ {
    ["crate::", "super::"].into_iter().flat_map(move |begin| {
        code.match_indices(begin).filter_map(move |(at, _)| {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| is_word(c) || c == ':') {
                return None;
            }
            let end = code[at..].find(|c: char| !is_word(c) && c != ':').unwrap_or(code.len() - at);
            Some(code[at..at + end].split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect())
        })
    })
}

/// A path of the module `from`, from the crate's root. A name without `crate`, `self` or `super` may be a module below.
fn absolute(from: &[String], path: Names) -> Option<Names> {
    let up = path.iter().take_while(|name| *name == "super").count();
    let (base, skip) = match path.first().map(String::as_str) {
        Some("crate") => (&from[..0], 1),
        Some("self") => (from, 1),
        Some("super") => (&from[..from.len().checked_sub(up)?], up),
        _ => (from, 0),
    };
    Some(base.iter().chain(&path[skip..]).filter(|name| *name != "*" && *name != "self").cloned().collect())
}

/// The modules that define what a module names, but for itself and those above it.
fn targets<'m>(
    modules: &'m BTreeMap<Names, Module<'_>>,
    from: &Names,
    module: &Module<'_>,
) -> BTreeSet<&'m Names> {
    let targets = module.uses.iter().filter_map(|path| definer(modules, path.clone(), 8));
    targets.filter(|target| !from.starts_with(target)).collect()
}

fn definer<'m>(modules: &'m BTreeMap<Names, Module<'_>>, path: Names, hops: u32) -> Option<&'m Names> {
    let (name, module) = (1..=path.len()).rev().find_map(|n| modules.get_key_value(&path[..n]))?;
    let next = path.get(name.len()).and_then(|item| module.exports.get(item));
    match next {
        Some(next) if hops > 0 && *next != path => {
            let rest = &path[name.len() + 1..];
            definer(modules, next.iter().chain(rest).cloned().collect(), hops - 1).or(Some(name))
        }
        _ => Some(name),
    }
}

/// Groups of modules each of which reaches every other one.
fn circles<'a>(edges: &BTreeMap<&'a Names, BTreeSet<&'a Names>>) -> BTreeSet<Vec<&'a Names>> {
    let reached = |from: &'a Names| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(at) = open.pop() {
            open.extend(edges.get(at).into_iter().flatten().copied().filter(|next| seen.insert(*next)));
        }
        seen
    };
    let reached: BTreeMap<&Names, BTreeSet<&Names>> =
        edges.keys().map(|&node| (node, reached(node))).collect();
    let group = |(node, there): (&&'a Names, &BTreeSet<&'a Names>)| -> Vec<&'a Names> {
        there
            .iter()
            .copied()
            .filter(|next| reached.get(next).is_some_and(|back| back.contains(node)))
            .collect()
    };
    reached.iter().map(group).filter(|group| group.len() > 1).collect()
}

#[test]
fn a_circle_is_found_and_what_is_none_is_not() {
    let judge = |files: &[(&str, &str)]| {
        let file = |(path, text): &(&str, &str)| File::new((*path).to_owned(), text.as_bytes().to_vec());
        let lib = ("crates/x/src/lib.rs", "mod a;");
        imports(&Repo { files: files.iter().chain([&lib]).map(file).collect() }).len()
    };
    let (a, b) = ("crates/x/src/a.rs", "crates/x/src/b.rs");
    assert_eq!(judge(&[(a, "use crate::b::B; pub struct A;"), (b, "use crate::c; pub struct B;")]), 0);
    assert_eq!(
        judge(&[(a, "use crate::b::B; pub struct A;"), (b, "use crate::a::{self, A}; pub struct B;")]),
        1
    );
    assert_eq!(judge(&[(a, "fn f() { crate::b::g() }"), (b, "fn g() { super::a::f() }")]), 1);
    // Through a re-export: c gives on what b defines.
    let c = ("crates/x/src/c.rs", "pub use crate::b::B as Other;");
    assert_eq!(judge(&[(a, "use crate::c::Other; pub struct A;"), (b, "use crate::a::A;"), c]), 1);
    // A module in two files; tests; comments.
    let below = "crates/x/src/a/below.rs";
    assert_eq!(
        judge(&[(a, "mod below; use below::Z; pub struct A;"), (below, "use super::A; pub struct Z;")]),
        0
    );
    assert_eq!(
        judge(&[(a, "use crate::b::B;"), (b, "#[cfg(test)] mod tests { use crate::a::A; } // crate::a::A")]),
        0
    );
}
