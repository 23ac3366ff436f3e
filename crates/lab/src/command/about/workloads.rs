//! `framewright workloads`.

use framewright_report::result::Better;

use crate::command::*;
use crate::study::registry;
use crate::study::workload::{Declaration, Role};

const EXAMPLES: &str = "\
Examples:
  framewright workloads
  framewright workloads bulk
  framewright workloads --format json

Parts of a study name one: workload = { name = \"bulk\", order = 9 }.";

/// List what parts of studies can run, or explain one
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Explain this workload: its keys and its metrics
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

/// Lists workloads, or explains one.
///
/// # Errors
/// There is no workload of the name.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    let named = args.name.as_deref().map(registry::find).transpose().map_err(Error::usage)?;
    let named = named.map(|workload| workload.declaration());
    if session.format == Format::Json {
        let list: Vec<serde_json::Value> = match named {
            Some(declaration) => vec![json(declaration)],
            None => registry::all().map(|workload| json(workload.declaration())).collect(),
        };
        return session.terminal.print_json(&list);
    }
    let Some(declaration) = named else {
        let mut listing = Listing::new("", &["workload", "kinds", "what it does"]);
        for workload in registry::all() {
            let declaration = workload.declaration();
            listing.row([declaration.name.to_owned(), kinds(declaration), declaration.about.to_owned()]);
        }
        return session.terminal.print(&listing.render(session.format, &session.terminal));
    };
    session.print_lists([heading(declaration), keys(declaration), metrics(declaration)].iter().flatten())
}

fn kinds(declaration: &Declaration) -> String {
    declaration.kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn heading(declaration: &Declaration) -> Option<Listing> {
    let mut listing = Listing::new(declaration.name, &["", ""]);
    listing.row(["does".to_owned(), declaration.about.to_owned()]);
    listing.row(["kinds".to_owned(), kinds(declaration)]);
    Some(listing)
}

fn keys(declaration: &Declaration) -> Option<Listing> {
    let mut listing = Listing::new("Keys", &["key", "default", "meaning"]);
    for key in declaration.keys {
        let default = key.default.unwrap_or("(needed)").to_owned();
        listing.row([
            key.name.to_owned(),
            default,
            format!("{} {}.", key.about, upper_first(&key.takes.to_string())),
        ]);
    }
    (!declaration.keys.is_empty()).then_some(listing)
}

fn upper_first(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn metrics(declaration: &Declaration) -> Option<Listing> {
    let mut listing = Listing::new("Metrics", &["metric", "unit", "better", "meaning"]);
    for metric in declaration.metrics {
        listing.row([
            metric.name.to_owned(),
            metric.unit.to_owned(),
            way(metric.better).to_owned(),
            metric.about.to_owned(),
        ]);
    }
    Some(listing)
}

const fn way(better: Better) -> &'static str {
    match better {
        Better::Lower => "lower",
        Better::Higher => "higher",
        Better::None => "",
    }
}

fn json(declaration: &Declaration) -> serde_json::Value {
    let keys: Vec<_> = declaration
        .keys
        .iter()
        .map(|key| {
            serde_json::json!({
                "name": key.name, "takes": key.takes.to_string(), "default": key.default, "about": key.about,
            })
        })
        .collect();
    let metrics: Vec<_> = declaration
        .metrics
        .iter()
        .map(|metric| {
            serde_json::json!({
                "name": metric.name, "unit": metric.unit, "better": metric.better, "about": metric.about,
                "always": metric.role == Role::Cause,
            })
        })
        .collect();
    serde_json::json!({
        "name": declaration.name, "about": declaration.about, "kinds": declaration.kinds, "keys": keys, "metrics": metrics,
    })
}
