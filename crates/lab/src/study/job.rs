//! The parts of a study as jobs: which there are, whether a machine can run one, and running it.

use super::plan::{Part, Plan};
use super::registry;
use super::run::{Run, configured};
use super::workload::{Opt, Role, Workload};
use crate::error::{Error, Result, did_you_mean};
use crate::machine::Machine;
use crate::result::{Kind, Part as ResultPart};
use crate::settings::Settings;

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
        && !plan.parts().iter().any(|part| part.name == name)
    {
        let names: Vec<&str> = plan.parts().iter().map(|part| part.name.as_str()).collect();
        let hint = did_you_mean(name, names.iter().copied());
        let list = if hint.is_empty() { format!("; there are {}", names.join(", ")) } else { hint };
        return Err(Error::usage(format_args!("{} has no part `{name}`{list}", plan.name())));
    }
    let wanted = plan.parts().iter().filter(|it| part.is_none_or(|name| it.name == name));
    let of = |part: &'a Part| {
        let kinds = part.kinds.iter().filter(|it| kind.is_none_or(|wanted| wanted == **it));
        kinds.map(move |&kind| Job { plan, part, kind })
    };
    Ok(wanted.flat_map(of).collect())
}

impl Job<'_> {
    /// What the part runs.
    ///
    /// # Errors
    /// Never for a plan that was read: reading looks its workloads up.
    pub fn workload(&self) -> Result<&'static dyn Workload> {
        let name = self.part.workload.get("name").map(ToString::to_string).unwrap_or_default();
        registry::find(&name).map_err(Error::failed)
    }

    /// Why it cannot be run on this machine, if that is so.
    ///
    /// # Errors
    /// As [`workload`](Self::workload).
    pub fn hindrance(&self, machine: &Machine) -> Result<Option<String>> {
        if self.kind == Kind::Measured {
            return Ok(None);
        }
        let it = self.workload()?.declaration();
        if it.is_bound && machine.name != self.plan.machine() {
            return Ok(Some(format!(
                "how much {} does is scaled to figures published for {}, which say nothing of {}",
                it.name,
                self.plan.machine(),
                machine.name
            )));
        }
        let missing = it.needs.iter().find_map(|need| need.missing(machine));
        Ok(missing.map(|table| format!("the description of {} has no {table}", machine.name)))
    }

    /// Runs it. Units and directions of what comes back are those that the workload declares.
    ///
    /// # Errors
    /// A setting that does not exist, or what the workload ran into.
    pub fn run(&self, run: &Run<'_>) -> Result<ResultPart> {
        let workload = self.workload()?;
        let it = workload.declaration();
        let mut result = workload.run(self.kind, self.plan, self.part, run)?;
        for metric in &mut result.metrics {
            let quantity = it.quantity(&metric.name).map_err(Error::failed)?;
            quantity.unit.clone_into(&mut metric.unit);
            metric.better = quantity.better;
            metric.is_share = quantity.role == Role::Share;
        }
        result.headline.clone_from(&self.part.headline);
        result.paired = self.kind != Kind::Derived;
        let known = |name: &String| self.plan.variants().any(|variant| variant.name == *name);
        if result.settings.is_empty() && result.variants.iter().all(known) {
            for it in configured(self.plan, &Settings::default())? {
                result.settings.insert(it.variant, it.setup.described());
            }
        }
        let mut heed = |option: Opt, value: String| {
            if it.heeds(option, self.kind) {
                result.condition(option.flag().trim_start_matches('-'), value);
            }
        };
        heed(Opt::Quick, run.quick.to_string());
        heed(Opt::Scale, run.scale.to_string());
        heed(Opt::Memory, run.memory_gib.to_string());
        Ok(result)
    }
}
