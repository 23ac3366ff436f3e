//! `framewright machines`.

use crate::command::*;
use crate::detect;
use crate::machine::Source;
use crate::study::workload::Need;

const EXAMPLES: &str = "\
Examples:
  framewright machines
  framewright machines epyc-7742-2s
  framewright machines xeon-gold-5320 --format toml > mine.toml
  framewright machines ./mine.toml --format json
  framewright machines --detect -o here.toml";

/// List the machines that can be studied, or show one
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Show this one: a name, an alias, or a TOML file of your own
    #[arg(value_name = "MACHINE")]
    machine: Option<String>,

    /// Describe the machine that this runs on: what it says of itself, and half a minute of measurement
    #[arg(long, conflicts_with = "machine")]
    detect: bool,

    /// Write that description to this file, for --machine
    #[arg(short, long, value_name = "FILE", requires = "detect", conflicts_with = "machine")]
    output: Option<PathBuf>,
}

/// Lists machines, shows one, or describes this one.
///
/// # Errors
/// There is no such machine, its file is wrong, or this one's cannot be written.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    if args.detect {
        return describe_this(args, session);
    }
    match &args.machine {
        Some(name) => {
            let (machine, text) = Machine::find_with_text(name)?;
            if session.format == Format::Toml {
                return session.terminal.print_data(&text);
            }
            if session.format == Format::Json {
                return session.terminal.print_json(&machine);
            }
            show(&machine, session)
        }
        None if session.format == Format::Toml => Err(Error::usage("name the machine whose TOML you want")),
        None => {
            let machines = Machine::all()?;
            if session.format == Format::Json {
                return session.terminal.print_json(&machines);
            }
            session.terminal.print(&overview(&machines).render(session.format, &session.terminal))?;
            if session.format == Format::Table { session.print_below(LEGEND) } else { Ok(()) }
        }
    }
}

fn describe_this(args: &Args, session: &Session) -> Result<()> {
    if !matches!(session.format, Format::Table | Format::Toml) {
        return Err(Error::usage("a detected machine is TOML; leave --format out"));
    }
    let output = args.output.as_deref().map(open).transpose()?;
    let stop = Interrupt::watched();
    let detected = detect::detect(Path::new("/"), &stop)?;
    detected.missing.iter().for_each(|line| notice(line));
    match output {
        Some(output) => output.finish(detected.text.as_bytes()).map_err(Error::failed)?,
        None => session.terminal.print_data(&detected.text)?,
    }
    if stop.is_raised() {
        return Err(Error::failed("interrupted: fields that were not measured are assumptions"));
    }
    Ok(())
}

fn overview(machines: &[Machine]) -> Listing {
    let mut listing = Listing::new("", &["name", "CPUs", "nodes", "GiB", "simulates", "CPU"]);
    for machine in machines {
        let guest = machine.guest_of.as_ref().map_or_else(String::new, |host| format!(" ({host})"));
        listing.row([
            machine.name.clone(),
            machine.cpus().to_string(),
            machine.nodes.to_string(),
            machine.memory_gib().to_string(),
            simulates(machine),
            format!("{}{guest}", machine.cpu),
        ]);
    }
    listing
}

/// Explains the column `simulates`.
const LEGEND: &str = "boot: initialising memory late. bulk: allocating and freeing in loops. tasks: programs that fault pages in, \
                      wait for locks and exit.";

/// Workloads that the description suffices for.
fn simulates(machine: &Machine) -> String {
    let able: [(&[Need], &str); 3] =
        [(&[Need::Model, Need::Late], "boot"), (&[Need::Model], "bulk"), (&[Need::Kernel], "tasks")];
    let has_all = |needs: &[Need]| needs.iter().all(|need| need.missing(machine).is_none());
    let able: Vec<&str> = able.iter().filter(|(needs, _)| has_all(needs)).map(|(_, what)| *what).collect();
    if able.is_empty() { "nothing".to_owned() } else { able.join(" ") }
}

fn show(machine: &Machine, session: &Session) -> Result<()> {
    let mut parts = vec![facts(machine), zones(machine), parameters(machine)];
    if session.format != Format::Csv {
        return session.print_lists(&parts);
    }
    // CSV has one head: that of the parameters, which are what a spreadsheet computes with.
    let parameters = parts.pop().expect("there are three");
    session.terminal.print_data(&parameters.render(session.format, &session.terminal))
}

fn facts(machine: &Machine) -> Listing {
    let mut listing = Listing::new(&machine.name, &["", ""]);
    let mut fact = |name: &str, value: String| listing.row([name.to_owned(), value]);
    if !machine.aliases.is_empty() {
        fact("also called", machine.aliases.join(", "));
    }
    fact("CPU", machine.cpu.clone());
    if let Some(host) = &machine.guest_of {
        fact("guest of", host.clone());
    }
    fact("CPUs", cpus(machine));
    fact("memory", format!("{} GiB in pages of {} KiB", machine.memory_gib(), machine.page_kib));
    if let Some(cores) = machine.cores_per_l3 {
        fact("last-level cache", format!("shared by {cores} cores"));
    }
    if let Some(distance) = machine.remote_distance {
        fact("node distance", format!("{distance} (own node 10)"));
    }
    if let Some(kind) = &machine.lock_kind {
        fact("zone lock", kind.clone());
    }
    fact("simulates", simulates(machine));
    if !machine.studies.is_empty() {
        fact("studies", machine.studies.join(", "));
    }
    fact("source", machine.source.clone());
    listing
}

/// `104: 2 sockets, 2 nodes of 26 cores, 2 threads each`.
fn cpus(machine: &Machine) -> String {
    let several = |count: u32, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    format!(
        "{}: {}, {} of {}, {} each",
        machine.cpus(),
        several(machine.sockets, "socket"),
        several(machine.nodes, "node"),
        several(machine.cores_per_node, "core"),
        several(machine.threads_per_core, "thread")
    )
}

fn zones(machine: &Machine) -> Listing {
    let mut listing = Listing::new(
        "Zones, in pages",
        &["node", "zone", "first pfn", "present", "managed early", "managed"],
    );
    for zone in &machine.zones {
        let numbers = [zone.start_pfn, zone.present_pages, zone.early_managed_pages, zone.managed_pages];
        let [start, present, early, managed] = numbers.map(|number| number.to_string());
        listing.row([zone.node.to_string(), zone.kind.to_string(), start, present, early, managed]);
    }
    listing
}

fn parameters(machine: &Machine) -> Listing {
    let mut listing = Listing::new("Parameters", &["name", "value", "low", "high", "source"]);
    for (name, parameter) in machine.parameters() {
        let (low, high) = parameter.interval();
        let source = match parameter.source {
            Source::Measured => "measured",
            Source::Nominal => "nominal",
            Source::Estimate => "estimate",
        };
        let range = |end: f64| if low == high { String::new() } else { rounded(end) };
        listing.row([name.to_owned(), rounded(parameter.value), range(low), range(high), source.to_owned()]);
    }
    listing
}

/// Without the noise of a binary fraction.
fn rounded(value: f64) -> String {
    ((value * 1000.0).round() / 1000.0).to_string()
}
