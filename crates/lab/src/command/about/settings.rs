//! `framewright settings`.

use crate::command::*;
use crate::configure::{Acts, SETTINGS, Setting};

const EXAMPLES: &str = "\
Examples:
  framewright settings
  framewright settings lock_place
  framewright settings --format json

--config, --base and --new take settings as key=value pairs with commas between
them, a study takes them in its config tables.";

/// List the allocator's settings, or explain one
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Explain this setting
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

/// Lists settings, or explains one.
///
/// # Errors
/// There is no setting of the name.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    let named = args.name.as_deref().map(Setting::find).transpose();
    let named = named
        .map_err(|what| Error::usage(format_args!("{}: {what}", args.name.as_deref().unwrap_or_default())))?;
    if session.format == Format::Json {
        let list: Vec<serde_json::Value> = match named {
            Some(setting) => vec![json(setting)],
            None => SETTINGS.iter().map(json).collect(),
        };
        return session.terminal.print_json(&list);
    }
    let listing = named.map_or_else(overview, explained);
    session.terminal.print(&listing.render(session.format, &session.terminal))
}

/// Its value under each preset.
fn values(setting: &Setting) -> Vec<(&'static str, String)> {
    Setting::presets().map(|(preset, setup)| (preset, setting.of(&setup))).collect()
}

/// The value of the default preset, and those that differ.
fn defaults(setting: &Setting) -> String {
    let values = values(setting);
    let default = values[0].1.clone();
    let mut differing: Vec<(&str, Vec<&str>)> = Vec::new();
    for (preset, value) in values[1..].iter().filter(|(_, value)| *value != default) {
        let preset = preset.trim_start_matches("linux_");
        match differing.iter_mut().find(|(known, _)| known == value) {
            Some((_, presets)) => presets.push(preset),
            None => differing.push((value, vec![preset])),
        }
    }
    let others: Vec<String> =
        differing.iter().map(|(value, presets)| format!("{value} ({})", presets.join(", "))).collect();
    if others.is_empty() || setting.name == "preset" {
        default
    } else {
        format!("{default}; {}", others.join("; "))
    }
}

fn overview() -> Listing {
    let head = "meaning [sysctl]. Default; linux presets that differ";
    let mut listing = Listing::new("", &["setting", head]);
    let row = |setting: &Setting| {
        let sysctl = setting.sysctl().map_or_else(String::new, |sysctl| format!(" [{sysctl}]"));
        [setting.name.to_owned(), format!("{}{sysctl} Default {}.", setting.about, defaults(setting))]
    };
    let (experiments, of_users): (Vec<_>, Vec<_>) =
        SETTINGS.iter().partition(|setting| setting.is_experiment());
    of_users.into_iter().for_each(|setting| listing.row(row(setting)));
    listing.row(["For studies of one change:".to_owned(), String::new()]);
    for setting in experiments {
        listing.row(row(setting));
    }
    listing
}

fn explained(setting: &Setting) -> Listing {
    let mut listing = Listing::new(setting.name, &["", ""]);
    let mut fact = |name: &str, value: String| listing.row([name.to_owned(), value]);
    fact("does", setting.about.to_owned());
    fact("takes", setting.takes.to_string());
    for (preset, value) in values(setting) {
        fact(preset, if setting.name == "preset" { described(preset) } else { value });
    }
    fact("in Linux", setting.source.to_owned());
    fact("has effect", acts(setting.acts).to_owned());
    listing
}

/// A preset in words.
fn described(preset: &str) -> String {
    match preset.strip_prefix("linux_v") {
        Some(version) => format!("rules and free lists of Linux {}", version.replace('_', ".")),
        None => "this allocator's own rules and data structures".to_owned(),
    }
}

const fn acts(acts: Acts) -> &'static str {
    match acts {
        Acts::Always => "everywhere",
        Acts::AtBoot => "in boot and in studies; a replay or benchmark begins when all memory is initialised",
        Acts::AtBootOrModelled => {
            "in boot, in studies and in replays on a modelled machine; others begin when all memory is initialised"
        }
        Acts::UnderPressure => {
            "in studies of reclaim; a replay or benchmark has one zone and nothing to reclaim"
        }
        Acts::InReplays => "in replays of traces, on this machine's threads or a simulated one",
        Acts::InReplaysHere => {
            "in replays of traces on this machine's threads; on a modelled machine no page is moved"
        }
        Acts::NotModelled => {
            "everywhere but in replays on a modelled machine, whose descriptors have 64 bytes"
        }
        Acts::WithStruct64 => "with descriptor_bytes=64; descriptors of 8 bytes have nothing to check",
    }
}

fn json(setting: &Setting) -> serde_json::Value {
    let values: serde_json::Map<String, serde_json::Value> =
        values(setting).into_iter().map(|(preset, value)| (preset.to_owned(), value.into())).collect();
    serde_json::json!({
        "name": setting.name, "about": setting.about, "takes": setting.takes.to_string(), "presets": values,
        "linux": setting.source, "acts": acts(setting.acts), "experiment": setting.is_experiment(),
    })
}
