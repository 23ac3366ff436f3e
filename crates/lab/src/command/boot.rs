//! `framewright boot`.

use framewright_host::firmware::{Affinity, Firmware, read_e820, read_linux, read_srat};
use framewright_trace::input;

use crate::booting::Bootable;
use crate::booting::report::{How, boot};
use crate::command::*;

const EXAMPLES: &str = "\
Examples:
  framewright boot --machine epyc-7742-2s
  framewright boot --map dmesg.txt --srat /sys/firmware/acpi/tables/SRAT
  framewright boot --root / --config descriptor_bytes=64
  framewright boot --machine skylake-8167m-2s --lazy --format json";

/// Run the allocator's boot for a memory map (no RAM of that size needed)
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A machine: a name, an alias, or a TOML file
    #[arg(long, value_name = "MACHINE", conflicts_with_all = ["map", "root"])]
    machine: Option<String>,

    /// A memory map: a kernel log with BIOS-e820 lines, or lines such as 0x0-0x9fbff usable
    #[arg(long, value_name = "FILE", conflicts_with = "root")]
    map: Option<PathBuf>,

    /// Root of the Linux system to read /proc and /sys from [default: /]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// An ACPI SRAT, binary: which memory and CPUs belong to which node
    #[arg(long, value_name = "FILE", conflicts_with = "machine")]
    srat: Option<PathBuf>,

    /// Number of CPUs, if the map does not tell
    #[arg(long, value_name = "N", conflicts_with = "machine", value_parser = |text: &str| whole(text, 1_u16, 8192))]
    cpus: Option<u16>,

    /// The allocator's configuration: key=value pairs with commas between them
    #[arg(long, value_name = "CONFIG", default_value = "preset=linux_v5_4")]
    config: String,

    /// Threads that initialise the memory map [default: this machine's CPUs]
    #[arg(long, value_name = "N", conflicts_with = "lazy", value_parser = |text: &str| whole(text, 1_u16, 1024))]
    threads: Option<u16>,

    /// Initialise nothing beyond the early part before it is needed
    #[arg(long)]
    lazy: bool,

    #[command(flatten)]
    report: ReportArgs,
}

/// Boots, and prints the log; in other formats, the results.
///
/// # Errors
/// A machine or file that is refused, with the line or the range; or no memory for the descriptors.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    let setup = Setup::default().with(&Settings::from_pairs(&args.config)?)?;
    let machine = args.machine.as_deref().filter(|name| is_path(name)).map(Path::new);
    let inputs: Vec<&Path> =
        machine.into_iter().chain(args.map.as_deref()).chain(args.srat.as_deref()).collect();
    let reporter = session.begin(&args.report, &inputs)?;
    let (name, bootable) = bootable(args, &setup)?;
    let threads = args.threads.map_or_else(cpus_here, usize::from);
    let report = boot(&name, &bootable, How { setup, threads, lazy: args.lazy })?;
    let mut document = session.document(format!("boot {name}"));
    document.results = report.parts();
    for part in &mut document.results {
        part.settings = part.variants.iter().map(|variant| (variant.clone(), setup.described())).collect();
        part.condition("threads", threads).condition("lazy", args.lazy);
    }
    if session.format != Format::Table {
        return reporter.finish(&document, Style::Framewright);
    }
    let shown = session.terminal.print(&report.log());
    let tables = args.report.style.is_some() || args.report.plot || args.report.all_statistics;
    let shown =
        shown.and_then(|()| if tables { reporter.show(&document, Style::Framewright) } else { Ok(()) });
    reporter.save(&document, Style::Framewright).and(shown)
}

/// The machine or map to boot, and its name.
fn bootable(args: &Args, setup: &Setup) -> Result<(String, Bootable)> {
    if let Some(machine) = &args.machine {
        let machine = Machine::find(machine)?;
        return Ok((machine.name.clone(), Bootable::of_machine(&machine)?));
    }
    let (name, mut firmware) = match &args.map {
        Some(path) => (path.display().to_string(), read_map(path)?),
        None => {
            let root = args.root.as_deref().unwrap_or(Path::new("/"));
            (format!("the Linux at {}", root.display()), read_linux(root).map_err(Error::failed)?)
        }
    };
    if let Some(path) = &args.srat {
        let table = input::table(path, "SRAT").map_err(Error::failed)?;
        let Affinity { memory, cpu_nodes, .. } =
            read_srat(&path.display().to_string(), &table).map_err(Error::failed)?;
        firmware.map.nodes = memory;
        if !cpu_nodes.is_empty() {
            firmware.cpu_nodes = cpu_nodes;
        }
    }
    if args.cpus.is_some() && !firmware.cpu_nodes.is_empty() {
        let there = firmware.cpu_nodes.len();
        return Err(Error::usage(format_args!("{name} describes {there} CPUs: --cpus changes nothing")));
    }
    let cpus = args.cpus.map_or_else(cpus_here, usize::from);
    Ok((name, Bootable::of_firmware(firmware, setup.descriptor as u64, cpus)))
}

fn read_map(path: &Path) -> Result<Firmware> {
    let text = input::text(path, input::MOST, "an SRAT is given with --srat").map_err(Error::failed)?;
    read_e820(&path.display().to_string(), &text).map_err(Error::failed)
}
