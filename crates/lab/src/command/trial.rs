//! `framewright try`.

use std::ffi::OsString;

use framewright_trace::record::{self, Options, User};

use crate::answer::PREDICTED;
use crate::command::replay;
use crate::command::*;
use crate::configure::Setting;
use crate::trial::{Knob, Knobs, Runs, run as run_rounds, undo};

const EXAMPLES: &str = "\
Examples:
  sudo $(which framewright) try --set vm.compaction_proactiveness=98 -- make -j8
  sudo $(which framewright) try --set transparent_hugepage=always -- ./array
  sudo $(which framewright) try --set vm.percpu_pagelist_high_fraction=8 \\
      --rounds 20 --prepare 'make clean' -- make -j8

Runs the command under the kernel's settings as they are and with those of
--set, in turn, and restores them at the end, also after Ctrl-C. After a kill,
the next framewright command of root restores them. The output of the command is
dropped; if it fails, its last message is shown. The first run after a change of
settings is not counted: it gets memory that the other setting's run has left.
If `replay` knows the setting, this run is recorded and the prediction shown.";

/// Run a command under two settings of this kernel, in turn, and compare
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A sysctl to try, or transparent_hugepage; can be given several times
    #[arg(long, value_name = "NAME=VALUE", required = true)]
    set: Vec<String>,

    /// Rounds; in each, a run under both settings is counted
    // Of nine pairs, the interval leaves out the lowest and the highest: one disturbed run does not hide an effect.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = count)]
    rounds: u32,

    /// Shell command to run before each run, as root; it is not measured
    #[arg(long, value_name = "COMMAND")]
    prepare: Option<String>,

    /// Show no prediction of replay, and record nothing
    #[arg(long)]
    no_prediction: bool,

    /// Root of the kernel's /proc/sys, /sys and /run, for tests
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,

    /// The command to run, after --
    #[arg(last = true, num_args = 1.., required = true, value_name = "COMMAND")]
    command: Vec<OsString>,

    #[command(flatten)]
    seed: Seed,

    #[command(flatten)]
    report: ReportArgs,
}

/// Runs a command under two settings and compares time and memory of its runs.
///
/// # Errors
/// A setting does not exist or cannot be written, or the command fails.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    let reporter = session.begin(&args.report, &[])?;
    // Before a setting is read: a killed try may have left another value.
    undo(&args.root)?;
    let knobs = args.set.iter().map(|text| Knob::parse(&args.root, text)).collect::<Result<Vec<Knob>>>()?;
    let mut names: Vec<&str> = knobs.iter().map(|knob| knob.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::usage(format_args!("--set {}: it is given twice", twice[0])));
    }
    let pairs = |value: fn(&Knob) -> &String| {
        knobs.iter().map(|knob| format!("{}={}", knob.name, value(knob))).collect::<Vec<_>>().join(" ")
    };
    let (base, new) = (pairs(|knob| &knob.previous), pairs(|knob| &knob.value));
    let mut part = Part::new("try", "command", Kind::Measured, "host").baseline(base).variant(new).paired();
    part.headline = Some("elapsed_ms".to_owned());
    let line: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    part.condition("command", line.join(" "));
    let user = User::behind_sudo().map_err(Error::failed)?;
    // Before the first setting is written; and before the recorder's handlers, which end the process while nothing is
    // recorded and no other handler is there.
    let stop = Interrupt::ending_in_order();
    // Before the command runs, which may take long: a value that the kernel refuses.
    let held = Knobs::hold(&args.root, knobs.clone())?;
    held.set(true).and_then(|()| held.set(false))?;
    if !args.no_prediction && !stop.is_raised() {
        part.condition(PREDICTED, predicted(args, &knobs, user.clone(), &stop));
    }
    let progress = Progress::until(&stop, "try", 2 * u64::from(args.rounds));
    if stop.is_raised() {
        return replay::ended(&part, args.rounds, progress);
    }
    let noise = Noise::before();
    let runs = Runs { command: &args.command, prepare: args.prepare.as_deref(), user, rounds: args.rounds };
    let ended = run_rounds(&runs, &held, &mut part, &progress);
    drop(held);
    noise.after(&mut part);
    let ended = ended.and_then(|()| replay::ended(&part, args.rounds, progress));
    reporter.end(session.document("try"), part, ended)
}

/// The prediction of `replay` for this change, in a sentence, or the reason why there is none.
fn predicted(args: &Args, knobs: &[Knob], user: Option<User>, stop: &Interrupt) -> String {
    let known = |name: &str| Setting::find(name).is_ok_and(|setting| setting.sysctl() == Some(name));
    let all = |value: fn(&Knob) -> &String| {
        let pairs: Vec<String> = knobs
            .iter()
            .filter(|knob| known(&knob.name))
            .map(|knob| format!("{}={}", knob.name, value(knob)))
            .collect();
        Settings::from_pairs(&pairs.join(","))
    };
    if let Some(knob) = knobs.iter().find(|knob| !known(&knob.name)) {
        return format!("not: replay has no {}", knob.name);
    }
    notice("framewright: recording one run, to predict");
    let options = Options { user, is_silent: true, most_bytes: 256 << 20, ..Options::default() };
    let predict = || -> Result<String> {
        let recording = record::record(&args.command, &options).map_err(Error::failed)?;
        replay::prediction(
            &recording.trace,
            &all(|knob| &knob.previous)?,
            &all(|knob| &knob.value)?,
            args.seed.seed,
            stop,
        )
    };
    predict().unwrap_or_else(|error| format!("not: {error}"))
}
