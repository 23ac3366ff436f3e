//! `framewright workloads`.

use framewright_report::error::{Error, Result};
use framewright_report::result::Better;
use framewright_report::table::{Format, Listing};

use crate::session::Session;
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
    let one = args.name.as_deref().map(registry::find).transpose().map_err(Error::usage)?;
    let one = one.map(|workload| workload.declaration());
    if session.format == Format::Json {
        let list: Vec<serde_json::Value> = match one {
            Some(declaration) => vec![json(declaration)],
            None => registry::all().map(|workload| json(workload.declaration())).collect(),
        };
        return session.terminal.print_json(&list);
    }
    let Some(it) = one else {
        let mut listing = Listing::new("", &["workload", "kinds", "what it does"]);
        for workload in registry::all() {
            let it = workload.declaration();
            listing.row([it.name.to_owned(), kinds(it), it.about.to_owned()]);
        }
        return session.terminal.print(&listing.render(session.format, &session.terminal));
    };
    let parts = [heading(it), keys(it), metrics(it)];
    let texts: Vec<String> =
        parts.iter().flatten().map(|part| part.render(session.format, &session.terminal)).collect();
    session.terminal.print(&texts.join("\n"))
}

fn kinds(it: &Declaration) -> String {
    it.kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn heading(it: &Declaration) -> Option<Listing> {
    let mut listing = Listing::new(it.name, &["", ""]);
    listing.row(["does".to_owned(), it.about.to_owned()]);
    listing.row(["kinds".to_owned(), kinds(it)]);
    Some(listing)
}

fn keys(it: &Declaration) -> Option<Listing> {
    let mut listing = Listing::new("Keys", &["key", "default", "meaning"]);
    for key in it.keys {
        let default = key.default.unwrap_or("(needed)").to_owned();
        listing.row([
            key.name.to_owned(),
            default,
            format!("{} {}.", key.about, upper_first(&key.takes.to_string())),
        ]);
    }
    (!it.keys.is_empty()).then_some(listing)
}

fn upper_first(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn metrics(it: &Declaration) -> Option<Listing> {
    let mut listing = Listing::new("Metrics", &["metric", "unit", "better", "meaning"]);
    for metric in it.metrics {
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

fn json(it: &Declaration) -> serde_json::Value {
    let keys: Vec<_> = it
        .keys
        .iter()
        .map(|key| {
            serde_json::json!({
                "name": key.name, "takes": key.takes.to_string(), "default": key.default, "about": key.about,
            })
        })
        .collect();
    let metrics: Vec<_> = it
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
        "name": it.name, "about": it.about, "kinds": it.kinds, "keys": keys, "metrics": metrics,
    })
}
