//! The parts of a study as jobs: which there are, whether a machine can run one, and running it.

use std::path::{Path, PathBuf};

use framewright_report::error::{Error, Result, did_you_mean_or};
use framewright_report::result::{Kind, Part as ResultPart};

use super::plan::{Part, Plan};
use super::registry;
use super::run::{Run, configured};
use super::workload::{Opt, Workload};
use crate::machine::Machine;
use crate::settings::{Settings, Takes};

/// One part in one way.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The study.
    pub plan: &'a Plan,
    /// Its part.
    pub part: &'a Part,
    /// How it is to be run.
    pub kind: Kind,
}

/// The parts of a study, or one of them, each in every way that is wanted.
///
/// # Errors
/// No part of the name.
pub fn jobs<'a>(plan: &'a Plan, part: Option<&str>, kind: Option<Kind>) -> Result<Vec<Job<'a>>> {
    if let Some(name) = part
        && !plan.parts.iter().any(|part| part.name == name)
    {
        let names = plan.parts.iter().map(|part| part.name.as_str());
        let list = did_you_mean_or(name, names, "; there are");
        return Err(Error::usage(format_args!("{} has no part `{name}`{list}", plan.name)));
    }
    let wanted = plan.parts.iter().filter(|known| part.is_none_or(|name| known.name == name));
    let jobs_of = |part: &'a Part| {
        let kinds = part.kinds.iter().filter(|known| kind.is_none_or(|wanted| wanted == **known));
        kinds.map(move |&kind| Job { plan, part, kind })
    };
    Ok(wanted.flat_map(jobs_of).collect())
}

impl Job<'_> {
    /// The part's workload.
    ///
    /// # Errors
    /// Never for a plan that was read: reading looks its workloads up.
    pub fn workload(&self) -> Result<&'static dyn Workload> {
        let name = self.part.workload.get("name").map(ToString::to_string).unwrap_or_default();
        registry::find(&name).map_err(Error::failed)
    }

    /// The files that its part names, such as a trace.
    ///
    /// # Errors
    /// As [`workload`](Self::workload).
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let folder = self.plan.folder().unwrap_or(Path::new(""));
        let keys = self.workload()?.declaration().keys.iter();
        let names = keys.filter_map(|key| match (key.takes, self.part.workload.get(key.name)?.to_string()) {
            (Takes::FileOr(word), name) if name != word => Some(name),
            _ => None,
        });
        Ok(names.map(|name| folder.join(name)).collect())
    }

    /// Why it cannot be run on this machine, if that is so.
    ///
    /// # Errors
    /// As [`workload`](Self::workload).
    pub fn hindrance(&self, machine: &Machine) -> Result<Option<String>> {
        if self.kind == Kind::Measured {
            return Ok(None);
        }
        let declared = self.workload()?.declaration();
        if declared.is_bound && machine.name != self.plan.machine() {
            return Ok(Some(format!(
                "how much {} does is scaled to figures published for {}, which say nothing of {}",
                declared.name,
                self.plan.machine(),
                machine.name
            )));
        }
        let missing = declared.needs.iter().find_map(|need| need.missing(machine));
        Ok(missing.map(|table| format!("the description of {} has no {table}", machine.name)))
    }

    /// Runs it. Units and directions of what comes back are those that the workload declares.
    ///
    /// # Errors
    /// A setting that does not exist, or what the workload ran into.
    pub fn run(&self, run: &Run<'_>) -> Result<ResultPart> {
        let workload = self.workload()?;
        let declared = workload.declaration();
        let mut result = workload.run(self.kind, self.plan, self.part, run)?;
        for metric in &mut result.metrics {
            let quantity = declared.quantity(&metric.name).map_err(Error::failed)?;
            quantity.describe(metric);
        }
        if self.kind == Kind::Simulated {
            self.set_beside(&mut result);
        }
        result.headline.clone_from(&self.part.headline);
        result.paired = self.kind != Kind::Derived;
        result.settle();
        let known = |name: &String| self.plan.variants().any(|variant| variant.name == *name);
        if result.settings.is_empty() && result.variants.iter().all(known) {
            for variant in configured(self.plan, &Settings::default())? {
                result.settings.insert(variant.variant, variant.setup.described());
            }
        }
        let mut heed = |option: Opt, value: String| {
            if declared.heeds(option, self.kind) {
                result.condition(option.flag().trim_start_matches('-'), value);
            }
        };
        heed(Opt::Quick, run.quick.to_string());
        heed(Opt::Scale, run.scale.to_string());
        heed(Opt::Memory, run.memory_gib.to_string());
        Ok(result)
    }

    /// Sets what was published of each figure, baseline and variants, where the figure is of the study's machine or
    /// names its own.
    fn set_beside(&self, result: &mut ResultPart) {
        for declared in &self.part.metrics {
            let names_machine = declared.name.contains("machine=");
            if !names_machine && result.machine != self.part.machine(self.plan) {
                continue;
            }
            // Where settings vary, what was published is of the first.
            let exact = result.metrics.iter().position(|metric| metric.name == declared.name);
            let found =
                exact.or_else(|| result.metrics.iter().position(|metric| metric.family() == declared.name));
            let Some(metric) = found.map(|index| &mut result.metrics[index]) else { continue };
            for (variant, published) in declared.printed(&result.baseline) {
                if variant == result.baseline {
                    metric.published = metric.published.or(Some(published));
                } else {
                    metric.changed.insert(variant.to_owned(), published);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use framewright_report::html;
    use framewright_report::plot;
    use framewright_report::result::Document;
    use framewright_report::table::{self, Options, Style};
    use framewright_report::terminal::Terminal;

    use super::*;

    #[test]
    fn what_was_published_stands_beside_every_prediction() {
        let mut figures = 0;
        for plan in Plan::all().expect("plans") {
            for part in plan.parts.iter().filter(|part| part.kinds.contains(&Kind::Simulated)) {
                let mut result =
                    ResultPart::new(&plan.name, &part.name, Kind::Simulated, part.machine(&plan))
                        .baseline(part.baseline(&plan));
                let mut wanted: Vec<(String, f64)> = Vec::new();
                for metric in &part.metrics {
                    for (variant, published) in metric.printed(&part.baseline(&plan)) {
                        result.metric(&metric.name, &metric.unit, metric.better).samples(variant, [1.0, 2.0]);
                        wanted.push((variant.to_owned(), published.mean));
                    }
                }
                Job { plan: &plan, part, kind: Kind::Simulated }.set_beside(&mut result);
                let mut documents = Document::new("test", framewright_report::host::Host::default());
                documents.results.push(result);
                let terminal = Terminal::plain();
                let plots = plot::document(&documents, &terminal);
                let page = html::html(&documents, Style::Framewright, Options::default());
                let styles = [Style::Framewright, plan.style];
                let texts = styles.map(|style| {
                    let tables = table::tables(&documents, style, Options::default());
                    // Notes are wrapped.
                    let text = table::render(&tables, table::Format::Table, &terminal);
                    text.split_whitespace().collect::<Vec<_>>().join(" ")
                });
                for (variant, mean) in wanted {
                    figures += 1;
                    let said = format!("published {}", table::significant(mean, 4));
                    for text in texts.iter().chain([&page]) {
                        assert!(
                            text.contains(&said),
                            "{} {} {variant}: {said}\n{text}",
                            plan.name,
                            part.name
                        );
                    }
                    let short = format!("published {}", plot::label(mean));
                    assert!(
                        plots.contains(&short),
                        "{} {} {variant}: {short}\n{plots}",
                        plan.name,
                        part.name
                    );
                }
            }
        }
        assert!(figures > 50, "{figures}");
    }
}
