//! The way to make a change on a real machine: sysctls, another kernel, or none.

use std::collections::BTreeMap;

use framewright_report::result::Part;

use crate::configure::Setting;

/// The way to make the change on a real machine.
pub(super) fn deployment(part: &Part, variant: &str) -> Option<String> {
    if part.study == "try" {
        let line = |pair: String| match pair.split_once('=') {
            Some((name, value)) if name.starts_with("transparent_hugepage") => {
                let file = name.trim_start_matches("transparent_hugepage").trim_start_matches(['.', '/']);
                let file = if file.is_empty() { "enabled".to_owned() } else { file.replace('.', "/") };
                format!("echo {value} > /sys/kernel/mm/transparent_hugepage/{file}")
            }
            _ if pair.contains(' ') => format!("sysctl -w '{pair}'"),
            _ => format!("sysctl -w {pair}"),
        };
        return Some(settings_of(variant).into_iter().map(line).collect::<Vec<_>>().join("; "));
    }
    let (base, new) = (part.settings.get(&part.baseline)?, part.settings.get(variant)?);
    let (sysctls, others) = differing(base, new);
    if !others.is_empty()
        && let Some(kernel) = of_linux(new)
    {
        return Some(kernel);
    }
    if others.is_empty() {
        return (!sysctls.is_empty()).then(|| format!("sysctl {}", sysctls.join(" ")));
    }
    // A study is about a change of the kernel, whatever the values.
    let is_study = part.study != "replay" && others.len() <= 3;
    let is_ours = |name: &&str| !is_study && !linux_has(name, &new[*name]);
    let ours: Vec<&str> = others.iter().copied().filter(is_ours).collect();
    Some(match ours[..] {
        [] => {
            let source = |name: &&str| Setting::find(name).map_or("", |setting| setting.source);
            // Some settings are of one release, others are constants there.
            let of_release = |name: &&str| {
                source(name).split(" v").skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            };
            let mut named: Vec<&str> = others.iter().copied().filter(of_release).collect();
            if named.is_empty() {
                named.clone_from(&others);
            }
            let named: Vec<String> = named.iter().map(|name| format!("{name} ({})", source(name))).collect();
            format!("by another kernel: {}", named.join(", "))
        }
        [single] => format!("not in Linux: {single} is a setting of this allocator"),
        [first, second, ref rest @ ..] => {
            let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
            format!("not in Linux: {first}, {second}{more} are settings of this allocator")
        }
    })
}

/// Whether some Linux has a setting with this value: a preset is that kernel, or the setting is a variable of its own.
fn linux_has(name: &str, value: &str) -> bool {
    Setting::find(name).is_ok_and(|setting| setting.source.contains("->"))
        || Setting::presets().any(|(preset, setup)| {
            preset.starts_with("linux_v") && setup.described().get(name).is_some_and(|theirs| theirs == value)
        })
}

/// The pairs in the name of a variant of `try`. A value may have several words.
fn settings_of(variant: &str) -> Vec<String> {
    let mut pairs: Vec<String> = Vec::new();
    for word in variant.split(' ') {
        match pairs.last_mut().filter(|_| !word.contains('=')) {
            Some(pair) => *pair += &format!(" {word}"),
            None => pairs.push(word.to_owned()),
        }
    }
    pairs
}

/// Settings by name, as a part has them.
type Described = BTreeMap<String, String>;

/// The settings of `new` that differ from those of `base`: sysctls with their values, and names of others.
fn differing<'a>(base: &Described, new: &'a Described) -> (Vec<String>, Vec<&'a str>) {
    let (mut sysctls, mut others) = (Vec::new(), Vec::new());
    for (name, value) in
        new.iter().filter(|(name, value)| *name != "preset" && base.get(*name) != Some(value))
    {
        match Setting::find(name).ok().and_then(Setting::sysctl) {
            Some(sysctl) => sysctls.push(format!("{sysctl}={value}")),
            None => others.push(name.as_str()),
        }
    }
    (sysctls, others)
}

/// The kernel that has these settings, with the fewest sysctls set, if there is one. What surrounds an allocator here
/// is no choice there: the size of descriptors, and how the memory map is initialised.
fn of_linux(new: &Described) -> Option<String> {
    const AROUND: [&str; 2] = ["descriptor_bytes", "deferred_init"];
    let candidates = Setting::presets().filter_map(|(preset, setup)| {
        let version = preset.strip_prefix("linux_v")?.replace('_', ".");
        let described = setup.described();
        let (sysctls, others) = differing(&described, new);
        others.iter().all(|name| AROUND.contains(name)).then_some((version, sysctls))
    });
    let (version, sysctls) = candidates.min_by_key(|(_, sysctls)| sysctls.len())?;
    let with = if sysctls.is_empty() { String::new() } else { format!(" and sysctl {}", sysctls.join(" ")) };
    Some(format!("a kernel with the rules of Linux v{version}{with}"))
}
